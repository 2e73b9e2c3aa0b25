"""The ledger of one partition pair: records in, one plan after the other out.

Half records and ops are taken in as they are read (`half`, `op`, ...); `plan` then applies the
ops that may be applied, in op order, and says what one kafka_txn has to write; `progress` says
which offsets go with it. A kafka_txn that fails costs nothing but a new ledger: it is rebuilt
from what is committed. Rule numbers are those of DESIGN.md.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from checker.core.entry import IN_FLIGHT, Entry, Key
from checker.core.events import JunkRead
from checker.core.forget import Decided
from checker.core.holdings import Holdings
from checker.core.judge import discard_reason, judge_commit
from checker.core.plan import (
    Check,
    Count,
    DeadHalf,
    DeadJunk,
    Delivery,
    Plan,
    PutBack,
    PutBackRule,
)
from checker.core.progress import Progress
from checker.core.protocol import (
    REASON_AGE,
    REASON_CHECK_TIMES,
    Effect,
    State,
    effect_of,
    proves_its_age,
)
from checker.core.rebuild import Rebuild
from checker.core.schedule import CheckSchedule, backoff_ms, first_due_ms
from checker.core.settings import OP_WAIT_MS, WINDOW_PER_UNDECIDED, LedgerSettings
from serde.records import COUNT_UNKNOWN, DeadReason, Op, OpKind, OpSource

if TYPE_CHECKING:
    from collections import Counter

    from checker.core.events import HalfRead, OpRead

# Refused ops that one plan describes in words; the counts hold them all.
NOTES_MAX = 20


class Ledger:
    """What is known of one partition pair.

    Args:
        settings: Limits and the policy.
        committed: Progress to rebuild from; the caller reads half records from H and ops from T.

    Not thread-safe: one worker loop owns it.
    """

    def __init__(self, settings: LedgerSettings, committed: Progress) -> None:
        self._settings = settings
        self._committed = committed
        self._rebuild: Rebuild | None = Rebuild(committed, settings.transaction_age_ms_max)
        self._entries: dict[Key, Entry] = {}
        self._held = Holdings()
        self._schedule = CheckSchedule()
        self._decided = Decided(self._entries)
        self._position = committed.half
        self._op_position = committed.ops_from
        self._rebuild_to = committed.rebuild_to
        self._waiting: deque[OpRead | JunkRead] = deque()
        self._stalled: tuple[int, int] | None = None
        self._confirmed_ms = 0
        self._claim: tuple[int, int] | None = None
        self._wants_op_end = False
        self._allowed: dict[tuple[str, str], bool] = {}
        self._plan = Plan()

    # --- what was read ---------------------------------------------------------------------

    def half(self, half: HalfRead) -> None:
        """Take a readable half record; offsets ascend."""
        self._position = half.offset + 1
        metadata = half.metadata
        key: Key = (metadata.transaction_id, metadata.resume_count)
        if self._rebuild is not None:
            self._rebuild.half(self._rebuild_key(key, half), half)
            return
        entry = self._entries.get(key)
        if entry is not None and entry.group != metadata.producer_group:
            # Another group's half under a known id is a transaction of its own: whoever forges
            # it is asked about it himself, and cannot touch the first one.
            key = (*key, metadata.producer_group)
            entry = self._entries.get(key)
        if entry is None:
            self._open(Entry(key, half), half)
        elif metadata.origin_offset >= 0:
            self._copy_back(entry, half)
        else:
            self._another(entry, half)

    def junk_half(self, record: JunkRead) -> None:
        """Take a half record that cannot be read (rule 8)."""
        self._position = record.offset + 1
        if self._rebuild is not None:
            self._rebuild.junk_half(record)
        else:
            self._bury_junk(record, is_op=False)

    def half_read_to(self, position: int) -> None:
        """Take that nothing below `position` is left to read (PARTITION_EOF)."""
        self._position = max(self._position, position)

    def op(self, read: OpRead) -> None:
        """Take an op record; offsets ascend."""
        self._op_position = read.offset + 1
        if self._rebuild is not None and read.offset < self._committed.op:
            self._rebuild.past_op(read)
        else:
            self._waiting.append(read)

    def junk_op(self, record: JunkRead) -> None:
        """Take an op record that cannot be read (rule 8); it is buried in its turn."""
        self._op_position = record.offset + 1
        if self._rebuild is None or record.offset >= self._committed.op:
            self._waiting.append(record)

    def op_read_to(self, position: int) -> None:
        """Take that no op below `position` is left to read (PARTITION_EOF)."""
        self._op_position = max(self._op_position, position)

    def op_end(self, end: int, asked_ms: int) -> None:
        """Take that op p ended at `end` at some moment after `asked_ms`.

        Once everything below is applied, checks that were due at `asked_ms` may go out.
        """
        self._claim = (end, asked_ms)
        self._confirm()

    def half_end(self, end: int, op_offset: int) -> None:
        """Take that half p ended (read_uncommitted) at `end`, asked while `op_offset` waited.

        Rule 1: an op that names a half offset beyond the end is invalid.
        """
        head = self._waiting[0] if self._waiting else None
        if head is None or head.offset != op_offset or isinstance(head, JunkRead):
            return
        if head.op.half_offset >= end:
            self._waiting.popleft()
            self._note(Count.INVALID_OP, f"{_named(head)} names a half offset beyond {end}")
        self._stalled = None

    # --- what to do ------------------------------------------------------------------------

    @property
    def is_rebuilt(self) -> bool:
        """Whether committed progress has been reached again."""
        return self._rebuild is None

    @property
    def waits_for_half(self) -> bool:
        """Whether an op cannot be applied before more half records are read."""
        return bool(self._waiting) and _half_offset(self._waiting[0]) >= self._position

    @property
    def ops_waiting(self) -> int:
        """Ops read and not applied."""
        return len(self._waiting)

    @property
    def wants_op_end(self) -> bool:
        """Whether a check is due that may go out only after `op_end`."""
        return self._wants_op_end and self._claim is None

    def wants_half_end(self, now_ms: int) -> int | None:
        """Return the offset of an op that has waited so long that half p's end must be asked."""
        if self._rebuild is not None or not self.waits_for_half:
            self._stalled = None
            return None
        head = self._waiting[0].offset
        if self._stalled is None or self._stalled[0] != head:
            self._stalled = (head, now_ms)
        return head if now_ms - self._stalled[1] >= OP_WAIT_MS else None

    def next_due_ms(self) -> int | None:
        """Return when the next check or discard falls due; None when there is none."""
        return None if self._rebuild is not None else self._schedule.next_due_ms()

    def oldest_undecided_ms(self) -> int | None:
        """Return the first append time of the oldest undecided transaction by offset."""
        lowest = self._held.lowest()
        return None if lowest is None else lowest.first_append_ms

    @property
    def undecided_halves(self) -> int:
        """Half messages without a decision."""
        return self._held.halves

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies in memory."""
        return self._held.held_bytes

    @property
    def halves_by_topic(self) -> Counter[str]:
        """Real topic -> undecided half messages."""
        return self._held.by_topic

    def checks(self, now_ms: int, limit: int) -> list[Check]:
        """Return at most `limit` checks to send now; discards that fell due join the next plan."""
        if self._rebuild is not None or limit < 1:
            return []
        checks: list[Check] = []
        confirmed_ms = min(self._confirmed_ms, now_ms)
        for entry in self._schedule.take(confirmed_ms, limit):
            if self._is_aged(entry, now_ms):
                self._discard(entry, REASON_AGE, now_ms)
                self._schedule.add(entry, now_ms + self._settings.check_backoff_ms_max)
            else:
                checks.append(self._ask(entry, now_ms))
        due_ms = self._schedule.next_due_ms()
        self._wants_op_end = due_ms is not None and confirmed_ms < due_ms <= now_ms
        return checks

    def plan(self, now_ms: int, *, records_max: int, size_bytes_max: int) -> Plan:
        """Apply the ops that may be applied and return what to write.

        At most about `records_max` records and `size_bytes_max` bytes (one transaction more
        where it does not end on the limit). Ops beyond stay for the next plan.
        """
        if self._rebuild is not None and not self._settle(now_ms):
            return Plan()
        waiting, plan, position = self._waiting, self._plan, self._position
        while waiting and plan.records < records_max and plan.size_bytes < size_bytes_max:
            read = waiting[0]
            if isinstance(read, JunkRead):
                waiting.popleft()
                self._bury_junk(read, is_op=True)
                continue
            if read.op.half_offset >= position:
                break
            waiting.popleft()
            self._apply(read, now_ms)
        self._keep_window(records_max)
        self._confirm()
        self._schedule.trim()
        self._held.keep_budget(self._settings.ledger_bytes_max)
        self._plan = Plan()
        return plan

    def progress(self, copies_end: int = 0) -> Progress:
        """Return the offsets that go with the plan just taken.

        Args:
            copies_end: Highest offset of a copy that the plan wrote, plus one; 0 without any.
        """
        if self._rebuild is not None:
            return self._committed
        lowest = self._held.lowest()
        half = self._position if lowest is None else lowest.offset
        op = self._next_op()
        self._rebuild_to = max(self._position, self._rebuild_to, copies_end)
        ops_from = self._decided.lowest_needed(half, op)
        return Progress(half, op, self._rebuild_to, ops_from, self._position)

    def committed(self, progress: Progress, now_ms: int) -> None:
        """Take that `progress` stands: what only older progress needed is forgotten (rule 7)."""
        self._committed = progress
        self._decided.forget(now_ms)

    # --- halves ----------------------------------------------------------------------------

    def _rebuild_key(self, key: Key, half: HalfRead) -> Key:
        entry = self._rebuild.entries.get(key) if self._rebuild is not None else None
        if entry is not None and entry.group != half.metadata.producer_group:
            return (*key, half.metadata.producer_group)
        return key

    def _settle(self, now_ms: int) -> bool:
        rebuild = self._rebuild
        if rebuild is None or not rebuild.is_complete(self._position, self._op_position):
            return False
        rebuild.settle(now_ms)
        self._rebuild = None
        self._entries.update(rebuild.entries)
        undecided = [e for e in rebuild.entries.values() if e.state is State.UNDECIDED]
        for entry in sorted(undecided, key=lambda entry: entry.offset):
            self._hold(entry)
        decided = [e for e in rebuild.entries.values() if e.state is not State.UNDECIDED]
        for entry in sorted(decided, key=lambda entry: entry.op_offset):
            self._decided.add(entry)
        for record in rebuild.junk:
            self._bury_junk(record, is_op=False)
        for entry, half in rebuild.late:
            self._bury_late(entry, half)
        return True

    def _hold(self, entry: Entry) -> None:
        """Take an undecided entry from a rebuild."""
        self._held.hold(entry)
        if entry.check_times == 0:
            self._schedule.add(entry, self._first_due_ms(entry))
        else:
            last_ms = max(half.append_ms for half in entry.messages.values())
            self._schedule.add(entry, last_ms + self._settings.check_interval_ms)

    def _open(self, entry: Entry, half: HalfRead) -> None:
        self._entries[entry.key] = entry
        self._held.hold(entry)
        if half.metadata.immunity_ms <= self._settings.transaction_timeout_ms:
            entry.due_ms = entry.first_append_ms + self._settings.transaction_timeout_ms
            self._schedule.add_in_turn(entry)
        else:
            self._schedule.add(entry, self._first_due_ms(entry))

    def _first_due_ms(self, entry: Entry) -> int:
        settings = self._settings
        immunity_ms = max(half.metadata.immunity_ms for half in entry.messages.values())
        return first_due_ms(
            entry.first_append_ms,
            immunity_ms,
            settings.transaction_timeout_ms,
            settings.transaction_age_ms_max // 2,
        )

    def _another(self, entry: Entry, half: HalfRead) -> None:
        """Take an original of a known transaction."""
        index = half.metadata.message_index
        entry.last_record = half.offset
        if entry.state is not State.UNDECIDED:
            self._decided.mentioned(entry)
            if index in entry.known:
                self._plan.counts[Count.DUPLICATE] += 1
            elif entry.state is not State.ROLLED_BACK:
                self._bury_late(entry, half)
        elif index in entry.messages:
            self._plan.counts[Count.DUPLICATE] += 1  # rule 7: first wins
        else:
            self._held.add(entry, half)

    def _copy_back(self, entry: Entry, half: HalfRead) -> None:
        """Take a copy; it stands for its message from now on when this ledger wrote it."""
        index = half.metadata.message_index
        entry.last_record = half.offset
        left = entry.pending.get(index, 0)
        if left == 0:
            self._plan.counts[Count.DUPLICATE] += 1  # a copy that nobody here wrote
            if entry.state is not State.UNDECIDED:
                self._decided.mentioned(entry)
            return
        if left == 1:
            del entry.pending[index]
        else:
            entry.pending[index] = left - 1
        if entry.state is State.UNDECIDED:
            self._held.replace(entry, half)

    def _next_op(self) -> int:
        return self._waiting[0].offset if self._waiting else self._op_position

    def _confirm(self) -> None:
        if self._claim is not None and self._next_op() >= self._claim[0]:
            self._confirmed_ms = max(self._confirmed_ms, self._claim[1])
            self._claim = None

    # --- ops -------------------------------------------------------------------------------

    def _apply(self, read: OpRead, now_ms: int) -> None:
        op = read.op
        entry = self._entries.get((op.transaction_id, op.resume_count))
        if entry is not None and entry.group != op.producer_group:
            entry = self._entries.get((op.transaction_id, op.resume_count, op.producer_group))
            if entry is None:
                self._note(Count.INVALID_OP, f"{_named(read)} is of another producer group")
                return
        if entry is None:
            self._note(Count.ORPHAN_OP, "")
            return
        effect = effect_of(op, entry.state)
        if effect is Effect.DELIVER:
            self._commit(entry, read, now_ms)
        elif effect is Effect.DROP:
            self._roll_back(entry, read, now_ms)
        elif effect is Effect.DEAD_LETTER:
            self._discarded(entry, read, now_ms)
        elif effect is Effect.ANSWER:
            self._answered(entry, op, now_ms)
        elif effect is Effect.DUPLICATE:
            self._plan.counts[Count.DUPLICATE] += 1
        elif effect is Effect.CONFLICT:
            self._note(Count.CONFLICT, f"{_named(read)} came after it was {entry.state.value}")
        elif effect is Effect.INVALID:
            self._note(Count.INVALID_OP, f"{_named(read)}: {op.source.value} may not say that")

    def _commit(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        messages = entry.in_order()
        verdict = judge_commit(messages, read.op, self._allows)
        if verdict.deliver:
            delivery = Delivery(
                read.op.transaction_id,
                entry.group,
                verdict.deliver,
                entry.check_times,
                entry.first_append_ms,
                read.offset,
                read.append_ms,
            )
            self._plan.deliveries.append(delivery)
            self._grow(verdict.deliver)
        for half, reason, detail in verdict.dead:
            self._bury(entry, half, reason, detail, read)
        self._decide(entry, State.COMMITTED, read, now_ms)

    def _roll_back(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        self._plan.counts[Count.ROLLED_BACK] += 1
        for half in entry.messages.values():
            self._plan.rolled_back[half.metadata.real_topic] += 1
        self._decide(entry, State.ROLLED_BACK, read, now_ms)

    def _discarded(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        age_ms_max = self._settings.transaction_age_ms_max
        if not proves_its_age(read.op, read.append_ms, entry.first_append_ms, age_ms_max):
            entry.discarding = False
            self._note(Count.INVALID_OP, f"{_named(read)} came before the maximum age")
            return
        reason = discard_reason(read.op)
        for half in entry.in_order():
            self._bury(entry, half, reason, read.op.reason, read)
        self._decide(entry, State.DISCARDED, read, now_ms)

    def _decide(self, entry: Entry, state: State, read: OpRead, now_ms: int) -> None:
        self._held.release(entry)
        entry.decide(state, read.offset, now_ms)
        self._decided.add(entry)

    def _answered(self, entry: Entry, op: Op, now_ms: int) -> None:
        """Rule 5: an explicit UNKNOWN that answers the pending check counts; nothing else."""
        if op.check_number != entry.check_times + 1:
            self._plan.counts[Count.ANSWER_NOT_COUNTED] += 1
            return
        self._plan.counts[Count.ANSWER_COUNTED] += 1
        entry.check_times += 1
        entry.attempt = 0
        if entry.check_times >= self._settings.check_count_max:
            self._discard(entry, REASON_CHECK_TIMES, now_ms)
            self._schedule.add(entry, now_ms + self._settings.check_backoff_ms_max)
        else:
            self._put_back(entry, PutBackRule.ANSWER)
            self._schedule.add(entry, now_ms + self._settings.check_interval_ms)

    def _allows(self, group: str, topic: str) -> bool:
        allowed = self._allowed.get((group, topic))
        if allowed is None:
            allowed = self._allowed[group, topic] = self._settings.allows(group, topic)
        return allowed

    # --- checks and discards ---------------------------------------------------------------

    def _ask(self, entry: Entry, now_ms: int) -> Check:
        settings = self._settings
        if entry.attempt:
            self._plan.counts[Count.CHECK_EXPIRED] += 1
        entry.attempt += 1
        entry.requests += 1
        if entry.requests == 1:
            entry.first_request_ms = now_ms
        wait_ms = backoff_ms(
            entry.attempt, settings.check_interval_ms, settings.check_backoff_ms_max
        )
        self._schedule.add(entry, now_ms + wait_ms)
        first = entry.messages[min(entry.messages)]
        return Check(first, entry.check_times + 1, entry.attempt)

    def _is_aged(self, entry: Entry, now_ms: int) -> bool:
        settings = self._settings
        return (
            now_ms - entry.first_append_ms >= settings.transaction_age_ms_max
            and entry.requests >= settings.unanswered_before_discard
            and now_ms - entry.first_request_ms >= settings.readiness_before_discard_ms
        )

    def _discard(self, entry: Entry, reason: str, now_ms: int) -> None:
        """Rule 3: have a DISCARD written; it counts when it is read back and came first."""
        if entry.discarding:
            return
        entry.discarding = True
        half = max(entry.messages.values(), key=lambda half: half.offset)
        metadata = half.metadata
        self._plan.discards.append(
            Op(
                transaction_id=metadata.transaction_id,
                timestamp=now_ms,
                half_offset=half.offset,
                resume_count=metadata.resume_count,
                producer_group=entry.group,
                kind=OpKind.DISCARD,
                message_count=COUNT_UNKNOWN,
                check_number=0,
                source=OpSource.CHECKER,
                actor=self._settings.actor,
                reason=reason,
            )
        )
        self._plan.records += 1

    # --- put back --------------------------------------------------------------------------

    def _put_back(self, entry: Entry, rule: PutBackRule) -> None:
        messages = entry.in_order()
        entry.pending = dict(entry.pending)  # what nobody put back shares one empty dict
        for half in messages:
            metadata = half.metadata._replace(
                check_times=entry.check_times,
                first_append_timestamp=entry.first_append_ms,
                origin_offset=half.origin,
            )
            self._plan.put_backs.append(PutBack(half, metadata, rule))
            index = metadata.message_index
            entry.pending[index] = entry.pending.get(index, 0) + 1
        self._grow(messages)
        entry.offset = IN_FLIGHT

    def _keep_window(self, records_max: int) -> None:
        """Put the oldest undecided back while the window that a rebuild reads is too large."""
        settings = self._settings
        while self._plan.records < records_max:
            entry = self._held.lowest()
            if entry is None or entry.pending:
                return
            records = self._position - entry.offset
            size_bytes = self._held.read_bytes - entry.bytes_at
            spare = WINDOW_PER_UNDECIDED
            if (
                records <= settings.republish_window_records + spare * self._held.halves
                and size_bytes <= settings.republish_window_bytes + spare * self._held.size_bytes
            ):
                return
            self._put_back(entry, PutBackRule.WINDOW)

    # --- the plan --------------------------------------------------------------------------

    def _grow(self, halves: tuple[HalfRead, ...] | list[HalfRead]) -> None:
        plan = self._plan
        for half in halves:
            plan.records += 1
            plan.size_bytes += half.size_bytes

    def _bury(
        self, entry: Entry, half: HalfRead, reason: DeadReason, detail: str, read: OpRead
    ) -> None:
        self._plan.dead.append(
            DeadHalf(half, reason, detail, entry.check_times, read.offset, read.append_ms)
        )
        self._grow((half,))

    def _bury_late(self, entry: Entry, half: HalfRead) -> None:
        detail = f"the transaction was {entry.state.value} before"
        self._plan.dead.append(
            DeadHalf(half, DeadReason.LATE, detail, entry.check_times, entry.op_offset, -1)
        )
        self._grow((half,))

    def _bury_junk(self, record: JunkRead, *, is_op: bool) -> None:
        if is_op:
            self._plan.counts[Count.INVALID_OP] += 1
        self._plan.junk.append(DeadJunk(record, is_op))
        self._plan.records += 1

    def _note(self, count: Count, text: str) -> None:
        self._plan.counts[count] += 1
        if text and len(self._plan.notes) < NOTES_MAX:
            self._plan.notes.append(text)


def _half_offset(read: OpRead | JunkRead) -> int:
    """Return what `read` waits for; junk waits for nothing."""
    return -1 if isinstance(read, JunkRead) else read.op.half_offset


def _named(read: OpRead) -> str:
    op = read.op
    return (
        f"{op.kind.value} of transaction {op.transaction_id} by {op.source.value} "
        f"{op.actor!r} (group {op.producer_group}, op offset {read.offset})"
    )

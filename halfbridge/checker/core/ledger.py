"""The ledger of one partition pair: records in, plans out.

`half`, `op` and their like add records. `plan` applies the ops that may be applied, in op order,
and returns what one kafka_txn must write; `progress` returns the offsets that belong to it. The
changes of the ledger become valid with `committed`; until then the ledger refuses another plan.
When a kafka_txn fails, the ledger is dropped, and a new one is rebuilt from the committed offsets.
Rule numbers are those of DESIGN.md.

    half, junk_half ──▶ book ◀── ops ◀── op, junk_op      (before that: rebuild)
                         │  ▲
           plan ◀── draft   checks ◀── op_end, checks
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from halfbridge.checker.core.book import Book
from halfbridge.checker.core.events import CHAR_BYTES, OP_BYTES, JunkRead, OpRead, half_offset_of
from halfbridge.checker.core.memory import Memory
from halfbridge.checker.core.ops import Ops
from halfbridge.checker.core.plan import Check, Count, Plan
from halfbridge.checker.core.rebuild import Rebuild
from halfbridge.checker.core.schedule import backoff_ms
from halfbridge.checker.core.settings import (
    OP_ALERT_MS,
    OP_WAIT_ALERT_MS,
    OP_WAIT_ALERT_MS_MAX,
    OP_WAIT_MS,
)
from halfbridge.serde.progress import Progress
from halfbridge.serde.protocol import REASON_AGE, State

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from halfbridge.checker.core.deferred import Awaits, Deferred
    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.schedule import Room
    from halfbridge.checker.core.settings import LedgerSettings


class Ledger:
    """The state of one partition pair, rebuilt from `committed`. One worker loop owns it."""

    def __init__(self, settings: LedgerSettings, committed: Progress) -> None:
        self._settings = settings
        self._committed = committed
        self._rebuild: Rebuild | None = Rebuild(committed, settings.ledger_bytes_max)
        self._book = Book(settings)
        self._ops = Ops(self._book)
        self._checks = Checks(self._book)
        self._position = committed.half
        self._half_ms = 0  # the newest append time of a half record read
        self._op_position = committed.ops_from
        self._waiting: deque[OpRead | JunkRead] = deque()
        self.memory = Memory(
            self._book,
            self._rebuild,
            bodies_max=settings.ledger_bytes_max,
            entries_max=settings.entries_bytes_max,
        )
        self._half_end = HalfEnd()
        # Offsets of the plan that was returned last: more may be read before that plan commits.
        self._covered = (committed.position, committed.op)
        self._is_prepared = False  # a plan with records was returned, and is not committed
        self._retries = False  # a plan had no room to retry all deferred deliveries
        self._rebuild_to = committed.rebuild_to

    # --- what was read ---------------------------------------------------------------------

    def half(self, half: HalfRead) -> None:
        """Add a readable half record; offsets ascend from call to call."""
        self._position = half.offset + 1
        self._half_ms = max(self._half_ms, half.append_ms)
        if self._rebuild is None:
            self._book.half(half)
        else:
            self._rebuild.half(half)

    def junk_half(self, record: JunkRead) -> None:
        """Add a half record that cannot be read (rule 8)."""
        self._position = record.offset + 1
        self._half_ms = max(self._half_ms, record.append_ms)
        if self._rebuild is None:
            self._book.draft.dead_letter_junk_half(record)
        else:
            self._rebuild.junk_half(record)

    def half_read_to(self, position: int) -> None:
        """Record that half p has been read to `position` (PARTITION_EOF)."""
        self._position = max(self._position, position)

    def op(self, read: OpRead) -> None:
        """Add an op record; offsets ascend from call to call."""
        self._op_position = read.offset + 1
        if self._rebuild is not None and read.offset < self._committed.op:
            self._rebuild.past_op(read)
        else:
            self._waiting.append(read)
            self.memory.ops_bytes += OP_BYTES + CHAR_BYTES * read.size_bytes

    def junk_op(self, record: JunkRead) -> None:
        """Add an op record that cannot be read; it is dead-lettered in op order (rule 8)."""
        self._op_position = record.offset + 1
        if self._rebuild is None or record.offset >= self._committed.op:
            self._waiting.append(record)
            self.memory.junk_op(record)

    def op_read_to(self, position: int) -> None:
        """Record that op p has been read to `position` (PARTITION_EOF)."""
        self._op_position = max(self._op_position, position)

    def op_end(self, end: int, asked_ms: int) -> None:
        """Record that op p ended at `end` at some moment after `asked_ms`.

        Once every op below `end` is applied, the checks that were due at `asked_ms` may be sent.
        """
        self._checks.op_end(end, asked_ms)
        self._checks.applied(self._next_op())

    def half_end(self, end: int, token: int) -> None:
        """Record that half p ended at `end`, as proven after `wants_half_end` returned `token`.

        Rule 1: no half message will come for an op beyond `end`. With `end` 80, a COMMIT that names
        half offset 90 is applied as if it named 79: a rebuild takes the COMMIT for a decision.
        """
        is_beyond = bool(self._waiting) and half_offset_of(self._waiting[0]) >= end
        if self._half_end.is_answer(token, is_beyond=is_beyond):
            ended = self._ops.ended(self._waiting, end, read_to=self._half_end.read_to)
            self._waiting = deque(ended)

    # --- what to do ------------------------------------------------------------------------

    @property
    def is_rebuilt(self) -> bool:
        """Whether committed progress has been reached again."""
        return self._rebuild is None

    @property
    def waits_for_half(self) -> bool:
        """Whether an op cannot be applied before more half records are read."""
        return bool(self._waiting) and half_offset_of(self._waiting[0]) >= self._position

    @property
    def ops_waiting(self) -> int:
        """Number of ops that were read and not applied yet."""
        return len(self._waiting)

    @property
    def letters_waiting(self) -> int:
        """Dead letters that wait for a later plan; during a rebuild, an upper bound of them."""
        if self._rebuild is not None:
            return self._rebuild.waiting(self._position)
        return len(self._book.draft.letters)

    @property
    def wants_op_end(self) -> bool:
        """Whether a check is due that may be sent only after `op_end`."""
        return self._checks.wants_op_end

    def wants_half_end(self, now_ms: int) -> int | None:
        """Return a token for `half_end` if half p's end must be proven; `now_ms` is monotonic."""
        if self._rebuild is not None or not self.waits_for_half:
            self._half_end.clear(now_ms)
            return None
        return self._half_end.question(self._waiting[0].offset, self._op_position, now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the next check or discard falls due; None: nothing is scheduled."""
        return None if self._rebuild is not None else self._book.schedule.next_due_ms()

    def oldest_undecided_ms(self) -> int | None:
        """Return when the lowest held transaction was appended; None: none, or not known."""
        lowest = self._book.held.lowest()
        return None if lowest is None or lowest.first_append_ms < 0 else lowest.first_append_ms

    def oldest_needed_ms(self) -> tuple[int | None, int | None]:
        """Return append times of the oldest undecided half record and unapplied op; None: unknown.

        Retention must not delete these records.
        """
        half_ms = self._book.held.oldest_append_ms()
        op_ms = self._waiting[0].append_ms if self._waiting else -1
        return None if half_ms < 0 else half_ms, None if op_ms < 0 else op_ms

    @property
    def held_halves(self) -> int:
        """Half messages without a decision, and those of deferred transactions."""
        return self._book.held.halves

    @property
    def deferred(self) -> Deferred:
        """The committed transactions whose delivery waits; the caller changes nothing."""
        return self._book.deferred

    @property
    def halves_by_topic(self) -> Counter[str]:
        """Real topic -> half messages without a decision, and those of deferred transactions."""
        return self._book.held.by_topic

    def undecided(self) -> Iterator[Entry]:
        """Yield the undecided transactions, for a report; the caller changes nothing."""
        return (entry for entry in self._book.entries if entry.decided is State.UNDECIDED)

    def waiting(self) -> Iterator[OpRead]:
        """Yield the readable ops that were read and not applied yet, in op order."""
        return (read for read in self._waiting if not isinstance(read, JunkRead))

    def checks(self, now_ms: int, limit: int, room: Room | None = None) -> list[Check]:
        """Return at most `limit` checks to send now; discards that are due join the next plan."""
        if self._rebuild is not None or limit < 1:
            return []
        return self._checks.due(now_ms, limit, room)

    def finish_rebuild(self, now_ms: int) -> None:
        """Take over what a rebuild has read, if it has read far enough; `plan` does this too."""
        rebuild = self._rebuild
        if rebuild is not None and rebuild.is_complete(self._position, self._op_position):
            rebuild.finish(self._book, now_ms)
            self._rebuild = self.memory.rebuild = None

    def plan(
        self,
        now_ms: int,
        *,
        records_max: int,
        size_bytes_max: int,
        awaits: Awaits | None = None,
        retry: bool = True,
    ) -> Plan:
        """Apply the ops that may be applied, and return what to write.

        Waiting dead letters come first, then deferred deliveries, then ops; what has no room waits
        for the next plan. The last transaction may exceed `records_max` and `size_bytes_max`.

        A delivery waits no longer than `awaits` says. It ends sooner where memory is scarce, where
        a rebuild would read more than `republish_window_records` ops for it, or where more
        deliveries wait than the metadata of an offset can name. `retry`: `awaits` may answer
        otherwise than before about deferred deliveries.

        Raises:
            RuntimeError: the plan before has records and is not committed. The caller must commit
                it, or drop the ledger.
        """
        self._refuse_a_second_plan()
        book = self._book
        self.finish_rebuild(now_ms)
        if self._rebuild is not None:
            return Plan()
        book.decided.forget(self._committed.half, self._half_ms)
        metadata_before, bodies_before = self.memory.messages_bytes, self.memory.bodies_bytes
        book.draft.add_letters(records_max=records_max, size_bytes_max=size_bytes_max)
        if self.memory.ops_window_max is not None:
            awaits, retry = None, True
        if book.deferred and (retry or self._retries):
            self._retries = not self._ops.retry_deferred(
                awaits, now_ms, records_max=records_max, size_bytes_max=size_bytes_max
            )
        window = self._settings.republish_window_records
        while book.deferred.is_older_than(self._next_op() - window):
            self._ops.end_oldest_wait(now_ms)
        self._ops.apply_waiting(
            self._waiting, self._position, now_ms, records_max, size_bytes_max, self.memory, awaits
        )
        book.keep_window(
            self._position,
            self._next_op(),
            now_ms,
            records_max=records_max,
            size_bytes_max=size_bytes_max,
            ops_max=self.memory.ops_window_max,
        )
        book.schedule.trim(book.held.halves)
        first = book.draft.letters.first()
        self._covered = (self._position if first is None else first, self._next_op())
        self._checks.applied(self._covered[1])
        plan = book.draft.pop()
        plan.metadata_bytes = metadata_before - self.memory.messages_bytes
        plan.body_bytes = bodies_before - self.memory.bodies_bytes
        self.memory.keep_bodies(plan.body_bytes)
        self._is_prepared = plan.records > 0
        return plan

    def progress(self, copies_end: int = 0) -> Progress:
        """Return the offsets of the last plan, whose copies end at `copies_end`; 0: no copies."""
        if self._rebuild is not None:
            return self._committed
        position, op = self._covered
        lowest = self._book.held.lowest()
        half = position if lowest is None else min(position, lowest.offset)
        half = self._book.decided.whole(half)
        self._rebuild_to = max(position, self._rebuild_to, copies_end)
        ops_from = self._book.decided.lowest_op(op)
        return Progress(half, op, self._rebuild_to, ops_from, position, self._book.deferred.offsets)

    def committed(self, progress: Progress) -> None:
        """Record that plan and `progress` are committed; forget what a lower H needs (rule 7)."""
        self._is_prepared = False
        self._committed = progress
        self._book.decided.forget(progress.half, self._half_ms)

    def _refuse_a_second_plan(self) -> None:
        if self._is_prepared:
            raise RuntimeError("the plan before is not committed: commit it, or drop the ledger")

    def _next_op(self) -> int:
        return self._waiting[0].offset if self._waiting else self._op_position


class Checks:
    """Checks and discards for age of one partition pair.

    A transaction is checked only after op p was read to an end that was asked for after the
    transaction fell due. Example: a transaction fell due during an outage, at 12:00, and the worker
    starts at 14:00. Its COMMIT, of 12:01, is among the ops that the worker has not read yet.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._confirmed_ms = 0
        self._claim: tuple[int, int] | None = None
        self._is_overdue = False

    @property
    def wants_op_end(self) -> bool:
        """Whether a check is due that may be sent only after the end of op p is known."""
        return self._is_overdue and self._claim is None

    def op_end(self, end: int, asked_ms: int) -> None:
        """Record that op p ended at `end` at some moment after `asked_ms`."""
        self._claim = (end, asked_ms)

    def applied(self, next_op: int) -> None:
        """Record that every op below `next_op` is applied."""
        if self._claim is not None and next_op >= self._claim[0]:
            self._confirmed_ms = max(self._confirmed_ms, self._claim[1])
            self._claim = None

    def due(self, now_ms: int, limit: int, room: Room | None = None) -> list[Check]:
        """Return at most `limit` checks to send now; add discards for age to the draft."""
        schedule, settings = self._book.schedule, self._book.settings
        self._book.schedule_unaged(now_ms)
        checks: list[Check] = []
        confirmed_ms = min(self._confirmed_ms, now_ms)
        for entry in schedule.pop_due(confirmed_ms, limit, room):
            if is_aged(entry, now_ms, settings):
                self._discard(entry, now_ms)
            else:
                checks.append(self._ask(entry, now_ms))
        due_ms = schedule.next_unsorted_ms()
        self._is_overdue = due_ms is not None and confirmed_ms < due_ms <= now_ms
        return checks

    def _ask(self, entry: Entry, now_ms: int) -> Check:
        settings = self._book.settings
        if not entry.attempt:
            entry.first_request_ms = now_ms
        elif entry.failed_attempt < entry.attempt:  # a failed checker did get the request
            self._book.draft.count(Count.CHECK_EXPIRED)
        entry.attempt += 1
        wait_ms = backoff_ms(
            entry.attempt, settings.check_interval_ms, settings.check_backoff_ms_max
        )
        self._book.schedule.add(entry, now_ms + wait_ms)
        return check_of(entry)

    def _discard(self, entry: Entry, now_ms: int) -> None:
        """Draft the discard, once; the entry stays scheduled until its op has been read back."""
        settings = self._book.settings
        if not entry.discarding:
            entry.discarding = True
            age_ms = settings.transaction_age_ms_max
            self._book.draft.discard(entry, REASON_AGE, settings.actor, now_ms, age_ms=age_ms)
        self._book.schedule.add(entry, now_ms + settings.check_backoff_ms_max)


def is_aged(entry: Entry, now_ms: int, settings: LedgerSettings) -> bool:
    """Return whether a due transaction is discarded for its age, and not checked once more.

    A transaction is also kept until enough requests were unanswered for long enough. Example: a
    worker that starts after a week's outage asks first, although every transaction is over age.
    """
    return (
        0 <= entry.first_append_ms <= now_ms - settings.transaction_age_ms_max
        and entry.attempt >= settings.unanswered_before_discard
        and now_ms - entry.first_request_ms >= settings.readiness_before_discard_ms
    )


def check_of(entry: Entry) -> Check:
    """Return the check of a transaction that was counted as asked; it shows the first message."""
    last_offset = max(half.offset for half in entry.messages.values())
    return Check(
        entry.messages[min(entry.messages)], entry.check_times + 1, entry.attempt, last_offset
    )


class HalfEnd:
    """Opens a question about the end of the half partition when an op has waited long enough.

    Rule 1: an op waits until the half partition has been read to the op's half offset. The half
    message was acknowledged before the op was sent. So if the half partition ends at offset 80 at
    any moment after the op was read, then no half message was stored at the op's half offset 90.

    The worker proves the end with a barrier record (checker.loop.barriers, ADR 11), a round trip.
    So the question is open only after the op has waited for OP_WAIT_MS, or sooner in a pair that
    has lately had an op beyond the end. Each waiting op begins a new wait.

    Attributes:
        read_to: Ops below it had been read when the question was opened; the answer holds for them.
    """

    def __init__(self) -> None:
        self.read_to = 0
        self._op_offset = -1
        self._since_ms: int | None = None
        self._token: int | None = None
        self._is_known = False
        self._alert_until_ms = 0
        # Roughly the median wait of ops whose half messages came.
        self._usual_ms = 0

    def clear(self, now_ms: int) -> None:
        """Record that no op waits."""
        self._begin(-1, now_ms)

    def question(self, op_offset: int, read_to: int, now_ms: int) -> int | None:
        """Return the token of the open question; None while the op has not waited long enough.

        The token is the monotonic time at which the question was opened. None of this pair's
        ledgers uses a token twice: an answer may arrive after a rebuild.
        """
        if op_offset != self._op_offset:
            self._begin(op_offset, now_ms)
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._token is None:
            is_alert = now_ms < self._alert_until_ms and not self._is_known
            if now_ms - self._since_ms < (self._alert_ms if is_alert else OP_WAIT_MS):
                return None
            self._token, self.read_to = now_ms, read_to
        return self._token

    def is_answer(self, token: int, *, is_beyond: bool) -> bool:
        """Record the answer to the question with `token`; return False if that is not open.

        `is_beyond`: the waiting op names a half offset beyond the end. If False, the half message
        exists, and a new wait gives the consumer time to read it.
        """
        if token != self._token:
            return False
        if is_beyond:
            self._alert_until_ms = token + OP_ALERT_MS
        self._token = self._since_ms = None
        self._is_known = not is_beyond
        return True

    @property
    def _alert_ms(self) -> int:
        return max(OP_WAIT_ALERT_MS, 2 * self._usual_ms)

    def _begin(self, op_offset: int, now_ms: int) -> None:
        if self._since_ms is not None:  # the half message of the op before came
            step_ms = 1 if now_ms - self._since_ms > self._usual_ms else -1
            self._usual_ms = min(max(0, self._usual_ms + step_ms), OP_WAIT_ALERT_MS_MAX // 2)
        self._op_offset, self._since_ms, self._token = op_offset, None, None
        self._is_known = False

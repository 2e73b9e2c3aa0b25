"""Applies one op at a time to the book, and judges what it does to each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from halfbridge.checker.core.deferred import Deferred
from halfbridge.checker.core.events import CHAR_BYTES, OP_BYTES, JunkRead, is_too_large
from halfbridge.checker.core.plan import Count, PutBackRule
from halfbridge.checker.core.settings import ALLOWED_MAX
from halfbridge.serde.limits import TOPIC_CHARS_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import (
    REASON_AGE,
    REASON_CHECK_TIMES,
    REASON_TOO_LARGE,
    Effect,
    State,
    covers_what_is_there,
    effect_of,
    is_failed_attempt,
    proves_its_age,
)
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason, Op, OpSource

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.deferred import Awaits
    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.checker.core.memory import Memory


class Ops:
    """Applies ops in op order (rule 1) to `book`, in place."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._awaits: Awaits | None = None
        self._allowed: dict[tuple[str, str], bool] = {}

    def apply(self, read: OpRead, now_ms: int) -> None:
        """Apply one op. The half partition must have been read to the op's half_offset."""
        op = read.op
        entry = self._book.entries.find(op.transaction_id, op.resume_count, op.producer_group)
        if entry is None:
            self._orphan(read, now_ms)
        else:
            self._DO[effect_of(op, entry.decided)](self, entry, read, now_ms)

    def apply_waiting(  # noqa: PLR0917 (one caller, whose variables have these names)
        self,
        waiting: deque[OpRead | JunkRead],
        position: int,
        now_ms: int,
        records_max: int,
        size_bytes_max: int,
        memory: Memory,
        awaits: Awaits | None,
    ) -> None:
        """Apply waiting ops in op order, and take them from `waiting`, until the plan is full.

        The first op whose half record is not below `position` keeps all later ops waiting (rule 1).
        A COMMIT whose delivery must wait for a real topic is deferred, and keeps none waiting. The
        last transaction may exceed the plan's limits. `memory`'s counts of waiting ops are reduced.
        """
        self._awaits = awaits
        draft, apply = self._book.draft, self.apply
        plan = draft.plan
        while waiting and plan.records < records_max and plan.size_bytes < size_bytes_max:
            read = waiting[0]
            if isinstance(read, JunkRead):
                draft.dead_letter_junk_op(read)
                memory.junk_op_is_gone(read)
            elif read.op.half_offset < position:
                apply(read, now_ms)
                memory.ops_bytes -= OP_BYTES + CHAR_BYTES * read.size_bytes
            else:
                return
            waiting.popleft()

    def retry_deferred(
        self, awaits: Awaits | None, now_ms: int, *, records_max: int, size_bytes_max: int
    ) -> bool:
        """Deliver, in op order, deferred transactions that need not wait; False: no room left."""
        book, plan = self._book, self._book.draft.plan
        before, book.deferred = book.deferred, Deferred()
        is_full = False
        for entry, read in before:
            is_full = plan.records >= records_max or plan.size_bytes >= size_bytes_max
            effect = judge_commit(entry.in_order(), read.op, self._allows)
            if is_full or self._must_wait(entry, effect, read, awaits, again=True):
                book.deferred.add(entry, read)
            else:
                self._deliver(entry, read, effect, now_ms)
        return not is_full

    def end_oldest_wait(self, now_ms: int) -> None:
        """Apply the oldest deferred COMMIT: its messages are delivered, or become dead letters."""
        entry, read = self._book.deferred.pop()
        self._book.draft.count(Count.WAIT_CUT_SHORT)
        effect = judge_commit(entry.in_order(), read.op, self._allows)
        self._deliver(entry, read, effect, now_ms)

    def ended(
        self, waiting: Iterable[OpRead | JunkRead], end: int, *, read_to: int
    ) -> Iterator[OpRead | JunkRead]:
        """Yield waiting ops, those that name a half offset beyond the end with one below it.

        Half p ended at `end`, as proven after the ops below `read_to` had been read. Later ops are
        yielded unchanged.
        """
        for read in waiting:
            is_later = read.offset >= read_to
            if isinstance(read, JunkRead) or is_later or read.op.half_offset < end:
                yield read
                continue
            text = f"{named(read)} names half offset {read.op.half_offset}, beyond the end {end}"
            self._book.draft.note(Count.INVALID_OP, text)
            yield read._replace(op=read.op._replace(half_offset=end - 1))

    def _orphan(self, read: OpRead, now_ms: int) -> None:
        """Apply an op of an unknown transaction. If it decides, later half messages are LATE."""
        book, op = self._book, read.op
        if book.entries.is_other_groups(op.transaction_id, op.resume_count):
            book.draft.note(Count.INVALID_OP, f"{named(read)} is of another producer group")
        else:
            book.draft.count(Count.ORPHAN_OP)
        book.remember(None, read, now_ms)

    def _commit(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        effect = judge_commit(entry.in_order(), read.op, self._allows)
        if not self._must_wait(entry, effect, read, self._awaits, again=False):
            self._deliver(entry, read, effect, now_ms)
            return
        self._book.draft.count(Count.DEFERRED)
        self._book.defer(entry, read)
        if self._book.deferred.is_over_limit:
            self.end_oldest_wait(now_ms)

    def _must_wait(
        self,
        entry: Entry,
        effect: CommitEffect,
        read: OpRead,
        awaits: Awaits | None,
        *,
        again: bool,
    ) -> bool:
        if awaits is None or not effect.deliver:
            return False
        deferred = self._book.deferred
        if deferred and deferred.holds_key_of(entry):
            return True
        return awaits(effect.deliver, read.append_ms, again)

    def _deliver(self, entry: Entry, read: OpRead, effect: CommitEffect, now_ms: int) -> None:
        draft = self._book.draft
        if effect.deliver:
            draft.deliver(entry, effect.deliver, read)
        if effect.dead:
            by_reference = is_too_large(entry.messages.values())
            for half, reason, detail in effect.dead:
                draft.dead_letter(entry, half, reason, detail, read, by_reference=by_reference)
        self._book.decide(entry, State.COMMITTED, read.offset, now_ms)

    def _roll_back(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        self._book.draft.roll_back(entry)
        self._book.decide(entry, State.ROLLED_BACK, read.offset, now_ms)

    def _discard(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        book, op = self._book, read.op
        if not proves_its_age(op, read.append_ms, entry.first_append_ms):
            entry.discarding = False
            text = f"{named(read)}: its append time does not prove the age of {op.age_ms} ms"
            book.draft.note(Count.INVALID_OP, text)
            return
        if op.source is OpSource.CHECKER:
            # A copy carries each counted answer but the last: the DISCARD carries that.
            entry.check_times = max(entry.check_times, op.check_number)
        reason = discard_reason(op)
        by_reference = is_too_large(entry.messages.values())
        for half in entry.in_order():
            book.draft.dead_letter(entry, half, reason, op.reason, read, by_reference=by_reference)
        book.decide(entry, State.DISCARDED, read.offset, now_ms)

    def _answer(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        """Apply an UNKNOWN. It counts only if it answers the pending check (rule 5)."""
        book = self._book
        if is_failed_attempt(read.op):
            entry.failed_attempt = entry.attempt
            book.draft.count(Count.ATTEMPT_FAILED)
            return
        if read.op.check_number != entry.check_times + 1:
            book.draft.count(Count.ANSWER_NOT_COUNTED)
            return
        settings = book.settings
        book.draft.count(Count.ANSWER_COUNTED)
        entry.check_times += 1
        entry.attempt = entry.failed_attempt = 0
        if entry.check_times < settings.check_count_max:
            book.put_back(entry, PutBackRule.ANSWER, now_ms)
            book.schedule.add(entry, now_ms + settings.check_interval_ms)
            return
        if not entry.discarding:
            entry.discarding = True
            book.draft.discard(entry, REASON_CHECK_TIMES, settings.actor, now_ms)
        book.schedule.add(entry, now_ms + settings.check_backoff_ms_max)

    def _repeat(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        self._book.draft.count(Count.DUPLICATE)
        self._book.remember(entry, read, now_ms)

    def _contradict(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        text = f"{named(read)} came after it was {entry.decided.value}"
        self._book.draft.note(Count.CONFLICT, text)
        self._book.remember(entry, read, now_ms)

    def _ignore(self, entry: Entry, read: OpRead, now_ms: int) -> None:
        """Ignore an answer or a discard that came after the decision."""
        self._book.remember(entry, read, now_ms)

    def _refuse(self, entry: Entry, read: OpRead, now_ms: int) -> None:  # noqa: ARG002  (as all of `_DO`)
        text = f"{named(read)}: {read.op.source.value} may not write this kind of op"
        self._book.draft.note(Count.INVALID_OP, text)

    def _allows(self, group: str, topic: str) -> bool:
        allowed = self._allowed.get((group, topic))
        if allowed is None:
            allowed = self._book.settings.allows(group, topic)
            if max(len(group), len(topic)) > TOPIC_CHARS_MAX:
                return allowed  # not the name of a topic, and of any length: not kept
            if len(self._allowed) >= ALLOWED_MAX:
                self._allowed.clear()
            self._allowed[group, topic] = allowed
        return allowed

    # Functions, not methods that are bound: each would refer back to its `Ops`. A ledger that is
    # dropped for a rebuild would keep its memory until the collector of cycles comes.
    _DO: ClassVar[dict[Effect, Callable[[Ops, Entry, OpRead, int], None]]] = {
        Effect.DELIVER: _commit,
        Effect.DROP: _roll_back,
        Effect.DEAD_LETTER: _discard,
        Effect.ANSWER: _answer,
        Effect.DUPLICATE: _repeat,
        Effect.CONFLICT: _contradict,
        Effect.IGNORED: _ignore,
        Effect.INVALID: _refuse,
    }


def named(read: OpRead) -> str:
    """Describe an op for the log."""
    op = read.op
    return (
        f"{op.kind.value} of transaction {op.transaction_id} by {op.source.value} "
        f"{op.actor!r} (group {op.producer_group}, op offset {read.offset})"
    )


_ONE_OR_UNKNOWN = (1, COUNT_UNKNOWN)  # counts that a commit of one message may state
# Message indices that one detail text lists; a transaction may have a thousand.
_INDICES_SHOWN = 10
_DAEMONS_REASONS = {
    REASON_CHECK_TIMES: DeadReason.CHECK_TIMES,
    REASON_AGE: DeadReason.AGE,
    REASON_TOO_LARGE: DeadReason.TOO_LARGE,
}


class CommitEffect(NamedTuple):
    """Messages to deliver, and messages to dead-letter, each with its reason and detail."""

    deliver: tuple[HalfRead, ...]
    dead: tuple[tuple[HalfRead, DeadReason, str], ...] = ()


def judge_commit(
    messages: Sequence[HalfRead], op: Op, allows: Callable[[str, str], bool]
) -> CommitEffect:
    """Return what a COMMIT does to `messages`, which ascend in their unique indices.

    Messages 0 to n-1 are delivered, or none. n is the op's message_count; where that is not known,
    n is the number of messages that count. A message counts if its original is at or below the op's
    half_offset: whether later records were read already must not change the result. With a gap in
    the indices, or above a limit of a transaction, no message is delivered. What an operator
    redelivers may have gaps (`serde.protocol.covers_what_is_there`).

    Example: a COMMIT with message_count 3 finds the indices 0, 1 and 3. Index 3 is EXTRA; 0 and 1
    are INCOMPLETE, because index 2 is missing.
    """
    half_offset, count = op.half_offset, op.message_count
    if len(messages) == 1 and count in _ONE_OR_UNKNOWN:
        # A faster path for one message, because most transactions have one. The result is the same.
        only = messages[0]
        metadata = only.metadata
        if (
            metadata.message_index == 0
            and only.origin <= half_offset
            and not only.flaw
            and only.user_bytes <= TRANSACTION_BYTES_MAX
            and allows(metadata.producer_group, metadata.real_topic)
        ):
            return CommitEffect((only,))
    meant = []
    dead = []
    for half in messages:
        if half.origin > half_offset:
            dead.append((half, DeadReason.LATE, "stored above the half offset of the decision"))
        elif 0 <= count <= half.metadata.message_index:
            dead.append((half, DeadReason.EXTRA, f"the commit covers {count} messages"))
        else:
            meant.append(half)
    wanted = None if covers_what_is_there(op) else len(meant) if count < 0 else count
    refused = _refusal(meant, wanted, allows)
    if refused is None:
        return CommitEffect(tuple(meant), tuple(dead))
    reason, detail = refused
    return CommitEffect((), (*((half, reason, detail) for half in meant), *dead))


def discard_reason(op: Op) -> DeadReason:
    """Return the dead-letter reason of a DISCARD."""
    if op.source is not OpSource.CHECKER:
        return DeadReason.OPERATOR
    return _DAEMONS_REASONS.get(op.reason, DeadReason.OPERATOR)


def _refusal(
    meant: Sequence[HalfRead], count: int | None, allows: Callable[[str, str], bool]
) -> tuple[DeadReason, str] | None:
    if is_too_large(meant):
        return DeadReason.TOO_LARGE, (
            f"{len(meant)} messages of {sum(half.user_bytes for half in meant)} bytes, the last"
            f" with index {meant[-1].metadata.message_index}; a transaction has at most"
            f" {TRANSACTION_MESSAGES_MAX} messages and {TRANSACTION_BYTES_MAX} bytes"
        )
    # Indices are ascending, unique and not negative: without a gap the last index is count - 1.
    if count is not None and (
        len(meant) != count or (meant and meant[-1].metadata.message_index != count - 1)
    ):
        shown = [half.metadata.message_index for half in meant[:_INDICES_SHOWN]]
        return DeadReason.INCOMPLETE, f"of {count} messages {len(meant)} are there: {shown} ..."
    for half in meant:
        refusal = _not_allowed(half, allows)
        if refusal:
            return DeadReason.NOT_ALLOWED, refusal
    return None


def _not_allowed(half: HalfRead, allows: Callable[[str, str], bool]) -> str:
    if half.flaw:
        return half.flaw
    metadata = half.metadata
    if allows(metadata.producer_group, metadata.real_topic):
        return ""
    return f"group {metadata.producer_group} may not write to {metadata.real_topic}"

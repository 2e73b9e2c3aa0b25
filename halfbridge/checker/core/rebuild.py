"""Rebuilds the state of a ledger from the log, after a start, a rebalance or a failure.

`check_against_log` first makes sure that the logs still hold what the rebuild needs. Then half
records [H, R) and ops [T, O) are read. The effects of those ops were committed before: they only
show which transactions are decided. Unreadable and late half records at or above P must still be
dead-lettered. No op is applied before R and O are reached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.checker.core.entries import Entries, Entry
from halfbridge.checker.core.events import JunkRead, is_excess, op_bytes, record_bytes
from halfbridge.serde.progress import Progress, ProgressError
from halfbridge.serde.protocol import NO_APPEND_MS, State, decision_of, proves_its_age

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.events import HalfRead, OpRead


class BeyondEndError(ProgressError):
    """An offset is beyond the end of the log, perhaps an old end that a deposed leader reported."""


def check_against_log(
    progress: Progress, half_range: tuple[int, int], op_range: tuple[int, int]
) -> Progress:
    """Check that the log holds what `progress` refers to; return where to begin.

    `half_range` and `op_range` are log start and log end (read_uncommitted). Where H = R, a T below
    the log start is raised to it: the ops from T on would only identify late duplicates, and they
    expire while the pair is idle.

    Raises:
        BeyondEndError: The topic was truncated or recreated, or a deposed leader has answered; the
            worker asks again for the ends, and an operator acts if the error persists.
        ProgressError: Records that a rebuild needs were deleted; an operator acts, and the pair
            does not resume before.
    """
    is_spent = progress.half == progress.rebuild_to and not progress.deferred
    if is_spent and progress.ops_from < op_range[0] <= progress.op:
        progress = replace(progress, ops_from=op_range[0])
    spans = (
        ("H", progress.half, *half_range, "half"),
        ("R", progress.rebuild_to, *half_range, "half"),
        ("T", progress.ops_from, *op_range, "op"),
        ("O", progress.op, *op_range, "op"),
    )
    for name, offset, start, end, topic in spans:
        if offset > end:
            raise BeyondEndError(
                f"{name}={offset} is beyond the end {end} of the {topic} partition: "
                "the topic was truncated or recreated"
            )
        if offset < start:
            raise ProgressError(
                f"{name}={offset} is below the log start {start} of the {topic} partition: "
                "records that are still needed were deleted"
            )
    return progress


class Rebuild:
    """Collects the records that are read until the committed progress is reached again."""

    def __init__(self, progress: Progress, body_bytes_max: int) -> None:
        self._progress = progress
        self._body_bytes_max = body_bytes_max
        self._body_bytes_left = body_bytes_max
        self._metadata_bytes = 0
        self._halves = Entries()
        self._fresh: list[tuple[Entry, HalfRead] | JunkRead] = []
        self._past: list[OpRead] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies in memory: an upper bound."""
        return min(self._body_bytes_max, self._body_bytes_max - self._body_bytes_left)

    @property
    def entries_bytes(self) -> int:
        """Bytes of everything except bodies: an estimate."""
        return self._halves.size_bytes + self._metadata_bytes

    def is_complete(self, position: int, op_position: int) -> bool:
        """Tell whether both partitions have been read far enough."""
        return position >= self._progress.rebuild_to and op_position >= self._progress.op

    def waiting(self, position: int) -> int:
        """Return how many half records may become dead letters; 0 until R is reached."""
        return 0 if position < self._progress.rebuild_to else len(self._fresh)

    def half(self, half: HalfRead) -> None:
        """Add a half record. A copy replaces its original; a second original replaces nothing."""
        self._body_bytes_left -= half.body_bytes
        if self._body_bytes_left < 0:
            half = half._replace(body=None)
        metadata = half.metadata
        self._metadata_bytes += half.metadata_bytes
        transaction_id, resume_count = metadata.transaction_id, metadata.resume_count
        entry = self._halves.find(transaction_id, resume_count, metadata.producer_group)
        if entry is None:
            entry = Entry(half)
            self._halves.put(entry, transaction_id, resume_count)
        else:
            before = entry.messages.get(metadata.message_index)
            is_kept = before is not None or not (entry.has_excess and is_excess(half))
            if is_kept and (before is None or half.origin <= before.origin):
                entry.messages[metadata.message_index] = half
                entry.has_excess = entry.has_excess or is_excess(half)
                if before is not None:
                    self._metadata_bytes -= before.metadata_bytes
            else:
                self._metadata_bytes -= half.metadata_bytes  # the record is not kept
            entry.last_record = half.offset
            if metadata.origin_offset >= 0:
                entry.check_times = max(entry.check_times, metadata.check_times)
                entry.first_append_ms = _first_of(
                    entry.first_append_ms, metadata.first_append_timestamp
                )
        if self._is_fresh(half):
            # Counted a second time: `_fresh` may become the only reference to the record.
            self._metadata_bytes += half.metadata_bytes
            self._fresh.append((entry, half))

    def junk_half(self, record: JunkRead) -> None:
        """Add an unreadable half record."""
        if record.offset < self._progress.position:
            return
        self._body_bytes_left -= record.body_bytes
        if self._body_bytes_left < 0:
            record = record._replace(body=None)
        self._metadata_bytes += record_bytes(record)
        self._fresh.append(record)

    def past_op(self, read: OpRead) -> None:
        """Add an op below O. Only decisions are kept: there may be millions of other ops."""
        if decision_of(read.op) is not None:
            self._past.append(read)
            self._metadata_bytes += op_bytes(read)

    def finish(self, book: Book, now_ms: int) -> None:
        """Bring the empty `book` to the committed state."""
        book.entries.adopt(self._halves)
        deferred = frozenset(self._progress.deferred)
        for read in self._past:
            self._decide(book, read, now_ms, is_deferred=read.offset in deferred)
        undecided = [entry for entry in book.entries if entry.state is State.UNDECIDED]
        for entry in undecided:
            entry.offset = min(half.offset for half in entry.messages.values())
        for entry in sorted(undecided, key=lambda entry: entry.offset):
            book.restore(entry)
        for each in self._fresh:
            if isinstance(each, JunkRead):
                book.draft.dead_letter_junk_half(each)
                continue
            entry, half = each
            index = half.metadata.message_index
            if entry.state is State.UNDECIDED:  # a deferred one judges its late messages itself
                if is_excess(half) and index not in entry.messages:
                    book.draft.dead_letter_excess(entry, half)
            elif entry.state is not State.ROLLED_BACK and index not in entry.known:
                book.draft.dead_letter_late(entry, half)

    def _decide(self, book: Book, read: OpRead, now_ms: int, *, is_deferred: bool) -> None:
        """Apply an earlier decision. The first decision wins; `half_offset` is not compared."""
        op = read.op
        state = decision_of(op)
        if state is None:
            return
        entry = book.entries.find(op.transaction_id, op.resume_count, op.producer_group)
        if entry is None or entry.decided is not State.UNDECIDED:
            book.remember(entry, read, now_ms)
        elif is_deferred:
            book.defer(entry, read)
        elif _took_effect(read, entry):
            messages = entry.messages
            entry.messages = {
                index: half for index, half in messages.items() if not self._is_fresh(half)
            }
            entry.decide(state, read.offset, now_ms)
            book.decided.add(entry)

    def _is_fresh(self, half: HalfRead) -> bool:
        """Tell whether `half` is an original at or above P, which has had no effect yet."""
        return half.offset >= self._progress.position and half.metadata.origin_offset < 0


def _first_of(append_ms: int, claimed_ms: int) -> int:
    """Return the first append time of a transaction, NO_APPEND_MS where it is not known.

    `append_ms` is that of the records read so far, `claimed_ms` that of a copy. The copy is right
    about the first message, which may be below H: what is unknown to it is unknown.
    """
    if claimed_ms < 0:
        return NO_APPEND_MS
    return claimed_ms if append_ms < 0 else min(append_ms, claimed_ms)


def _took_effect(read: OpRead, entry: Entry) -> bool:
    """Tell whether a deciding op took effect. Only a discard for age may have had no effect."""
    if min(half.origin for half in entry.messages.values()) > read.op.half_offset:
        # Example: the discard names half offset 50, and the only record that was read is at 70.
        # That record does not show the age. If the discard had no effect, then another op must have
        # decided the transaction before H passed 50. So the record at 70 is late in both cases.
        return True
    return proves_its_age(read.op, read.append_ms, entry.first_append_ms)

"""State from the log: what a ledger holds after a start, a rebalance or a failure.

Half records [H, R) are read, and ops [T, O). Those ops had their effect before; they only tell
which transactions are decided. Half records at or above P had none yet: unreadable and late
ones among them are still to be dead-lettered. Nothing is applied before both ends are reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.entries import Entries
from halfbridge.checker.core.entry import Entry
from halfbridge.checker.core.events import JunkRead
from halfbridge.checker.core.too_large import is_excess
from halfbridge.checker.core.weights import op_bytes, record_bytes
from halfbridge.serde.protocol import NO_APPEND_MS, State, decision_of, proves_its_age

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.serde.progress import Progress


class Rebuild:
    """Collects what is read until the committed progress is reached again.

    Args:
        progress: What was committed.
        body_bytes_max: Bytes of the bodies held; those beyond are read again by offset.
    """

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
        """Bytes of the bodies in memory, or a little more."""
        return min(self._body_bytes_max, self._body_bytes_max - self._body_bytes_left)

    @property
    def entries_bytes(self) -> int:
        """What all else takes in memory: an estimate."""
        return self._halves.size_bytes + self._metadata_bytes

    def is_complete(self, position: int, op_position: int) -> bool:
        """Tell whether both partitions have been read far enough."""
        return position >= self._progress.rebuild_to and op_position >= self._progress.op

    def waiting(self, position: int) -> int:
        """Return how many half records may be letters, none while more must be read anyway."""
        return 0 if position < self._progress.rebuild_to else len(self._fresh)

    def half(self, half: HalfRead) -> None:
        """Take a half record; a copy replaces what it is a copy of, another original never."""
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
            stands = entry.messages.get(metadata.message_index)
            is_kept = stands is not None or not (entry.has_excess and is_excess(half))
            if is_kept and (stands is None or half.origin <= stands.origin):
                entry.messages[metadata.message_index] = half
                entry.has_excess = entry.has_excess or is_excess(half)
                if stands is not None:
                    self._metadata_bytes -= stands.metadata_bytes
            else:
                self._metadata_bytes -= half.metadata_bytes  # it is not kept
            entry.last_record = half.offset
            if metadata.origin_offset >= 0:
                entry.check_times = max(entry.check_times, metadata.check_times)
                entry.first_append_ms = _first_of(
                    entry.first_append_ms, metadata.first_append_timestamp
                )
        if self._is_fresh(half):
            self._metadata_bytes += half.metadata_bytes  # once more: it may be kept here only
            self._fresh.append((entry, half))

    def junk_half(self, record: JunkRead) -> None:
        """Take an unreadable half record."""
        if record.offset < self._progress.position:
            return
        self._body_bytes_left -= record.body_bytes
        if self._body_bytes_left < 0:
            record = record._replace(body=None)
        self._metadata_bytes += record_bytes(record)
        self._fresh.append(record)

    def past_op(self, read: OpRead) -> None:
        """Take an op below O; of those only decisions are kept: there may be millions of others."""
        if decision_of(read.op) is not None:
            self._past.append(read)
            self._metadata_bytes += op_bytes(read)

    def settle(self, book: Book, now_ms: int) -> None:
        """Bring `book`, which is empty, to the state that was committed."""
        book.entries.take_over(self._halves)
        for read in self._past:
            self._decide(book, read, now_ms)
        undecided = [entry for entry in book.entries if entry.state is State.UNDECIDED]
        for entry in undecided:
            entry.offset = min(half.offset for half in entry.messages.values())
        for entry in sorted(undecided, key=lambda entry: entry.offset):
            book.restore(entry)
        for each in self._fresh:
            if isinstance(each, JunkRead):
                book.draft.bury_junk_half(each)
                continue
            entry, half = each
            index = half.metadata.message_index
            if entry.state is State.UNDECIDED:
                if is_excess(half) and index not in entry.messages:
                    book.draft.bury_excess(entry, half)
            elif entry.state is not State.ROLLED_BACK and index not in entry.known:
                book.draft.bury_late(entry, half)

    def _decide(self, book: Book, read: OpRead, now_ms: int) -> None:
        """Take a decision that stands; first decision wins, `half_offset` is not looked at."""
        op = read.op
        state = decision_of(op)
        if state is None:
            return
        entry = book.entries.find(op.transaction_id, op.resume_count, op.producer_group)
        if entry is None or entry.state is not State.UNDECIDED:
            book.remember(entry, read, now_ms)
        elif _took_effect(read, entry):
            messages = entry.messages
            entry.messages = {
                index: half for index, half in messages.items() if not self._is_fresh(half)
            }
            entry.decide(state, read.offset, now_ms)
            book.decided.add(entry)

    def _is_fresh(self, half: HalfRead) -> bool:
        """Tell whether this original has had no effect yet."""
        return half.offset >= self._progress.position and half.metadata.origin_offset < 0


def _first_of(append_ms: int, claimed_ms: int) -> int:
    """Return the first append time, where a copy says one and the originals read another.

    A copy knows the first message, which a rebuild may not have met: nobody knows the age where it
    says so, whatever a later message tells.
    """
    if claimed_ms < 0:
        return NO_APPEND_MS
    return claimed_ms if append_ms < 0 else min(append_ms, claimed_ms)


def _took_effect(read: OpRead, entry: Entry) -> bool:
    """Tell whether a deciding op did decide; only an AGE discard may have failed to."""
    if min(half.origin for half in entry.messages.values()) > read.op.half_offset:
        # Only late records are left, which say nothing of the age. Had the discard failed, the
        # transaction itself would still be here, or decided otherwise and passed by H: then this
        # is the wrong one of two decisions, and what is late is late all the same.
        return True
    return proves_its_age(read.op, read.append_ms, entry.first_append_ms)

"""State from the log: what a ledger holds after a start, a rebalance or a failure.

Half records [H, R) are read, and ops [T, O). Those ops had their effect before; they only tell
which transactions are decided. Half records at or above P had none yet: unreadable and late
ones among them are still to be dead-lettered. Nothing is applied before both ends are reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checker.core.entry import Entry, Key
from checker.core.protocol import STATE_AFTER, State, effect_of, proves_its_age

if TYPE_CHECKING:
    from checker.core.events import HalfRead, JunkRead, OpRead
    from checker.core.progress import Progress


class Rebuild:
    """Collects what is read until the committed progress is reached again.

    Attributes:
        entries: Transactions by key; all undecided until `settle`.
        junk: Unreadable half records that had no effect yet.
        late: Half records that came after their transaction's decision, without effect yet.
    """

    def __init__(self, progress: Progress, age_ms_max: int) -> None:
        self.entries: dict[Key, Entry] = {}
        self.junk: list[JunkRead] = []
        self.late: list[tuple[Entry, HalfRead]] = []
        self._progress = progress
        self._age_ms_max = age_ms_max
        self._fresh: dict[Key, list[HalfRead]] = {}
        self._past: dict[tuple[str, int, str], list[OpRead]] = {}

    def is_complete(self, position: int, op_position: int) -> bool:
        """Tell whether both partitions have been read far enough."""
        return position >= self._progress.rebuild_to and op_position >= self._progress.op

    def half(self, key: Key, half: HalfRead) -> None:
        """Take a half record; a copy replaces what it is a copy of, an original never does."""
        copy = half.metadata.origin_offset >= 0
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Entry(key, half)
        else:
            index = half.metadata.message_index
            if copy or index not in entry.messages:
                entry.messages[index] = half
            entry.last_record = half.offset
            _take_history(entry, half, copy=copy)
        if not copy and half.offset >= self._progress.position:
            self._fresh.setdefault(key, []).append(half)

    def junk_half(self, record: JunkRead) -> None:
        """Take an unreadable half record."""
        if record.offset >= self._progress.position:
            self.junk.append(record)

    def past_op(self, read: OpRead) -> None:
        """Take an op below O."""
        op = read.op
        self._past.setdefault((op.transaction_id, op.resume_count, op.producer_group), []).append(
            read
        )

    def settle(self, now_ms: int) -> None:
        """Decide what was decided; `late` and each entry's state and offset are right then."""
        for entry in self.entries.values():
            read = self._decision(entry)
            entry.offset = min(half.offset for half in entry.messages.values())
            if read is None:
                continue
            fresh = self._fresh.get(entry.key, [])
            state = STATE_AFTER[effect_of(read.op, State.UNDECIDED)]
            known = [index for index in entry.messages if not _is_fresh(entry, index, fresh)]
            if state is not State.ROLLED_BACK:
                self.late += [
                    (entry, half) for half in fresh if half.metadata.message_index not in known
                ]
            entry.decide(state, read.offset, now_ms)
            entry.known = frozenset(known)

    def _decision(self, entry: Entry) -> OpRead | None:
        transaction_id, resume_count = entry.key[:2]
        reads = self._past.get((str(transaction_id), int(str(resume_count)), entry.group), ())
        return next((read for read in reads if self._decides(read, entry)), None)

    def _decides(self, read: OpRead, entry: Entry) -> bool:
        return effect_of(read.op, State.UNDECIDED) in STATE_AFTER and proves_its_age(
            read.op, read.append_ms, entry.first_append_ms, self._age_ms_max
        )


def _is_fresh(entry: Entry, index: int, fresh: list[HalfRead]) -> bool:
    return any(half is entry.messages[index] for half in fresh)


def _take_history(entry: Entry, half: HalfRead, *, copy: bool) -> None:
    """Take what a copy says about the life of its transaction so far."""
    if copy:
        metadata = half.metadata
        entry.check_times = max(entry.check_times, metadata.check_times)
        entry.first_append_ms = min(entry.first_append_ms, metadata.first_append_timestamp)

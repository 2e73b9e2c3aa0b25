"""Planted defects of deferred deliveries and of partitions that are away.

Most show where real topics refuse and partitions go away, in one of seven runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.deferred import Deferred
from halfbridge.checker.core.entries import Decided
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.ops import Ops
from halfbridge.checker.loop import barriers
from halfbridge.checker.loop.producers import TransactionalIds
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.topic_watch import TopicWatch
from halfbridge.serde.protocol import Effect
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import OpRead
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import HalfMetadata

# --- deferred deliveries -------------------------------------------------------------------

_progress = Ledger.progress
_contradict = Ops._contradict
_retry_deferred = Ops.retry_deferred
_waiting = Deferred.__iter__
_offsets = Deferred.offsets


def _never_behind(self: Deferred, entry: Entry) -> bool:
    return False


def _last_decision_wins(self: Ops, entry: Entry, read: OpRead, now_ms: int) -> None:
    if entry.deferred is None:
        _contradict(self, entry, read, now_ms)
        return
    before, self._book.deferred = self._book.deferred, Deferred()
    for each, commit in before:
        if each is not entry:
            self._book.deferred.add(each, commit)
    self._roll_back(entry, read, now_ms)


def _half_beyond_deferred(self: Ledger, copies_end: int = 0) -> Progress:
    progress = _progress(self, copies_end)
    undecided = [entry.offset for entry in self.undecided()]
    return replace(progress, half=min([progress.position, *undecided]))


def _ops_beyond_deferred(self: Decided, op: int) -> int:
    return next((each.op_offset for each in self._queue if each.deferred is None), op)


def _newest_first(self: Deferred) -> Iterator[tuple[Entry, OpRead]]:
    return reversed([*_waiting(self)])


def _ascending(self: Deferred) -> tuple[int, ...]:
    return tuple(sorted(_offsets.fget(self)))


def _drop_the_oldest(self: Ops, now_ms: int) -> None:
    entry, read = self._book.deferred.pop()
    self._roll_back(entry, read, now_ms)


def _forget_beyond_the_plan(self: Ops, awaits: Any, now_ms: int, **limits: int) -> bool:
    before = len(self._book.deferred)
    has_room = _retry_deferred(self, awaits, now_ms, **limits)
    if not has_room and len(self._book.deferred) < before:
        self._book.deferred = Deferred()
    return has_room


# --- partitions that are away --------------------------------------------------------------

_place = Routes.place
_started = TransactionalIds.started
_ends = barriers._Writer.ends
_refresh = TopicWatch.refresh


def _write_elsewhere(self: Routes, metadata: HalfMetadata, key: bytes | None) -> int:
    away = self._away.get(metadata.real_topic)
    return self.any_partition(metadata.real_topic, key) if away else _place(self, metadata, key)


def _take_any_id(
    self: TransactionalIds, start: Callable[[str], Any], in_use: Collection[str] = ()
) -> Any:
    return _started(self, start)


def _believe_silence(
    self: barriers._Writer, topic: str, partitions: Iterable[int], stall_s: float
) -> tuple[dict[int, int], dict[int, bool]]:
    ends, silent = _ends(self, topic, partitions, stall_s)
    return {**ends, **dict.fromkeys(silent, 0)}, {}


def _remember_away(self: TopicWatch, now: float) -> None:
    _refresh(self, now)
    known: set[int] = self.__dict__.setdefault("known_away", set())
    known.update(number for topic, number in self.own_away() if topic == self._names.half)


def _away_for_ever(self: TopicWatch, number: int) -> bool:
    return number in self.__dict__.get("known_away", ())


AWAY = (
    Mutation(
        "later one of the key overtakes",
        100,
        ((Deferred, "holds_key_of", _never_behind),),
        begin=52,
    ),
    Mutation(
        "ROLLBACK wins over a deferred COMMIT",
        100,
        ((Ops, "_DO", {**Ops._DO, Effect.CONFLICT: _last_decision_wins}),),
        begin=74,
    ),
    Mutation(
        "H beyond deferred messages", 100, ((Ledger, "progress", _half_beyond_deferred),), begin=20
    ),
    Mutation(
        "T beyond a deferred op", 100, ((Decided, "lowest_op", _ops_beyond_deferred),), begin=89
    ),
    Mutation(
        "newest deferred delivery first",
        100,
        ((Deferred, "__iter__", _newest_first), (Deferred, "offsets", property(_ascending))),
        begin=46,
    ),
    Mutation(
        "wait that is cut short is lost",
        100,
        ((Ops, "end_oldest_wait", _drop_the_oldest),),
        begin=93,
    ),
    Mutation(
        "deferred deliveries beyond the plan are lost",
        100,
        ((Ops, "retry_deferred", _forget_beyond_the_plan),),
        begin=74,
    ),
    Mutation(
        "written beside a partition that is away",
        100,
        ((Routes, "place", _write_elsewhere),),
        begin=480,
    ),
    Mutation(
        "one id for two producers", 100, ((TransactionalIds, "started", _take_any_id),), begin=23
    ),
    Mutation(
        "silence believed to be an end",
        100,
        ((barriers._Writer, "ends", _believe_silence),),
        begin=52,
    ),
    Mutation(
        "half partition away for ever",
        100,
        (
            (TopicWatch, "refresh", _remember_away),
            (TopicWatch, "is_half_away", _away_for_ever),
        ),
        begin=50,
    ),
)

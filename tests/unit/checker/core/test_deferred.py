"""Deliveries that wait for a real topic: other deliveries, order, and the end of the wait."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from halfbridge.checker.core import deferred
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Count, Plan
from halfbridge.serde.progress import START, Progress
from halfbridge.serde.records import OpKind
from tests.ledger_log import (
    BEGIN_MS,
    HOUR_MS,
    SETTINGS,
    UNLIMITED,
    Log,
    Reader,
    dead,
    delivered,
    metadata,
    op_record,
)

KEY, OTHER_KEY = 1, 2


class Scene:
    """A log, a reader, and missing topics."""

    def __init__(self, **settings: int) -> None:
        self.log = Log()
        self.settings = replace(SETTINGS, **settings)
        self.reader = Reader(self.log, self.settings, START)
        self.progress: Progress = START
        self.away = {"away"}
        self.now_ms = BEGIN_MS

    def stores(self, name: str, topic: str = "orders", key: int = -1, index: int = 0) -> int:
        """Store a half message; return its offset."""
        reported = metadata(name, index)._replace(real_topic=topic)
        return self.log.append_half(reported, self.now_ms, key_number=key)

    def commits(self, name: str, topic: str = "orders", key: int = -1) -> int:
        """Store a transaction of one message and commit it; return the op offset."""
        return self.says(name, OpKind.COMMIT, self.stores(name, topic, key))

    def says(self, name: str, kind: OpKind, half_offset: int) -> int:
        """Append an op; return its offset."""
        return self.log.append_op(op_record(name, kind, half_offset=half_offset), self.now_ms)

    def works(self, *, records_max: int = UNLIMITED, retry: bool = True) -> Plan:
        """Read everything, then take, write and commit a plan; return it."""
        self.reader.read()
        ledger = self.reader.ledger
        plan = ledger.plan(
            self.now_ms,
            records_max=records_max,
            size_bytes_max=UNLIMITED,
            awaits=self._awaits,
            retry=retry,
        )
        self.progress = ledger.progress(self.log.write(plan, self.now_ms))
        ledger.committed(self.progress)
        return plan

    def restarts(self) -> None:
        """Let another worker take over."""
        self.reader = Reader(self.log, self.settings, self.progress)

    def _awaits(self, messages: Sequence[HalfRead], _op_append_ms: int, _again: bool) -> bool:
        return any(half.metadata.real_topic in self.away for half in messages)


@pytest.mark.parametrize("restarts", [False, True])
def test_others_go_on_and_it_comes_once(*, restarts: bool) -> None:
    """Offsets pass the waiting COMMIT; it is delivered once, also by a worker that takes over."""
    scene = Scene()
    waits = scene.commits("A", "away")
    scene.commits("B")
    plan = scene.works()
    assert plan.counts[Count.DEFERRED] == 1
    assert scene.log.written == [*delivered("B")]
    assert (scene.progress.op, scene.progress.deferred) == (2, (waits,))
    assert scene.progress.half == 0
    assert scene.progress.ops_from <= waits
    if restarts:
        scene.restarts()
        scene.works()
        assert scene.log.written == [*delivered("B")]
    scene.away.clear()
    scene.works()
    assert scene.log.written == [*delivered("B"), *delivered("A")]
    assert scene.progress.deferred == ()
    scene.restarts()
    scene.works()
    assert scene.log.written == [*delivered("B"), *delivered("A")]


def test_later_transactions_of_the_key_come_after_it() -> None:
    """Later transactions of the key in each of its topics wait; other keys and topics do not."""
    scene = Scene()
    scene.stores("A", "away", KEY)
    scene.says("A", OpKind.COMMIT, scene.stores("A", "orders", KEY, index=1))
    scene.commits("B", "orders", OTHER_KEY)
    scene.commits("C", "orders", KEY)
    scene.commits("D", "bills", KEY)
    scene.works()
    scene.commits("E", "orders", KEY)
    scene.works(retry=False)
    assert scene.log.written == [*delivered("B"), *delivered("D")]
    scene.away.clear()
    scene.commits("F", "orders", KEY)
    scene.works(records_max=2)
    for _ in range(2):
        scene.works(records_max=2, retry=False)
    assert scene.log.written[2:] == [
        *delivered("A", 0, 1),
        *(line for name in "CEF" for line in delivered(name)),
    ]


def test_it_is_decided_while_it_waits() -> None:
    """While it waits, a later ROLLBACK is a conflict, and no check is sent."""
    scene = Scene()
    half = scene.stores("A", "away")
    scene.says("A", OpKind.COMMIT, half)
    scene.works()
    scene.says("A", OpKind.ROLLBACK, half)
    scene.says("A", OpKind.COMMIT, half)
    plan = scene.works()
    assert (plan.counts[Count.CONFLICT], plan.counts[Count.DUPLICATE]) == (1, 1)
    scene.now_ms += HOUR_MS
    scene.reader.ledger.op_end(scene.log.op_end, scene.now_ms)
    scene.works()
    assert scene.reader.ledger.checks(scene.now_ms, 10) == []
    assert [*scene.reader.ledger.undecided()] == []
    scene.away.clear()
    scene.works()
    assert scene.log.written == [*delivered("A")]


def test_a_message_that_comes_during_the_wait_is_late() -> None:
    """A message that is stored during the wait becomes LATE."""
    scene = Scene()
    scene.commits("A", "away")
    scene.works()
    scene.stores("A", "away", index=1)
    scene.works()
    assert scene.log.written == []
    scene.away.clear()
    scene.works()
    assert scene.log.written == [*delivered("A"), *dead("A", "LATE", 1)]


@pytest.mark.parametrize("limit", ["DEFERRED_MAX", "KEYS_MAX", "MESSAGES_MAX"])
def test_the_oldest_waits_no_longer_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Beyond each limit of what is deferred the oldest are delivered without a further wait."""
    monkeypatch.setattr(deferred, limit, 2)
    scene = Scene()
    for key, name in enumerate("ABCD"):
        scene.commits(name, "away", key if limit == "KEYS_MAX" else -1)
    plan = scene.works()
    assert plan.counts[Count.WAIT_CUT_SHORT] == 2
    assert scene.log.written == [*delivered("A"), *delivered("B")]
    assert len(scene.progress.deferred) == 2


def test_metadata_stay_below_kafkas_limit() -> None:
    """The metadata of many deferred ops far apart is below 4,096 characters."""
    scene = Scene()
    for number in range(400):
        scene.log.op_end += 10**9
        scene.commits(f"T{number}", "away")
    scene.works()
    assert 200 < len(scene.progress.deferred) < 400
    assert len(scene.progress.metadata()) < 4_096


def test_a_rebuild_reads_a_bounded_number_of_ops_for_it() -> None:
    """A wait ends after republish_window_records later ops were applied."""
    scene = Scene(republish_window_records=5)
    scene.commits("A", "away")
    scene.works()
    for number in range(5):
        scene.commits(f"T{number}")
        scene.works()
    assert "deliver A[0]" not in scene.log.written
    scene.commits("U")
    scene.works()
    assert "deliver A[0]" in scene.log.written


def test_nothing_waits_where_memory_is_scarce() -> None:
    """With scarce memory the wait ends, since it keeps all later decisions in memory."""
    scene = Scene(entries_bytes_max=4_000)
    scene.commits("A", "away")
    scene.works()
    assert scene.progress.deferred
    scene.commits("B")
    scene.works()
    assert scene.log.written == [*delivered("A"), *delivered("B")]

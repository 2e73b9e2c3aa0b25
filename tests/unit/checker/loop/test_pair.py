"""How a pair handles consumed records, and restores bodies that were released."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import DeadHalf, DeadJunk, Delivery, Plan, PutBack, PutBackRule
from halfbridge.checker.loop.pair import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Pair,
    restore_plan,
)
from halfbridge.checker.loop.publish import Publisher, Sizes
from halfbridge.checker.loop.routes import Routes
from halfbridge.serde.progress import START
from halfbridge.serde.record_size import bytes_at_most
from halfbridge.serde.records import DeadReason
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS, UNLIMITED, metadata


class Message:
    """A record as the client returns it."""

    def __init__(
        self,
        offset: int,
        value: bytes = b"junk",
        *,
        has_bad_name: bool = False,
        timestamp: tuple[int, int] = (TIMESTAMP_LOG_APPEND_TIME, 1_000),
    ) -> None:
        self._offset = offset
        self._timestamp = timestamp
        self._value = value
        self._has_bad_name = has_bad_name
        self.times_asked = 0

    def __len__(self) -> int:
        return len(self._value)

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return its append time, or its writer's timestamp."""
        return self._timestamp

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        """Return its headers, or raise if one of them has an invalid name."""
        self.times_asked += 1
        if self._has_bad_name:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return [("h", b"12345")]


@pytest.fixture
def pair() -> Pair:
    names = TopicNames()
    publisher = Publisher(names, 0, Routes(0), Sizes(lambda _: None))
    pair = Pair(0, SETTINGS, START, publisher, began=0.0)
    pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
    return pair


def test_a_letter_that_waits_is_work(pair: Pair) -> None:
    """A pair with waiting letters has work until all are written."""
    for offset in range(2):
        pair.add_half(Message(offset), 0.0)
    assert pair.has_work
    for is_left in (True, False):
        pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
        assert pair.has_work is is_left
        pair.ledger.committed(pair.ledger.progress())


def test_what_cannot_be_read_is_weighed(pair: Pair) -> None:
    """The size of unreadable records counts key, value, headers and overhead."""
    bad = Message(1, has_bad_name=True)
    pair.add_half(Message(0), 0.0)
    pair.add_half(bad, 0.0)
    pair.add_op(Message(0, b"broken"), 0.0)
    plan = pair.ledger.plan(0, records_max=10, size_bytes_max=UNLIMITED)
    header: list[tuple[str, bytes | None]] = [("h", b"12345")]
    around = RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES
    assert [each.record.size_bytes for each in plan.junk] == [
        bytes_at_most(b"k", b"junk", header) + around,
        bytes_at_most(b"k", b"junk", None) + RECORD_OVERHEAD_BYTES,
        bytes_at_most(b"k", b"broken", header) + around,
    ]
    assert plan.size_bytes == sum(each.record.size_bytes for each in plan.junk)
    assert bad.times_asked == 1


def test_junk_is_given_its_body_back() -> None:
    """Only missing bodies are read; one with an unreadable header has its key and value."""
    asked: list[int] = []

    def read(offsets: Iterable[int]) -> dict[int, Any]:
        asked.extend(offsets)
        return {1: Message(1), 2: Message(2, has_bad_name=True)}

    held = JunkRead(0, 0, "broken", 1, Message(0))
    records = [held, *(JunkRead(offset, 0, "broken", 1, None) for offset in (1, 2))]
    plan = Plan(junk=[DeadJunk(record, is_op=False) for record in records])
    restore_plan(plan, read)
    assert asked == [1, 2]
    bodies: list[Any] = [each.record.body for each in plan.junk]
    assert bodies[0] is held.body
    assert [body.headers() for body in bodies[1:]] == [[("h", b"12345")], None]
    assert [(body.key(), body.value()) for body in bodies] == [(b"k", b"junk")] * 3


@pytest.mark.parametrize("is_half", [True, False])
def test_a_time_that_a_client_wrote_moves_nothing(pair: Pair, *, is_half: bool) -> None:
    """A CreateTime record is read, but changes neither partition time nor latest append time."""
    take = pair.add_half if is_half else pair.add_op
    for offset, ahead_ms in enumerate((0, 10**12)):
        take(Message(offset, timestamp=(TIMESTAMP_CREATE_TIME, 5_000 + ahead_ms)), 0.0)
        assert (pair.now_ms(9.0), pair.latest_ms) == (0, 0)
    take(Message(2), 1.0)
    take(Message(3, timestamp=(TIMESTAMP_CREATE_TIME, 10**12)), 2.0)
    assert (pair.now_ms(3.0), pair.latest_ms) == (3_000, 1_000)
    dead = pair.ledger.plan(3_000, records_max=UNLIMITED, size_bytes_max=UNLIMITED).junk
    assert [each.record.append_ms for each in dead] == [-1, -1, 1_000, -1]


def _half(offset: int) -> HalfRead:
    return HalfRead(offset, 0, metadata("A"), "", 100, f"body {offset}", body_bytes=400)


def test_a_plan_that_waits_lets_its_bodies_go() -> None:
    """Bodies beyond the budget are released until the plan is written, except those of ops."""
    names = TopicNames()
    publisher = Publisher(names, 0, lambda _: "", sizes=Sizes(lambda _: None))
    pair = Pair(0, replace(SETTINGS, ledger_bytes_max=1_000), START, publisher, began=0.0)
    pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
    delivery = Delivery("A", "orders", (_half(0),), 0, 0, 0, 0)
    dead = DeadHalf(_half(1), DeadReason.LATE, "", 0, -1, -1)
    put_back = PutBack(_half(2), metadata("A"), PutBackRule.WINDOW)
    junk = [
        DeadJunk(JunkRead(offset, 0, "", 10, f"body {offset}"), is_op=offset == 4)
        for offset in (3, 4)
    ]
    pair.held = Plan([delivery], [dead], junk, [put_back], body_bytes=990)

    pair.keep_bodies(is_written=False)
    assert (pair.plan_bytes, pair.bodies_bytes) == (990, 990)
    pair.held.body_bytes = 1_001
    pair.keep_bodies(is_written=True)
    assert pair.plan_bytes == 1_001
    pair.keep_bodies(is_written=False)
    assert pair.plan_bytes == 10
    assert pair.held.deliveries[0].messages[0].body is None
    assert pair.held.dead[0].half.body is None
    assert pair.held.put_backs[0].half.body is None
    assert [each.record.body for each in pair.held.junk] == [None, "body 4"]

    restore_plan(pair.held, lambda offsets: {offset: Message(offset) for offset in offsets})
    assert pair.held.deliveries[0].messages[0].body is not None
    assert pair.plan_bytes == 3 * 400 + 2 * 10

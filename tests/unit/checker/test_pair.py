"""What a pair makes of the records it is handed, and of bodies that were let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from checker.core.events import JunkRead
from checker.core.plan import DeadJunk, Plan
from checker.core.progress import START
from checker.pair import RECORD_OVERHEAD_BYTES, Pair, restore_plan
from checker.publish import Publisher
from serde.topics import TopicNames
from tests.ledger_log import SETTINGS, UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterable


class Message:
    """A record as the client hands it over."""

    def __init__(self, offset: int, value: bytes = b"junk", *, has_bad_name: bool = False) -> None:
        self._offset = offset
        self._value = value
        self._has_bad_name = has_bad_name
        self.times_asked = 0

    def __len__(self) -> int:
        return len(self._value)

    def offset(self) -> int:
        """Return where it stands."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return its append time."""
        return 2, 1_000

    def key(self) -> bytes:
        """Return its key."""
        return b"k"

    def value(self) -> bytes:
        """Return its value."""
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        """Return its headers; once one of them could not be read, none can."""
        self.times_asked += 1
        if self._has_bad_name:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return [("h", b"12345")]


@pytest.fixture
def pair() -> Pair:
    """A pair that is rebuilt."""
    names = TopicNames()
    pair = Pair(0, SETTINGS, START, Publisher(names, 0, lambda _: ""), began=0.0)
    pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
    return pair


def test_a_letter_that_waits_is_work(pair: Pair) -> None:
    """The next plan need not wait for records to come."""
    for offset in range(2):
        pair.take_half(Message(offset), 0.0)
    assert pair.has_work
    for is_left in (True, False):
        pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
        assert pair.has_work is is_left


def test_what_cannot_be_read_is_weighed(pair: Pair) -> None:
    """As half messages are: value, headers, and what is around them."""
    bad = Message(1, has_bad_name=True)
    pair.take_half(Message(0), 0.0)
    pair.take_half(bad, 0.0)
    pair.take_op(Message(0, b"broken"), 0.0)
    plan = pair.ledger.plan(0, records_max=10, size_bytes_max=UNLIMITED)
    sizes = [each.record.size_bytes - RECORD_OVERHEAD_BYTES for each in plan.junk]
    assert sizes == [4 + 5, 4, 6 + 5]
    assert plan.size_bytes == sum(sizes) + 3 * RECORD_OVERHEAD_BYTES
    assert bad.times_asked == 1


def test_junk_is_given_its_body_back() -> None:
    """Also what the client cannot read the headers of; what has its body is left alone."""
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

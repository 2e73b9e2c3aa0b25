"""From plans to records: dead letters and deliveries that do not fit where they have to go."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import DeadHalf, DeadJunk, Delivery, Plan
from halfbridge.checker.loop.publish import (
    Outgoing,
    PlanRecords,
    Publisher,
    Sizes,
    bytes_alone,
    bytes_at_most,
)
from halfbridge.checker.loop.routes import Routes
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF, parse_half, real_headers, real_identity
from halfbridge.serde.limits import DETAIL_BYTES_MAX, STUB_BYTES_MAX
from halfbridge.serde.records import DeadDecision, DeadLetter, DeadReason
from halfbridge.serde.topics import TopicNames
from tests.playbook import metadata

NAMES = TopicNames()
ROUTES = Routes(0)
ROUTES.update({"real": SeenTopic(1, 1)}, 0)


class Body:
    """A consumed record."""

    def __init__(self, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
        self._value, self._headers = value, headers

    def key(self) -> bytes:
        """Return the key."""
        return b"key"

    def value(self) -> bytes:
        """Return the value."""
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers."""
        return self._headers


def _half(value: bytes, *, size_bytes: int = 1_000_000) -> HalfRead:
    return HalfRead(7, 1, metadata("A" * 32), "", size_bytes, Body(value, [("mine", b"1")]))


def _written(plan: Plan, **limits: int) -> PlanRecords:
    by_topic = {NAMES.dead: limits.get("dead"), "real": limits.get("real")}
    return Publisher(NAMES, 3, ROUTES, Sizes(by_topic.get)).records(plan, 5)


def _letter(record: Outgoing) -> DeadLetter:
    return DEAD_LETTER.decode(dict(record.headers)[DEAD] or b"")


def _dead(value: bytes, detail: str = "", **fields: Any) -> Plan:
    half = _half(value)
    return Plan(dead=[DeadHalf(half, DeadReason.INCOMPLETE, detail, 2, 9, 8, **fields)])


def test_a_letter_that_fits_is_the_record_as_it_stood() -> None:
    """To the last byte that the topic takes."""
    plan = _dead(b"value", decision=DeadDecision.COMMIT)
    (whole,) = _written(plan).records
    assert (whole.key, whole.value, whole.headers[0]) == (b"key", b"value", ("mine", b"1"))
    limit = bytes_at_most(whole.key, whole.value, whole.headers)
    assert _written(plan, dead=limit) == ([whole], [], 0)
    assert (_letter(whole).is_stub, _letter(whole).decision) == (False, DeadDecision.COMMIT)


def test_a_letter_that_does_not_fit_becomes_a_stub() -> None:
    """It says why, what decided, where the record stands, and whose it is; nothing of its body."""
    plan = _dead(b"value", "of 2 messages 1", decision=DeadDecision.COMMIT)
    (stub,), _, stubs = _written(plan, dead=100)
    assert stubs == 1
    assert (stub.topic, stub.key, stub.value) == (NAMES.dead, None, None)
    assert [name for name, _ in stub.headers] == [HALF, DEAD]
    assert parse_half(stub.headers[:1])[0] == metadata("A" * 32)
    assert _letter(stub) == DeadLetter(
        reason=DeadReason.INCOMPLETE,
        detail="of 2 messages 1",
        check_times=2,
        decided_timestamp=8,
        op_offset=9,
        source_topic=NAMES.half,
        source_partition=3,
        source_offset=7,
        decision=DeadDecision.COMMIT,
        is_stub=True,
    )


def test_a_reference_needs_no_body() -> None:
    """The ledger asks for it where a transaction is too large; the body is not even read again."""
    half = _half(b"")._replace(body=None)
    dead = DeadHalf(half, DeadReason.TOO_LARGE, "", 0, 1, 1, by_reference=True)
    (stub,), _, stubs = _written(Plan(dead=[dead]))
    assert (stubs, _letter(stub).is_stub, stub.value) == (1, True, None)


@pytest.mark.parametrize("is_op", [False, True])
def test_junk_that_does_not_fit_becomes_a_stub(*, is_op: bool) -> None:
    """Of an unreadable record only its place can be told."""
    record = JunkRead(4, 1, "broken", 10, Body(b"x" * 500, []))
    (stub,), _, stubs = _written(Plan(junk=[DeadJunk(record, is_op=is_op)]), dead=400)
    letter = _letter(stub)
    assert (stubs, letter.is_stub, letter.reason) == (1, True, DeadReason.INVALID)
    assert letter.source_topic == (NAMES.op if is_op else NAMES.half)
    assert (letter.source_partition, letter.source_offset) == (3, 4)
    assert [name for name, _ in stub.headers] == [DEAD]


def test_a_detail_is_cut() -> None:
    """What it quotes may be of any length, and of any characters."""
    (record,) = _written(_dead(b"", "\ud800" + "é" * 10_000)).records
    detail = _letter(record).detail
    assert len(detail.encode()) <= DETAIL_BYTES_MAX
    assert (detail[:8], detail[-10:]) == ("\\ud800éé", " ... (cut)")


def test_no_stub_is_larger_than_is_said() -> None:
    """With the longest metadata and detail, and the longest name that a topic can have."""
    names = TopicNames("p" * (249 - len(TopicNames().half)))
    told = metadata("A" * 32)._replace(real_topic="t" * 2_000, producer_group="g" * 1_990)
    half = HalfRead(1 << 62, 1, told, "", 10**9, Body(b"", []))
    dead = DeadHalf(half, DeadReason.UNDELIVERABLE, "d" * 9_999, 99, 1 << 62, 1 << 62)
    publisher = Publisher(names, 1 << 30, ROUTES, Sizes({names.dead: 0}.get))
    (stub,) = publisher.records(Plan(dead=[dead]), 5).records
    assert 5_000 < bytes_at_most(stub.key, stub.value, stub.headers) <= STUB_BYTES_MAX


def test_a_message_that_its_real_topic_does_not_take_is_undeliverable() -> None:
    """Known by its exact size before the kafka_txn; the others of its transaction go with it."""
    small, large = _half(b"small"), _half(b"large" * 100)
    plan = Plan(deliveries=[Delivery("A" * 32, "orders", (small, large), 0, 1, 9, 8)])
    delivered = _written(plan).records
    assert [record.topic for record in delivered] == ["real", "real"]
    exact = bytes_alone(delivered[1].key, delivered[1].value, delivered[1].headers)
    assert _written(plan, real=exact).records == delivered
    letters, refused, _ = _written(plan, real=exact - 1)
    assert [(_letter(each).reason, each.topic) for each in letters] == [
        (DeadReason.UNDELIVERABLE, NAMES.dead)
    ] * 2
    assert [each.half.body for each in refused] == [None] * 2
    assert _letter(letters[0]).detail == f"message 0 of {exact} bytes; topic real takes {exact - 1}"


@pytest.mark.parametrize("resume_count", [0, 1])
def test_a_message_keeps_its_identity_however_often_it_is_delivered(resume_count: int) -> None:
    """What was a dead letter and is resumed comes with the id and the index that it had."""
    told = metadata("A" * 32)
    halves = tuple(
        _half(b"v")._replace(metadata=told._replace(message_index=index, resume_count=resume_count))
        for index in (0, 1, 999)
    )
    plan = Plan(deliveries=[Delivery("A" * 32, "orders", halves, 0, 1, 9, 8)])
    records = _written(plan).records
    assert [real_identity(each.headers) for each in records] == [
        ("A" * 32, 0),
        ("A" * 32, 1),
        ("A" * 32, 999),
    ]
    assert records[0].headers == real_headers([("mine", b"1")], "A" * 32, told.born_timestamp)


@pytest.mark.parametrize("index", [0, 999])
def test_the_headers_of_a_real_record_are_reckoned_with(index: int) -> None:
    """A half that just fits its real topic becomes a record that may not: exactly weighed."""
    told = metadata("A" * 32)._replace(message_index=index, born_timestamp=(1 << 63) - 1)
    body = Body(b"value" * 100, [(HALF, HALF_METADATA.encode(told))])
    size_bytes = bytes_at_most(body.key(), body.value(), body.headers())
    half = HalfRead(7, 1, told, "", size_bytes, body)
    plan = Plan(deliveries=[Delivery("A" * 32, "orders", (half,), 0, 1, 9, 8)])
    (record,) = _written(plan).records
    exact = bytes_alone(record.key, record.value, record.headers)
    assert _written(plan, real=exact).records == [record]
    assert [each.topic for each in _written(plan, real=exact - 1).records] == [NAMES.dead]

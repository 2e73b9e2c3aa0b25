"""Records of plans: dead letters and deliveries that exceed the limit of their topic."""

from typing import Any

import pytest

from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import DeadHalf, DeadJunk, Delivery, Plan
from halfbridge.checker.loop.publish import (
    CLIENTS_CLOCK,
    LEARNED_MAX,
    LEARNED_MS,
    Outgoing,
    PlanRecords,
    Publisher,
    Sizes,
    TimestampSource,
)
from halfbridge.checker.loop.routes import Routes
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF, parse_half, real_headers, real_identity
from halfbridge.serde.limits import DETAIL_BYTES_MAX, STUB_BYTES_MAX
from halfbridge.serde.record_size import bytes_alone, bytes_at_most
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
        return b"key"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
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
    """A letter of exactly the topic's limit is written with the whole record."""
    plan = _dead(b"value", decision=DeadDecision.COMMIT)
    (whole,) = _written(plan).records
    assert (whole.key, whole.value, whole.headers[0]) == (b"key", b"value", ("mine", b"1"))
    limit = bytes_at_most(whole.key, whole.value, whole.headers)
    assert _written(plan, dead=limit) == ([whole], [], 0)
    assert (_letter(whole).is_stub, _letter(whole).decision) == (False, DeadDecision.COMMIT)


def test_a_letter_that_does_not_fit_becomes_a_stub() -> None:
    """A stub has reason, decision, position and metadata of the record, but no key or value."""
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
    """A letter by reference is a stub, without a body in memory."""
    half = _half(b"")._replace(body=None)
    dead = DeadHalf(half, DeadReason.TOO_LARGE, "", 0, 1, 1, by_reference=True)
    (stub,), _, stubs = _written(Plan(dead=[dead]))
    assert (stubs, _letter(stub).is_stub, stub.value) == (1, True, None)


@pytest.mark.parametrize("is_op", [False, True])
def test_junk_that_does_not_fit_becomes_a_stub(*, is_op: bool) -> None:
    """The stub of an unreadable record has only its position."""
    record = JunkRead(4, 1, "broken", 10, Body(b"x" * 500, []))
    (stub,), _, stubs = _written(Plan(junk=[DeadJunk(record, is_op=is_op)]), dead=400)
    letter = _letter(stub)
    assert (stubs, letter.is_stub, letter.reason) == (1, True, DeadReason.INVALID)
    assert letter.source_topic == (NAMES.op if is_op else NAMES.half)
    assert (letter.source_partition, letter.source_offset) == (3, 4)
    assert [name for name, _ in stub.headers] == [DEAD]


def test_a_detail_is_cut() -> None:
    """A detail is cut to DETAIL_BYTES_MAX, and invalid characters are escaped."""
    (record,) = _written(_dead(b"", "\ud800" + "é" * 10_000)).records
    detail = _letter(record).detail
    assert len(detail.encode()) <= DETAIL_BYTES_MAX
    assert (detail[:8], detail[-10:]) == ("\\ud800éé", " ... (cut)")


def test_no_stub_exceeds_the_documented_size() -> None:
    """A stub with the longest metadata, detail and topic name is within STUB_BYTES_MAX."""
    names = TopicNames("p" * (249 - len(TopicNames().half)))
    reported = metadata("A" * 32)._replace(real_topic="t" * 2_000, producer_group="g" * 1_990)
    half = HalfRead(1 << 62, 1, reported, "", 10**9, Body(b"", []))
    dead = DeadHalf(half, DeadReason.UNDELIVERABLE, "d" * 9_999, 99, 1 << 62, 1 << 62)
    publisher = Publisher(names, 1 << 30, ROUTES, Sizes({names.dead: 0}.get))
    (stub,) = publisher.records(Plan(dead=[dead]), 5).records
    assert 5_000 < bytes_at_most(stub.key, stub.value, stub.headers) <= STUB_BYTES_MAX


def test_a_message_that_its_real_topic_does_not_take_is_undeliverable() -> None:
    """If one message exceeds its real topic's limit, the transaction becomes UNDELIVERABLE."""
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
    """A message is delivered with its id and index, also after a resume."""
    reported = metadata("A" * 32)
    halves = tuple(
        _half(b"v")._replace(
            metadata=reported._replace(message_index=index, resume_count=resume_count)
        )
        for index in (0, 1, 999)
    )
    plan = Plan(deliveries=[Delivery("A" * 32, "orders", halves, 0, 1, 9, 8)])
    records = _written(plan).records
    assert [real_identity(each.headers) for each in records] == [
        ("A" * 32, 0),
        ("A" * 32, 1),
        ("A" * 32, 999),
    ]
    assert records[0].headers == real_headers([("mine", b"1")], "A" * 32, reported.born_timestamp)


@pytest.mark.parametrize("index", [0, 999])
def test_the_headers_of_a_real_record_are_reckoned_with(index: int) -> None:
    """The exact size of the real record with its headers is compared with the topic's limit."""
    reported = metadata("A" * 32)._replace(message_index=index, born_timestamp=(1 << 63) - 1)
    body = Body(b"value" * 100, [(HALF, HALF_METADATA.encode(reported))])
    size_bytes = bytes_at_most(body.key(), body.value(), body.headers())
    half = HalfRead(7, 1, reported, "", size_bytes, body)
    plan = Plan(deliveries=[Delivery("A" * 32, "orders", (half,), 0, 1, 9, 8)])
    (record,) = _written(plan).records
    exact = bytes_alone(record.key, record.value, record.headers)
    assert _written(plan, real=exact).records == [record]
    assert [each.topic for each in _written(plan, real=exact - 1).records] == [NAMES.dead]


# --- sizes of records in a log, and known size limits of topics ----------------------------

KIB = 1024


@pytest.mark.parametrize("key", [None, b"", b"k" * 63, b"k" * 64])
@pytest.mark.parametrize("value_bytes", [0, 63, 64, 8191, 8192, 1_048_576])
@pytest.mark.parametrize("header_count", [0, 1, 64])
def test_the_estimate_is_never_too_small(
    key: bytes | None, value_bytes: int, header_count: int
) -> None:
    """The estimate is too large by at most 30 bytes and 6 per header, and never too small."""
    value = b"v" * value_bytes
    headers = [("näme", b"x" * 70), *[("n", None)] * (header_count - 1)] if header_count else []
    exact = bytes_alone(key, value, headers)
    assert exact <= bytes_at_most(key, value, headers) <= exact + 30 + 6 * header_count


def test_a_topic_of_which_nothing_is_known_takes_all() -> None:
    """A topic without a known limit fits every record."""
    sizes = Sizes(lambda _topic: None)
    assert sizes.limit("t") is None
    assert sizes.fits("t", 1 << 40)


def test_what_was_learned_counts_where_it_is_less() -> None:
    """The limit is the smaller of the configured and the learned one."""
    sizes = Sizes({"a": 1_000, "b": 10}.get)
    for topic in ("a", "b", "c"):
        sizes.learn(topic, 100, 0)
    assert [sizes.limit(topic) for topic in ("a", "b", "c", "d")] == [100, 10, 100, None]
    assert (sizes.fits("a", 100), sizes.fits("a", 101)) == (True, False)


def test_what_was_learned_is_forgotten() -> None:
    """A learned limit expires after LEARNED_MS, ten minutes."""
    sizes = Sizes(lambda _topic: None)
    sizes.learn("t", 100, 5)
    sizes.refresh(LEARNED_MS + 4)
    assert sizes.limit("t") == 100
    sizes.refresh(LEARNED_MS + 5)
    assert sizes.limit("t") is None


def test_what_is_configured_is_read_anew() -> None:
    """A configured limit is cached until the next refresh."""
    configured = {"t": 1}
    sizes = Sizes(configured.get)
    assert sizes.limit("t") == 1
    configured["t"] = 2
    assert sizes.limit("t") == 1
    sizes.refresh(0)
    assert sizes.limit("t") == 2


def test_names_of_topics_do_not_pile_up() -> None:
    """Beyond LEARNED_MAX topics the limit learned first is forgotten."""
    sizes = Sizes(lambda _topic: None)
    for number in range(LEARNED_MAX + 1):
        sizes.learn(str(number), KIB, 0)
    assert sizes.limit("0") is None
    assert sizes.limit("1") == sizes.limit(str(LEARNED_MAX)) == KIB


# --- the clock of record timestamps --------------------------------------------------------

NOW_MS = 1_700_000_000_000
LATEST_MS = NOW_MS - 3_600_000


def test_partition_time_until_it_is_refused() -> None:
    """After each refusal the next clock is used, and after the last one the first again."""
    stamps = TimestampSource()
    seen = []
    for _ in range(4):
        seen += [stamps.ms(NOW_MS, LATEST_MS), stamps.ms(NOW_MS, LATEST_MS)]
        stamps.refused(stamps.turn)

    assert seen[::2] == seen[1::2] == [NOW_MS, CLIENTS_CLOCK, LATEST_MS, NOW_MS]


def test_old_news_changes_nothing() -> None:
    """Several refusals of one turn's timestamps end only that turn."""
    stamps = TimestampSource()
    first = stamps.turn
    for _ in range(3):
        stamps.refused(first)

    assert stamps.ms(NOW_MS, LATEST_MS) == CLIENTS_CLOCK

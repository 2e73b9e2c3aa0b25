"""How the dead-letter topic is read, with Kafka clients whose answers a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Committed, Edge, Ports, SeenTopic, TopicPartition
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF, RESERVED, Headers
from halfbridge.serde.records import DeadLetter, DeadReason, new_half
from halfbridge.spark_jobs.sink.dead_letters import DeadLetters, Tally, await_delivery
from halfbridge.spark_jobs.sink.errors import RowError
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.rows import ContentHash, Row, check_schema, rows_of
from tests.fake_ports import Clock, fake_ports

OPTIONS = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app"})
TOPIC = OPTIONS.names.dead
SINCE = Tally(0, (0,), "A")
NOT_UTF_8 = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def letter(transaction_id: str) -> Headers:
    """Return the headers of a dead letter of the app."""
    half = new_half(
        transaction_id=transaction_id,
        born_timestamp=0,
        producer_group="spark-app",
        real_topic="orders",
        immunity_ms=0,
    )
    dead = DeadLetter(DeadReason.NOT_ALLOWED, "", 0, 0, 0, "half", 0, 0)
    return [(HALF, HALF_METADATA.encode(half)), (DEAD, DEAD_LETTER.encode(dead))]


@dataclass
class Record:
    """A record as the Kafka client hands it over."""

    at: int
    answers: Headers | Exception

    def headers(self) -> Headers:
        """Return its headers, or fail as the client does."""
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def error(self) -> None:
        """Return none: it is a record."""

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def __len__(self) -> int:
        """Return the bytes of its value."""
        return 10


@dataclass
class Kafka:
    """A dead-letter topic of one partition, and the clients that reach it.

    Attributes:
        clock: Advances while a caller waits.
        answers: Headers of each record, or the error that asking for them raises.
        end: What the leader says for read_committed; None: the records' own.
        ends_at_s: When it says the records' own end.
        failure: What asking for the topics raises.
        connects_s: How long the first record takes.
    """

    clock: Clock
    answers: list[Headers | Exception] = field(default_factory=list)
    end: int | None = None
    ends_at_s: float = float("inf")
    failure: KafkaFailure | None = None
    connects_s: float = 0.0
    position: int = 0
    topic_id: str = "A"

    def admin(self, _properties: dict[str, Any]) -> Kafka:
        """Return a client for questions."""
        return self

    def reader(self, _properties: dict[str, Any]) -> Kafka:
        """Return a client that reads."""
        return self

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        if self.failure is not None:
            raise self.failure
        return {TOPIC: SeenTopic(1, 1)}

    def ask_ends(
        self, places: list[TopicPartition], edge: Edge, _timeout_s: float
    ) -> dict[TopicPartition, Any]:
        """Return where the partition begins or ends."""
        offset = 0 if edge is Edge.START else self._end(edge)
        return {place: SimpleNamespace(result=lambda: offset) for place in places}

    def ask_topic_ids(self, topics: list[str], _timeout_s: float) -> dict[str, Any]:
        return {topic: SimpleNamespace(result=lambda: self.topic_id) for topic in topics}

    def read_from(self, offsets: dict[TopicPartition, int]) -> None:
        self.position = offsets[TOPIC, 0]

    def committed(
        self, places: dict[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, Committed]:
        """Return the daemon's place: behind all decisions."""
        assert timeout_s > 0
        return {place: Committed(1_000, "") for place in places}

    def poll(self, wait_s: float) -> Record | None:
        """Return the next record; without one the time is up."""
        if self.clock.now < self.connects_s or self.position >= len(self.answers):
            self.clock.now += wait_s
            return None
        self.position += 1
        return Record(self.position - 1, self.answers[self.position - 1])

    def take(self, _records_max: int) -> list[Record]:
        return []

    def close(self) -> None:
        """Close."""

    def _end(self, edge: Edge) -> int:
        is_whole = edge is Edge.END or self.clock.now >= self.ends_at_s
        return len(self.answers) if is_whole or self.end is None else self.end


Letters = tuple[Kafka, DeadLetters]


@pytest.fixture
def letters() -> Letters:
    """A dead-letter topic, and what reads it."""
    kafka = Kafka(Clock(0.0))
    return kafka, DeadLetters(OPTIONS, ports_of(kafka))


def ports_of(kafka: Kafka) -> Ports:
    """Return the outside, in which there is nothing else."""
    return fake_ports(kafka, kafka.clock)


def test_a_record_whose_headers_cannot_be_read_is_nobodys(letters: Letters) -> None:
    """Anybody who may write the topic can write one: it stops no sink, and hides no dead letter."""
    kafka, dead = letters
    kafka.answers = [NOT_UTF_8, letter("a"), SystemError("returned a result with an exception set")]
    poll = dead.read(SINCE)
    assert poll is not None
    assert [each.transaction_id for each in poll.letters] == ["a"]
    assert (poll.offsets, poll.unread) == ((3,), 0)


def test_brokers_that_do_not_answer_fail_no_batch(
    letters: Letters, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead letters are not counted now, a line is logged, and the next poll continues."""
    kafka, dead = letters
    kafka.answers = [letter("a")]
    kafka.failure = KafkaFailure(Code.TRANSPORT)
    with caplog.at_level("INFO"):
        assert dead.read(SINCE) is None
    assert "was not read: no broker answers" in caplog.text
    kafka.failure = None
    poll = dead.read(SINCE)
    assert poll is not None
    assert poll.offsets == (1,)


def test_offsets_never_go_back(letters: Letters) -> None:
    """A leader that was deposed tells an older end: what was counted is not read again."""
    kafka, dead = letters
    kafka.answers = [letter(f"{n}") for n in range(10)]
    kafka.end = 8
    poll = dead.read(Tally(0, (10,), "A"))
    assert poll == ((), (10,), 0, "A", False)


@pytest.mark.parametrize(
    ("before", "now", "is_recreated"),
    [("A", "A", False), ("A", "B", True), ("", "B", False), ("A", "", False)],
)
def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    letters: Letters, before: str, now: str, *, is_recreated: bool
) -> None:
    """By its id: offsets of the old topic mean nothing in it. Without an id nothing is guessed."""
    kafka, dead = letters
    kafka.answers = [letter("a"), letter("b")]
    kafka.topic_id = now
    poll = dead.read(Tally(0, (1,), before))
    assert poll is not None
    assert [each.transaction_id for each in poll.letters] == (["a", "b"] if is_recreated else ["b"])
    assert (poll.offsets, poll.topic_id, poll.is_recreated) == ((2,), now or before, is_recreated)


@pytest.mark.parametrize(("connects_s", "is_read"), [(9.0, True), (11.0, False)])
def test_a_poll_begins_when_the_brokers_answer(
    letters: Letters, *, connects_s: float, is_read: bool
) -> None:
    """A handshake that takes longer than a poll does not leave dead letters unread for ever."""
    kafka, dead = letters
    kafka.answers = [letter("a")]
    kafka.connects_s = connects_s
    poll = dead.read(SINCE)
    assert poll is not None
    assert (len(poll.letters), poll.unread) == ((1, 0) if is_read else (0, 1))


@pytest.mark.parametrize(("ends_at_s", "is_visible"), [(5.0, True), (11.0, False)])
def test_dead_letters_that_are_not_visible_yet_are_waited_for(
    letters: Letters, *, ends_at_s: float, is_visible: bool
) -> None:
    """The daemon's place is answers; its kafka_txn ends later in the dead-letter topic."""
    kafka, dead = letters
    kafka.answers = [letter("a")]
    kafka.position = 1
    kafka.end = 0
    kafka.ends_at_s = ends_at_s
    decisions = {0: 7}
    delivered = await_delivery(OPTIONS, ports_of(kafka), dead, decisions, timeout_ms=10_000)
    assert delivered is is_visible
    assert dead.ends() == ((1,) if is_visible else (0,))
    assert kafka.clock.now >= (ends_at_s if is_visible else 10.0)


# --- rows as Spark's own Kafka sink takes them, and their order-free hash ------------------

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "headers": ArrayType(PAIR),
    "map": MapType(StringType(), BinaryType()),
}


def schema(text: str) -> StructType:
    """Return a schema as Spark hands it over, of `name type, name type`."""
    columns = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.mark.parametrize(
    "columns",
    [
        "value binary",
        "value string, key string",
        "headers headers, partition int, topic string, value binary",
    ],
)
def test_what_sparks_sink_takes_is_taken(columns: str) -> None:
    """Any order of columns; value alone is enough."""
    check_schema(schema(columns), topic="orders")


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ("key binary", "t", "required attribute 'value' not found"),
        ("value binary", None, "topic option required"),
        ("value int", "t", "value attribute unsupported type int"),
        ("value binary, key bigint", "t", "key attribute unsupported type bigint"),
        ("value binary, partition bigint", "t", "partition attribute unsupported type bigint"),
        ("value binary, topic binary", "t", "topic attribute unsupported type binary"),
        ("value binary, headers map", "t", "headers attribute unsupported type"),
        ("value binary, amount int", "t", r"column amount is none of .*to_json"),
    ],
)
def test_other_schemas_are_refused(columns: str, topic: str | None, text: str) -> None:
    """Before anything runs, in the words of Spark's own sink."""
    with pytest.raises(RowError, match=text):
        check_schema(schema(columns), topic=topic)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    """Return an Arrow batch."""
    return pa.record_batch(list(columns.values()), names=list(columns))


def test_rows_are_byte_exact() -> None:
    """Null and empty are different things; text is UTF-8; headers keep order and repeats."""
    given = batch(
        key=pa.array(["ä", "", None]),
        value=pa.array([b"\xff\x00", b"", None], pa.binary()),
        partition=pa.array([2, None, 0], pa.int32()),
        headers=pa.array(
            [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], HEADERS
        ),
    )
    assert list(rows_of(given, topic="orders")) == [
        ("orders", 2, "ä".encode(), b"\xff\x00", [("h", b"1"), ("h", None)]),
        ("orders", -1, b"", b"", []),
        ("orders", 0, None, None, []),
    ]


def test_the_option_topic_wins_over_the_column() -> None:
    """As in Spark's own sink; without the option each row goes where it says."""
    given = batch(value=pa.array([b"v", b"w"]), topic=pa.array(["a", "b"]))
    assert [row[0] for row in rows_of(given, topic="c")] == ["c", "c"]
    assert [row[0] for row in rows_of(given, topic=None)] == ["a", "b"]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_headers_are_refused(name: str) -> None:
    """The daemon would not deliver them."""
    pairs = pa.array([[{"key": name, "value": b"1"}]], HEADERS)
    with pytest.raises(RowError, match="reserved"):
        list(rows_of(batch(value=pa.array([b"v"]), headers=pairs), topic="t"))


def test_rows_that_can_go_nowhere_are_refused() -> None:
    """A null topic, a negative partition, a header without a name, or none at all."""
    value = pa.array([b"v"])
    nameless = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(RowError, match="null topic present in the data"):
        list(rows_of(batch(value=value, topic=pa.array([None], pa.string())), topic=None))
    with pytest.raises(RowError, match="below 0"):
        list(rows_of(batch(value=value, partition=pa.array([-2], pa.int32())), topic="t"))
    with pytest.raises(RowError, match="without a name"):
        list(rows_of(batch(value=value, headers=nameless), topic="t"))
    missing = pa.array([[None]], nameless.type)
    with pytest.raises(RowError, match="a header that is null"):
        list(rows_of(batch(value=value, headers=missing), topic="t"))


DIFFERENT: list[Row] = [
    ("t", -1, b"k", b"v", []),
    ("u", -1, b"k", b"v", []),
    ("t", 0, b"k", b"v", []),
    ("t", -1, b"kv", b"", []),
    ("t", -1, b"kv", None, []),
    ("t", -1, b"", b"kv", []),
    ("t", -1, None, b"kv", []),
    ("tk", -1, b"", b"v", []),
    ("t", -1, b"k", b"v", [("a", b"b")]),
    ("t", -1, b"k", b"v", [("a", None)]),
    ("t", -1, b"k", b"v", [("a", b"")]),
    ("t", -1, b"k", b"v", [("ab", b"")]),
    ("t", -1, b"k", b"v", [("a", b"b"), ("a", b"b")]),
]


def hashed(*rows: Row) -> str:
    """Return the hash of some rows."""
    content = ContentHash()
    for row in rows:
        content.add(row)
    return content.hex()


def test_different_rows_have_different_hashes() -> None:
    """However bytes move between key, value, topic and headers."""
    for one, other in combinations(DIFFERENT, 2):
        assert hashed(one) != hashed(other)


def test_order_and_cut_do_not_matter_but_repeats_do() -> None:
    """Tasks add up to the batch, in any order; a row twice is not a row once, nor none."""
    whole = hashed(*DIFFERENT)
    assert hashed(*reversed(DIFFERENT)) == whole
    parts = ContentHash()
    for rows in (DIFFERENT[:4], DIFFERENT[4:]):
        part = ContentHash()
        for row in rows:
            part.add(row)
        parts.add_sum(part.sum())
    assert parts.hex() == whole
    assert len({hashed(), hashed(DIFFERENT[0]), hashed(*DIFFERENT[:1] * 2)}) == 3


def test_the_hash_stays_the_same_for_ever() -> None:
    """It is stored in manifests, and compared after an upgrade."""
    assert hashed(*DIFFERENT) == "8f3cf8d9988eb60b5d06b74c1d86b99e"

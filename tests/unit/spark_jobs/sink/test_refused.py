"""How the dead-letter topic is read, with Kafka clients that answer as they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Committed, Edge, Place, Ports, SeenTopic
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF, Headers
from halfbridge.serde.records import DeadLetter, DeadReason, new_half
from halfbridge.spark_jobs.sink.dead_letters import DeadLetters, Tally, await_delivery
from halfbridge.spark_jobs.sink.options import parse_options
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
    told: Headers | Exception

    def headers(self) -> Headers:
        """Return its headers, or fail as the client does."""
        if isinstance(self.told, Exception):
            raise self.told
        return self.told

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
        clock: Goes on while somebody waits.
        told: Headers of each record, or the error that asking for them raises.
        end: What the leader says for read_committed; None: the records' own.
        ends_at_s: When it says the records' own end.
        failure: What asking for the topics raises.
        connects_s: How long the first record takes.
    """

    clock: Clock
    told: list[Headers | Exception] = field(default_factory=list)
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

    def ask_ends(self, places: list[Place], edge: Edge, _timeout_s: float) -> dict[Place, Any]:
        """Return where the partition begins or ends."""
        offset = 0 if edge is Edge.START else self._end(edge)
        return {place: SimpleNamespace(result=lambda: offset) for place in places}

    def ask_topic_ids(self, topics: list[str], _timeout_s: float) -> dict[str, Any]:
        return {topic: SimpleNamespace(result=lambda: self.topic_id) for topic in topics}

    def read_from(self, offsets: dict[Place, int]) -> None:
        self.position = offsets[TOPIC, 0]

    def committed(self, places: dict[Place, int], timeout_s: float) -> dict[Place, Committed]:
        """Return the daemon's place: behind all decisions."""
        assert timeout_s > 0
        return {place: Committed(1_000, "") for place in places}

    def poll(self, wait_s: float) -> Record | None:
        """Return the next record; without one the time is up."""
        if self.clock.now < self.connects_s or self.position >= len(self.told):
            self.clock.now += wait_s
            return None
        self.position += 1
        return Record(self.position - 1, self.told[self.position - 1])

    def take(self, _records_max: int) -> list[Record]:
        return []

    def close(self) -> None:
        """Close."""

    def _end(self, edge: Edge) -> int:
        is_whole = edge is Edge.END or self.clock.now >= self.ends_at_s
        return len(self.told) if is_whole or self.end is None else self.end


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
    kafka.told = [NOT_UTF_8, letter("a"), SystemError("returned a result with an exception set")]
    poll = dead.read(SINCE)
    assert poll is not None
    assert [each.transaction_id for each in poll.letters] == ["a"]
    assert (poll.offsets, poll.unread) == ((3,), 0)


def test_brokers_that_do_not_answer_fail_no_batch(
    letters: Letters, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead letters are not counted now, the log says so, and the next poll goes on."""
    kafka, dead = letters
    kafka.told = [letter("a")]
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
    kafka.told = [letter(f"{n}") for n in range(10)]
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
    kafka.told = [letter("a"), letter("b")]
    kafka.topic_id = now
    poll = dead.read(Tally(0, (1,), before))
    assert poll is not None
    assert [each.transaction_id for each in poll.letters] == (["a", "b"] if is_recreated else ["b"])
    assert (poll.offsets, poll.topic_id, poll.is_recreated) == ((2,), now or before, is_recreated)


@pytest.mark.parametrize(("connects_s", "is_read"), [(9.0, True), (11.0, False)])
def test_a_look_begins_when_the_brokers_answer(
    letters: Letters, *, connects_s: float, is_read: bool
) -> None:
    """A handshake that takes longer than a poll does not leave dead letters unread for ever."""
    kafka, dead = letters
    kafka.told = [letter("a")]
    kafka.connects_s = connects_s
    poll = dead.read(SINCE)
    assert poll is not None
    assert (len(poll.letters), poll.unread) == ((1, 0) if is_read else (0, 1))


@pytest.mark.parametrize(("ends_at_s", "is_visible"), [(5.0, True), (11.0, False)])
def test_dead_letters_that_are_not_visible_yet_are_waited_for(
    letters: Letters, *, ends_at_s: float, is_visible: bool
) -> None:
    """The daemon's place is told; its kafka_txn ends later in the dead-letter topic."""
    kafka, dead = letters
    kafka.told = [letter("a")]
    kafka.position = 1
    kafka.end = 0
    kafka.ends_at_s = ends_at_s
    decisions = {0: 7}
    delivered = await_delivery(OPTIONS, ports_of(kafka), dead, decisions, timeout_ms=10_000)
    assert delivered is is_visible
    assert dead.ends() == ((1,) if is_visible else (0,))
    assert kafka.clock.now >= (ends_at_s if is_visible else 10.0)

"""What the sink sends, by a writer that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.kafka.errors import INFERRED, Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.avro import OP
from halfbridge.serde.manifest import ManifestTransaction
from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RowError, SendError, SinkError
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess
from halfbridge.spark_jobs.sink.sender import Sender
from tests.fake_ports import Clock, fake_ports

OPTIONS = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app"})
NAMES = OPTIONS.names
GROUP = OPTIONS.producer_group


@dataclass
class Kafka:
    """Half, op and a real topic, and a writer whose records are stored when it is flushed.

    Attributes:
        clock: Goes on while the writer waits.
        writers: Properties of each writer that was made.
        written: Topic and value of each record that the writer took.
        full_until_s: Until when there is no room in the queue.
        refuses: What the writer says of each record at once.
        infers: Acknowledgements have no offset.
        silent: No broker acknowledges anything.
        settings: Of the real topic.
    """

    clock: Clock = field(default_factory=lambda: Clock(0.0))
    writers: list[dict[str, Any]] = field(default_factory=list)
    written: list[tuple[str, bytes]] = field(default_factory=list)
    full_until_s: float = 0.0
    refuses: KafkaFailure | None = None
    infers: bool = False
    silent: bool = False
    purged: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    awaited: list[Callable[[], None]] = field(default_factory=list)

    def admin(self, _properties: dict[str, Any]) -> Kafka:
        """Return a client for questions."""
        return self

    def writer(self, properties: dict[str, Any]) -> Kafka:
        """Return a client that writes."""
        self.writers.append(properties)
        return self

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        """Return the three topics."""
        return {
            NAMES.half: SeenTopic(2, 1),
            NAMES.op: SeenTopic(2, 1),
            "orders": SeenTopic(3, 1),
        }

    def ask_settings(self, topics: list[str], _timeout_s: float) -> dict[str, Any]:
        """Return the settings of topics."""
        return {topic: SimpleNamespace(result=lambda: self.settings) for topic in topics}

    def produce(
        self,
        topic: str,
        value: bytes,
        _key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        _timestamp_ms: int,
        _headers: Any,
    ) -> None:
        """Take a record."""
        if self.refuses is not None:
            raise self.refuses
        if self.clock.now < self.full_until_s:
            raise BufferError("full")
        self.written.append((topic, value))
        offset = None if self.infers else len(self.written)
        record = SimpleNamespace(
            topic=lambda: topic, partition=lambda: partition, offset=lambda: offset
        )
        self.awaited.append(lambda: on_delivery(None, record))

    def poll(self, wait_s: float) -> int:
        """Wait."""
        self.clock.now += wait_s
        return 0

    def flush(self, _timeout_s: float) -> int:
        """Have all records acknowledged, unless nobody does."""
        if self.silent:
            return len(self.awaited)
        while self.awaited:
            self.awaited.pop(0)()
        return 0

    def purge(self) -> None:
        """Give up what is not acknowledged."""
        self.purged += 1
        self.awaited.clear()

    def close(self) -> None:
        """Do nothing: what is not acknowledged was given up."""


@pytest.fixture
def kafka() -> Kafka:
    """Kafka as it is when nothing fails."""
    return Kafka()


@pytest.fixture
def process(kafka: Kafka) -> SinkProcess:
    """A process whose Kafka that is."""
    return SinkProcess(fake_ports(kafka, kafka.clock))


def decided(
    process: SinkProcess, rounds: Iterable[Iterable[ManifestTransaction]]
) -> dict[int, int]:
    """Commit rounds of transactions."""
    return process.decide(OPTIONS, OpKind.COMMIT, rounds, producer_group=GROUP, timeout_s=1.0)


def listed(*names: str) -> list[ManifestTransaction]:
    """Return a round of transactions, all in half partition 1."""
    return [ManifestTransaction(name, 1, 1, 0) for name in names]


def test_decisions_wait_for_no_further_record_and_halves_do(
    kafka: Kafka, process: SinkProcess
) -> None:
    """Each round waits for the one before: 250 of them would take five seconds more."""
    process.new_attempts_sender(OPTIONS)
    decided(process, [])
    assert [each["linger.ms"] for each in kafka.writers] == [20, 0]


def test_a_query_sets_the_linger_of_halves_and_not_of_decisions(kafka: Kafka) -> None:
    """Its throughput is the query's own affair."""
    options = parse_options(
        {"kafka.bootstrap.servers": "k:1", "app.id": "app", "kafka.linger.ms": "5"}
    )
    process = SinkProcess(fake_ports(kafka, kafka.clock))
    process.new_attempts_sender(options)
    process.decide(options, OpKind.COMMIT, [], producer_group=GROUP, timeout_s=1.0)
    assert [each["linger.ms"] for each in kafka.writers] == ["5", 0]


def test_a_round_begins_when_the_one_before_is_stored(kafka: Kafka, process: SinkProcess) -> None:
    """And the last offset of each partition is told."""
    assert decided(process, [listed("a", "b"), listed("c")]) == {1: 3}
    ops = [OP.decode(value) for _, value in kafka.written]
    assert [op.transaction_id for op in ops] == ["a", "b", "c"]
    assert {op.actor for op in ops} == {process.actor}


@pytest.mark.parametrize("trouble", [{"infers": True}, {"silent": True}])
def test_a_round_that_is_not_proven_ends_the_decisions(
    kafka: Kafka, process: SinkProcess, trouble: dict[str, bool]
) -> None:
    """Nothing of the next round is written, and the next decision has a new client."""
    vars(kafka).update(trouble)
    with pytest.raises(CommitInDoubtError, match="decisions were not acknowledged"):
        decided(process, [listed("a"), listed("b")])
    assert (len(kafka.written), kafka.purged) == (1, 1)
    vars(kafka).update(dict.fromkeys(trouble, False))
    decided(process, [listed("a"), listed("b")])
    assert len(kafka.writers) == 2


def test_an_acknowledgement_without_an_offset_proves_nothing(process: SinkProcess) -> None:
    """The client infers it; a failure that the client names comes first."""
    sender = process.new_attempts_sender(OPTIONS)
    record = SimpleNamespace(topic=lambda: "half", partition=lambda: 0, offset=lambda: None)
    assert sender.failure(None, record) is INFERRED
    refused = KafkaFailure(Code.INVALID_RECORD)
    assert sender.failure(refused, record) is refused


def send(sender: Sender) -> None:
    """Send a record."""
    sender.send(NAMES.half, b"row", b"key", 0, lambda *_: None)


def test_a_full_queue_is_waited_for(kafka: Kafka, process: SinkProcess) -> None:
    """As long as send.timeout.ms says."""
    sender = process.new_attempts_sender(OPTIONS)
    kafka.full_until_s = 100.0
    send(sender)
    assert kafka.clock.now >= 100.0
    kafka.full_until_s = float("inf")
    with pytest.raises(SendError, match="stayed full"):
        send(sender)
    assert kafka.clock.now >= 220.0
    assert sender.is_broken


def test_a_client_that_refuses_is_given_up(kafka: Kafka, process: SinkProcess) -> None:
    """Whoever sends on is told so, and the next attempt has another one."""
    sender = process.new_attempts_sender(OPTIONS)
    kafka.refuses = KafkaFailure(Code.FATAL, "it is over", is_fatal=True)
    with pytest.raises(SendError, match="the record was not sent: _FATAL: it is over"):
        send(sender)
    for call in (lambda: send(sender), lambda: sender.flush(1.0)):
        with pytest.raises(SendError, match="has failed before"):
            call()
    assert process.new_attempts_sender(OPTIONS) is not sender


@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("orders", 3, "topic orders has no partition 3; it has 3"),
        (NAMES.op, 0, "is internal"),
        ("absent", 0, "no real topic absent"),
    ],
)
def test_a_row_with_nowhere_to_go_is_refused(
    process: SinkProcess, topic: str, partition: int, text: str
) -> None:
    """Before anything of it is sent."""
    with pytest.raises(SinkError, match=text):
        process.new_attempts_sender(OPTIONS).real_topic(topic, partition)


def test_a_limit_that_was_raised_meanwhile_counts(kafka: Kafka, process: SinkProcess) -> None:
    """The real topic is asked once more before a row is refused."""
    kafka.settings = {"max.message.bytes": "100"}
    sender = process.new_attempts_sender(OPTIONS)
    row = ("orders", 0, None, bytes(1_000), [])
    with pytest.raises(RowError, match=r"whose max\.message\.bytes is 100"):
        sender.check_row(row)
    kafka.settings = {"max.message.bytes": "10000"}
    sender.check_row(row)
    sender.is_outdated = True
    assert process.new_attempts_sender(OPTIONS) is not sender

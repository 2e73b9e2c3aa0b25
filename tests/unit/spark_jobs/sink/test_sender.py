"""What the sink sends, by a writer whose answers a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.kafka.errors import INFERRED, Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP, SINK_CONTEXT
from halfbridge.serde.headers import CONTEXT, DEAD, HALF
from halfbridge.serde.manifest import BatchManifest, ManifestAttempt, ManifestTransaction
from halfbridge.serde.records import DeadLetter, DeadReason, OpKind, SinkContext, new_half
from halfbridge.spark_jobs.sink.dead_letters import (
    CLAIMED_AGE_BATCHES_MAX,
    CLAIMED_BATCHES_MAX,
    NO_BATCH,
    NO_TALLY,
    Letter,
    Refused,
    Tally,
    letter_of,
    newest_tally,
    refused_by,
)
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RowError, SendError, SinkError
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess
from halfbridge.spark_jobs.sink.sender import Sender
from tests.fake_ports import Clock, fake_ports
from tests.kit.records import A_MANIFEST

OPTIONS = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app"})
NAMES = OPTIONS.names
GROUP = OPTIONS.producer_group


@dataclass
class Kafka:
    """Half, op and a real topic, and a writer whose records are stored when it is flushed.

    Attributes:
        clock: Advances while the writer waits.
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
        return {NAMES.half: SeenTopic(2, 1), NAMES.op: SeenTopic(2, 1), "orders": SeenTopic(3, 1)}

    def ask_settings(self, topics: list[str], _timeout_s: float) -> dict[str, Any]:
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
    return Kafka()


@pytest.fixture
def process(kafka: Kafka) -> SinkProcess:
    return SinkProcess(fake_ports(kafka, kafka.clock))


def decided(
    process: SinkProcess, rounds: Iterable[Iterable[ManifestTransaction]]
) -> dict[int, int]:
    """Commit rounds of transactions."""
    with process.decider(OPTIONS) as decider:
        return decider.decide(OpKind.COMMIT, rounds, producer_group=GROUP, timeout_s=1.0)


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
    with process.decider(options) as decider:
        decider.decide(OpKind.COMMIT, [], producer_group=GROUP, timeout_s=1.0)
    assert [each["linger.ms"] for each in kafka.writers] == ["5", 0]


def test_a_round_begins_when_the_one_before_is_stored(kafka: Kafka, process: SinkProcess) -> None:
    """And the last offset of each partition is reported."""
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
    """A further send raises an error, and the next attempt has another sender."""
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


# --- which dead letters are rows that were published, by what manifests list ---------------


def manifest(batch: int, *transactions: str, tally: Tally = NO_TALLY) -> BatchManifest:
    """Return a manifest of transactions with three messages each."""
    listed = tuple(ManifestTransaction(each, 0, 3, 0) for each in transactions)
    return A_MANIFEST._replace(
        batch_id=batch,
        refused_count=tally.refused_count,
        dead_letter_offsets=tally.offsets,
        dead_letter_topic_id=tally.topic_id,
        attempts=(ManifestAttempt("a", listed),),
    )


def headers(
    app: str | None = "app", group: str = "g", detail: str = "", *, name: str = "t", index: int = 0
) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter."""
    half = new_half(
        transaction_id=name,
        born_timestamp=0,
        message_index=index,
        producer_group=group,
        real_topic="orders",
        immunity_ms=0,
    )
    letter = DeadLetter(DeadReason.NOT_ALLOWED, detail, 0, 0, 0, "half", 0, 0)
    context = [] if app is None else [(CONTEXT, SINK_CONTEXT.encode(SinkContext(app, 4, "a")))]
    return [*context, (HALF, HALF_METADATA.encode(half)), (DEAD, DEAD_LETTER.encode(letter))]


def test_a_letter_is_of_the_app_or_may_be() -> None:
    """Another group's, another app's and what cannot be read is none."""

    def read(given: list[tuple[str, bytes]] | None) -> Letter | None:
        return letter_of(given, app_id="app", producer_group="g")

    assert read(headers()) == Letter("t", 4, "NOT_ALLOWED")
    assert read(headers(None, detail="policy")) == Letter("t", NO_BATCH, "NOT_ALLOWED: policy")
    for other in (headers("other"), headers(group="h"), [], None, headers()[:2], [(HALF, b"")]):
        assert read(other) is None


def test_dead_letters_of_a_transaction_in_several_partitions_count_once() -> None:
    """Its dead letters are in several partitions: the one of message 0 counts for all."""
    winners = {4: manifest(4, "t", "u"), 5: manifest(5), 6: manifest(6)}
    looks = [
        [headers(None, name="t", index=1), headers(name="t")],
        [headers(None, name="t", index=2), headers(name="u")],
        [headers(None, name="u", index=1), headers(None, name="u", index=2)],
    ]
    counted = 0
    for newest, look in enumerate(looks, 4):
        read = (letter_of(each, app_id="app", producer_group="g") for each in look)
        letters = [each for each in read if each is not None]
        refused = refused_by(letters, winners.get, newest_batch=newest)
        assert refused.unverified == 0
        counted += refused.messages
    assert counted == 6


def test_a_transaction_counts_with_all_its_messages_and_once() -> None:
    """The daemon gives a transaction up as a whole; what no manifest lists was never published."""
    winners = {4: manifest(4, "a", "b"), 5: manifest(5, "c")}
    letters = [
        Letter("a", 4, "why"),
        Letter("a", 4, "why"),
        Letter("made up", 4, "x"),
        Letter("c", NO_BATCH, "later"),
    ]
    refused = refused_by(letters, winners.get, newest_batch=5)
    assert refused.by_batch == {4: 3, 5: 3}
    assert refused.messages == 6
    assert refused.unverified == 0


def test_made_up_batches_cost_a_few_searches() -> None:
    """Anybody who may write half messages may name any batch; the rest is logged, not counted."""
    asked: list[int] = []

    def winner_of(batch: int) -> None:
        asked.append(batch)

    letters = [Letter(f"{n}", n, "why") for n in range(100)]
    refused = refused_by(letters, winner_of, newest_batch=99)
    assert len(asked) == CLAIMED_BATCHES_MAX
    assert (refused.messages, refused.unverified) == (0, 100 - CLAIMED_BATCHES_MAX)


def test_a_claim_of_long_ago_costs_no_search() -> None:
    """A search for batch 0 would read the whole partition, within the commit of a batch."""
    asked: list[int] = []
    newest = 5_000
    oldest = newest - CLAIMED_AGE_BATCHES_MAX + 1

    def winner_of(batch: int) -> BatchManifest:
        asked.append(batch)
        return manifest(batch, f"{batch}")

    claimed = [-5, 0, oldest - 1, oldest, newest]
    letters = [Letter(f"{batch}", batch, "why") for batch in claimed]
    refused = refused_by(letters, winner_of, newest_batch=newest)
    assert asked == [oldest, newest]
    assert refused.by_batch == {oldest: 3, newest: 3}
    assert refused.unverified == 3


def test_a_batch_that_is_not_published_has_no_refused_rows() -> None:
    """Its driver died and its attempt was given up; now it is run again, and is the next one."""
    winners = {4: manifest(4, "a")}
    refused = refused_by([Letter("t", 5, "why")], winners.get, newest_batch=4)
    assert refused == Refused({}, "", 0)


def test_a_stub_of_an_older_batch_is_reported() -> None:
    """It names no batch: whether its transaction was published cannot be looked up."""
    winners = {4: manifest(4, "a"), 5: manifest(5, "b")}
    letters = [Letter("a", NO_BATCH, "why"), Letter("b", NO_BATCH, "why")]
    refused = refused_by(letters, winners.get, newest_batch=5)
    assert refused == Refused({5: 3}, "why", 1)


def test_the_tally_that_came_furthest_counts_on() -> None:
    """A driver that lost the race for a batch has left one too."""
    assert newest_tally([]) == NO_TALLY
    tallies = [Tally(1, (5, 5)), Tally(2, (5, 9)), NO_TALLY]
    assert newest_tally([manifest(1, tally=each) for each in tallies]) == Tally(2, (5, 9))
    tallies = [Tally(2, (5, 9), "A"), Tally(3, (1, 0), "B"), Tally(2, (5, 8), "A")]
    assert newest_tally([manifest(1, tally=each) for each in tallies]) == Tally(3, (1, 0), "B")

"""A relay's handling of dead letters: of its rows, of other groups, and without rows."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from sqlalchemy import select, update

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.message import Message
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.admin import AdminClient
from halfbridge.kafka.errors import Code, KafkaFailure, TopicSetupError
from halfbridge.kafka.ports import TopicPartition
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.records import DeadLetter, DeadReason, new_half
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.dead_letters import DeadLetters, Letter, LetterReader, letter_of
from halfbridge.sql.local_messages.marks import Marks, engine_of
from halfbridge.sql.local_messages.metrics import RelayMetrics
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.sql.tables import NowMs
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.sql.databases import Database
from tests.sql.relaying import running, scene, states_of, wait_until

HOUR_MS = 3_600_000
TIMEOUT_S = 30.0
GIVEN_UP = "MESSAGE_ERROR"


def letters_of(messages: LocalMessages, **given: Any) -> DeadLetters:
    """Return the DeadLetters of a relay."""
    place = messages, engine_of(messages), Marks(messages)
    return DeadLetters(*place, RelayMetrics(), RelayConfig(**given))


def sent(messages: LocalMessages, count: int, transaction_id: str = "t1") -> list[int]:
    """Insert rows that a message transaction has taken; return their ids."""
    with messages.engine.begin() as connection:
        given = [Message("t", key=b"%d" % n) for n in range(count)]
        ids = messages.add_all(connection, given)
    for row_id in ids:
        change(messages, row_id, state="GLOBAL_COMMIT", transaction_id=transaction_id)
    return ids


def change(messages: LocalMessages, row_id: int, **values: Any) -> None:
    """Change a row directly."""
    table = messages.tables.messages
    with messages.engine.begin() as connection:
        connection.execute(update(table).where(table.c.id == row_id).values(**values))


def row(messages: LocalMessages, row_id: int) -> Any:
    """Return a row, with its remaining wait as `wait_ms`."""
    table = messages.tables.messages
    wait_ms = (table.c.next_attempt_at - NowMs()).label("wait_ms")
    with messages.engine.connect() as connection:
        return connection.execute(select(table, wait_ms).where(table.c.id == row_id)).one()


def value(counter: Any) -> float:
    """Return the value of a counter."""
    return float(counter._value.get())


@pytest.mark.parametrize(
    ("reason", "state"), [(DeadReason.AGE, "LOCAL_COMMIT"), (DeadReason.UNDELIVERABLE, GIVEN_UP)]
)
def test_a_row_is_not_to_blame_for_its_age(
    messages: LocalMessages, reason: DeadReason, state: str
) -> None:
    """A row that was alone in a dead transaction is given up, unless the reason is AGE."""
    sent(messages, 1)
    assert letters_of(messages).take(Letter("t1", reason, "why")) == 1
    assert states_of(messages) == [state]


def test_rows_of_a_dead_transaction_wait_as_after_any_failure(messages: LocalMessages) -> None:
    """Each has one more retry, waits by its own count, keeps the cause, and is sent alone."""
    first, second = sent(messages, 2)
    change(messages, second, retries=3)
    letters = letters_of(messages, retry_ms_min=HOUR_MS, retry_ms_max=8 * HOUR_MS)
    assert letters.take(Letter("t1", DeadReason.UNDELIVERABLE, "why")) == 2
    assert states_of(messages) == ["LOCAL_COMMIT", "LOCAL_COMMIT"]
    for row_id, retries, hours in ((first, 1, 1), (second, 4, 8)):
        found = row(messages, row_id)
        assert (found.retries, found.send_alone) == (retries, True)
        assert found.cause == "UNDELIVERABLE: why"
        assert (hours - 0.5) * HOUR_MS < found.wait_ms <= hours * HOUR_MS


@pytest.mark.parametrize("reason", [DeadReason.UNDELIVERABLE, DeadReason.AGE])
def test_a_row_that_dies_again_and_again_is_given_up(
    messages: LocalMessages, reason: DeadReason
) -> None:
    """It is given up at retries_max, with the cause; other rows of its transaction are not."""
    first, second = sent(messages, 2)
    change(messages, second, retries=2)
    letters = letters_of(messages, retries_max=3)
    assert letters.take(Letter("t1", reason, "why")) == 2
    assert states_of(messages) == ["LOCAL_COMMIT", GIVEN_UP]
    assert row(messages, second).cause == f"{reason.value}: why"
    counted = letters._metrics
    assert (value(counted.retries), value(counted.errors)) == (1, 1)
    assert row(messages, first).transaction_id is None


def test_a_row_that_died_for_another_and_is_old_is_given_up(messages: LocalMessages) -> None:
    """It is given up by its age, unless the reason is AGE."""
    for transaction_id in ("t1", "t2"):
        for row_id in sent(messages, 2, transaction_id):
            change(messages, row_id, created_at=0)
    letters = letters_of(messages)
    letters.take(Letter("t1", DeadReason.UNDELIVERABLE, "why"))
    letters.take(Letter("t2", DeadReason.AGE, "why"))
    assert states_of(messages) == [GIVEN_UP, GIVEN_UP, "LOCAL_COMMIT", "LOCAL_COMMIT"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_dead_letters_without_rows_are_counted_and_reported(
    messages: LocalMessages, caplog: pytest.LogCaptureFixture
) -> None:
    """They count once per transaction, with one log line for many; letters of rows do not."""
    sent(messages, 2)
    letters = letters_of(messages)
    with caplog.at_level(logging.WARNING, logger="halfbridge.sql"):
        for transaction_id in ("t1", "t1", "nobody", "nobody", "none"):
            letters.take(Letter(transaction_id, DeadReason.INCOMPLETE, "why"))
    assert value(letters._metrics.rowless_letters) == 2
    lines = [each.getMessage() for each in caplog.records]
    lost = [line for line in lines if line.startswith("no local message is in transaction ")]
    assert len(lost) == 1
    assert "transaction nobody, which became dead letters (INCOMPLETE: why)" in lost[0]


@pytest.mark.broker
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_group_of_relays_skips_dead_letters_of_others(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """Its offset reaches the end of the topic though no letter is its own."""
    with scene(database.engine(), halfbridge_stack, halfbridge_topics.create("orders")) as made:
        names = made.producer.config.names
        servers = {"bootstrap.servers": halfbridge_stack.bootstrap_servers}
        other = Producer(servers)
        other.produce(names.dead, b"of another group")
        assert other.flush(TIMEOUT_S) == 0
        group = names.relay_group(made.producer.config.producer_group)
        topic = [ClientTopicPartition(names.dead, 0)]
        wanted = ConsumerGroupTopicPartitions(group, topic)
        admin, reader = AdminClient(servers), Consumer({**servers, "group.id": "watermarks"})

        def lag() -> int:
            (future,) = admin.list_consumer_group_offsets([wanted]).values()
            ends = {
                each.partition: reader.get_watermark_offsets(each, TIMEOUT_S)[1] for each in topic
            }
            found = future.result(TIMEOUT_S).topic_partitions
            return sum(ends[each.partition] - max(0, each.offset) for each in found)

        assert lag() > 0
        with running(made.service()):
            wait_until(lambda: lag() == 0)
        reader.close()


class Record:
    """A record of the dead-letter topic as the Kafka client returns it."""

    def __init__(self, *headers: tuple[str, bytes]) -> None:
        self._headers = list(headers)

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


def letter(reason: DeadReason, *, group: str = "relay", is_stub: bool = False) -> Record:
    """Return a dead letter."""
    half = new_half(
        transaction_id="t1", born_timestamp=1, producer_group=group, real_topic="orders"
    )
    dead = DeadLetter(reason, "why", 0, 1, 2, "half", 0, 3, is_stub=is_stub)
    return Record((HALF, HALF_METADATA.encode(half)), (DEAD, DEAD_LETTER.encode(dead)))


@pytest.mark.parametrize("is_stub", [False, True])
@pytest.mark.parametrize("reason", list(DeadReason))
def test_letters_of_whole_transactions_are_taken(reason: DeadReason, is_stub: bool) -> None:
    """Letters are taken, stubs too, except LATE and EXTRA ones, which are about one record."""
    found = letter_of(letter(reason, is_stub=is_stub), "relay")
    if reason in (DeadReason.LATE, DeadReason.EXTRA):
        assert found is None
    else:
        assert found == Letter("t1", reason, "why")


def test_letters_of_others_and_unreadable_ones_are_left() -> None:
    """A letter of another group, or one that cannot be read, is ignored."""
    assert letter_of(letter(DeadReason.AGE, group="other"), "relay") is None
    assert letter_of(Record((HALF, b"\x00"), (DEAD, b"\x00")), "relay") is None
    assert letter_of(Record(), "relay") is None


# --- offsets that a reader of dead letters commits -----------------------------------------

CONFIG = BridgeConfig(bootstrap_servers="b:1", producer_group="g")
LETTERS = CONFIG.names.dead
FIRST, SECOND = (LETTERS, 0), (LETTERS, 1)


class _Member:
    """A member whose records, partitions and failures a test sets."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.assigned: list[TopicPartition] = [FIRST, SECOND]
        self.failure: KafkaFailure | None = None
        self.commits: list[dict[TopicPartition, int]] = []
        self.joined: list[str] = []

    def join_and_read(self, topics: list[str]) -> None:
        self.joined = topics

    def poll(self, _wait_s: float) -> Any:
        """Return the first record."""
        return self.records.pop(0) if self.records else None

    def take(self, records_max: int) -> list[Any]:
        taken, self.records = self.records[:records_max], self.records[records_max:]
        return taken

    def assignment(self) -> list[TopicPartition]:
        return self.assigned

    def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        """Record the offsets, or fail."""
        if self.failure is not None:
            raise self.failure
        self.commits.append({place: at for place, (at, _) in offsets.items()})


@pytest.fixture
def member() -> _Member:
    """Return a member that has both partitions."""
    return _Member()


@pytest.fixture
def reader(member: _Member) -> LetterReader:
    kafka: Any = SimpleNamespace(member=lambda _properties: member)
    return LetterReader(CONFIG, replace(system_ports(), kafka=kafka))


def _record(place: TopicPartition, offset: int, error: KafkaFailure | None = None) -> Any:
    fields = {"topic": place[0], "partition": place[1], "offset": offset, "error": error}
    fields |= {"headers": []}
    return SimpleNamespace(**{name: lambda it=it: it for name, it in fields.items()})


def test_what_was_read_is_committed_once(member: _Member, reader: LetterReader) -> None:
    """The offset after the last record of each partition is committed; a repetition is not sent."""
    member.records = [_record(FIRST, 4), _record(FIRST, 5), _record(SECOND, 0)]
    assert reader.read(0.0) == []
    reader.commit()
    reader.commit()
    assert member.commits == [{FIRST: 6, SECOND: 1}]
    assert member.joined == [LETTERS]


def test_a_partition_that_another_member_has_is_left_to_it(
    member: _Member, reader: LetterReader
) -> None:
    """No offset is committed for it, as its offset might go back."""
    member.records = [_record(FIRST, 4), _record(SECOND, 0)]
    reader.read(0.0)
    member.assigned = [SECOND]
    reader.commit()
    assert member.commits == [{SECOND: 1}]


def test_a_commit_that_failed_is_tried_again(member: _Member, reader: LetterReader) -> None:
    """The next `commit` commits the offset."""
    member.records = [_record(FIRST, 4)]
    reader.read(0.0)
    member.failure = KafkaFailure(Code.ILLEGAL_GENERATION)
    reader.commit()
    member.failure = None
    reader.commit()
    assert member.commits == [{FIRST: 5}]


def test_a_topic_that_cannot_be_read_is_the_operators(
    member: _Member, reader: LetterReader
) -> None:
    """An authorization error raises TopicSetupError."""
    member.records = [_record(FIRST, 0, KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED))]
    with pytest.raises(TopicSetupError):
        reader.read(0.0)

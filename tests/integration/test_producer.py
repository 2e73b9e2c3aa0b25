"""The producer client on a real broker: what it writes, what it refuses, what it answers."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import bridge
from bridge import (
    BridgeError,
    ConfigError,
    ForkedProcessError,
    HalfNotStoredError,
    IllegalTransitionError,
    InvalidMessageError,
    Message,
    MessageView,
    OutcomeUnknownError,
    ProducerClosedError,
    Resolution,
    State,
    TopicSetupError,
    TransactionProducer,
)
from bridge.partitioner import partition_of
from serde import CHECK_REQUEST, HALF_METADATA, OP, CheckRequest, Op, OpKind, OpSource, TopicNames
from serde.headers import CHECK, HALF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker

PARTITIONS = 2
TIMEOUT_S = 20.0
GROUP = "orders-service"


@dataclass
class Cluster:
    """One installation, with readers and writers of its own."""

    servers: str
    names: TopicNames
    topics: list[str] = field(default_factory=list)

    @property
    def orders(self) -> str:
        """The real topic."""
        return self.names.prefix + "orders"

    def create(self, *topics: tuple[str, int]) -> None:
        """Create topics with broker timestamps."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        config = {"message.timestamp.type": "LogAppendTime"}
        made = admin.create_topics([NewTopic(n, p, 1, config=config) for n, p in topics])
        for each in made.values():
            each.result(TIMEOUT_S)
        self.topics.extend(name for name, _ in topics)

    def visible(self) -> set[str]:
        """Return the topics that the broker's metadata shows."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        return set(admin.list_topics(timeout=TIMEOUT_S).topics)

    def producer(self, checker: Callable[[MessageView], Any] | None = None, **given: Any) -> Any:
        """Return a producer, not started yet."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "producer_group": GROUP,
            "topic_prefix": self.names.prefix,
            "topics": [self.orders],
            **given,
        }
        return TransactionProducer(checker=checker or _unknown, **arguments)

    def read(self, topic: str, count: int | None = None) -> list[Any]:
        """Return the records of a topic: until `count` are there, or else to its end now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        records: list[Any] = []
        ended: set[int] = set()
        deadline = monotonic() + TIMEOUT_S
        try:
            while len(records) < count if count is not None else len(ended) < len(partitions):
                assert monotonic() < deadline, f"only {len(records)} records in {topic}"
                for record in consumer.consume(1000, 0.05):
                    if record.error() is None:
                        records.append(record)
                    else:
                        ended.add(record.partition())
        finally:
            consumer.close()
        return records

    def ops(self, count: int | None = None) -> list[tuple[Any, Op]]:
        """Return op records with their decoded values."""
        return [(record, OP.decode(record.value())) for record in self.read(self.names.op, count)]

    def ask(self, *requests: CheckRequest, key: bytes = b"k", value: bytes = b"v") -> None:
        """Write check requests as the daemon does."""
        producer = Producer({"bootstrap.servers": self.servers})
        for request in requests:
            headers = [("h", b"1"), ("h", None), (CHECK, CHECK_REQUEST.encode(request))]
            producer.produce(self.names.check(GROUP), value, key, headers=headers, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def ask_raw(self, headers: list[tuple[str, bytes]] | None) -> None:
        """Write something into the check topic that is no check request."""
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.names.check(GROUP), b"v", headers=headers, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def cluster(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Cluster]:
    """An installation with half, op and check topics and one real topic."""
    made = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    made.create(
        (made.names.half, PARTITIONS),
        (made.names.op, PARTITIONS),
        (made.names.check(GROUP), 1),
        (made.orders, 3),
    )
    yield made
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap_servers})
    for each in admin.delete_topics(made.topics).values():
        each.result(TIMEOUT_S)


def _unknown(view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


def _request(cluster: Cluster, number: int = 1, **given: Any) -> CheckRequest:
    values: dict[str, Any] = {
        "transaction_id": f"{number:032x}",
        "sent_timestamp": 1,
        "half_offset": 0,
        "half_partition": 1,
        "resume_count": 0,
        "message_index": 0,
        "producer_group": GROUP,
        "real_topic": cluster.orders,
        "real_partition": -1,
        "check_number": 3,
        "attempt": 1,
        "born_timestamp": 77,
        **given,
    }
    return CheckRequest(**values)


# --- what is written ---------------------------------------------------------------------------


def test_half_message_is_stored_byte_exact_and_invisible(cluster: Cluster) -> None:
    """Conformance 26, 28: the real topic stays empty; null and empty stay different."""
    sent = [
        Message(cluster.orders, key=b"42", value=b"body", headers=[("a", b"1"), ("a", None)]),
        Message(cluster.orders, key=b"", value=b"", headers=[("e", b"")], partition=2),
        Message(cluster.orders, key=None, value=None, immunity_ms=60_000),
    ]
    with cluster.producer() as producer:
        tx = producer.begin()
        receipts = [tx.send(message) for message in sent]
    records = cluster.read(cluster.names.half, 3)
    half_partition = partition_of(b"42", PARTITIONS)
    assert [r.partition() for r in records] == [half_partition] * 3
    assert [r.half_offset for r in receipts] == [r.offset() for r in records] == [0, 1, 2]
    for index, (record, message) in enumerate(zip(records, sent, strict=True)):
        assert (record.key(), record.value()) == (message.key, message.value)
        *user, (name, raw) = record.headers()
        assert (tuple(user), name) == (tuple(message.headers), HALF)
        metadata = HALF_METADATA.decode(raw)
        assert (metadata.transaction_id, metadata.message_index) == (tx.id, index)
        assert (metadata.producer_group, metadata.real_topic) == (GROUP, cluster.orders)
        assert metadata.real_partition == message.real_partition
        assert metadata.immunity_ms == message.immunity_on_wire
        assert (metadata.check_times, metadata.resume_count) == (0, 0)
        assert (metadata.first_append_timestamp, metadata.origin_offset) == (-1, -1)
    assert cluster.read(cluster.orders) == []
    assert cluster.read(cluster.names.op) == []


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_a_decision_is_one_op_record(cluster: Cluster, kind: OpKind) -> None:
    """Conformance 2, 3: one op in the half message's partition, with count and last offset."""
    with cluster.producer() as producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders, key=b"k", value=b"1"))
        last = tx.send(Message(cluster.orders, key=b"other", value=b"2"))
        receipt = tx.commit() if kind is OpKind.COMMIT else tx.rollback()
    ((record, op),) = cluster.ops()
    assert (receipt.op_partition, receipt.op_offset) == (record.partition(), record.offset())
    assert (receipt.transaction_id, receipt.resolution.value) == (tx.id, kind.value)
    assert not receipt.late
    assert record.partition() == last.half_partition
    assert record.key() == tx.id.encode()
    assert (op.transaction_id, op.kind, op.source) == (tx.id, kind, OpSource.PRODUCER)
    assert (op.half_offset, op.message_count) == (last.half_offset, 2)
    assert (op.producer_group, op.check_number, op.resume_count) == (GROUP, 0, 0)


def test_a_decision_later_than_the_first_check_says_so(cluster: Cluster) -> None:
    """`late` follows the brokers' append times and the message's own immunity."""
    with cluster.producer(transaction_timeout_ms=1) as producer:
        soon = producer.begin()
        soon.send(Message(cluster.orders, immunity_ms=60_000))
        late = producer.begin()
        first = late.send(Message(cluster.orders))
        while True:  # until the broker's clock has moved on
            probe = producer.begin().send_async(Message(cluster.orders))
            probe.result()
            if probe.timestamp > late._first_timestamp + 1:
                break
        assert late.commit().late
        assert not soon.commit().late
        assert first.transaction_id == late.id


def test_leaving_the_block_commits_once(cluster: Cluster) -> None:
    """Commit at the end of the block, and none where the user decided or sent nothing."""
    with cluster.producer() as producer:
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
        assert tx.state is State.COMMITTED
        assert tx.commit() == tx.commit()
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
            tx.rollback()
            tx.rollback()
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
            tx.commit()
        with producer.begin() as tx:
            pass
        assert tx.state is State.INIT
        with producer.begin() as tx:
            tx.send_async(Message(cluster.orders)).result()
            tx.commit_async()
    kinds = Counter(op.kind for _, op in cluster.ops())
    assert kinds == {OpKind.COMMIT: 3, OpKind.ROLLBACK: 1}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_decides_nothing(cluster: Cluster, error: type[BaseException]) -> None:
    """The database may have committed although its call raised; only rollback() rolls back."""
    with cluster.producer() as producer:
        tx = producer.begin()
        with pytest.raises(error), tx:  # noqa: PT012  (the block is what is tested)
            tx.send(Message(cluster.orders))
            raise error
        assert tx.state is State.HALF_SENT
        rolled_back = producer.begin()
        with pytest.raises(error), rolled_back:  # noqa: PT012
            rolled_back.send(Message(cluster.orders))
            rolled_back.rollback()
            raise error
    ((_, op),) = cluster.ops()
    assert (op.transaction_id, op.kind) == (rolled_back.id, OpKind.ROLLBACK)


def test_misuse_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    """Conformance 13: no decision before a send, none against the first one."""
    with cluster.producer() as producer:
        tx = producer.begin()
        with pytest.raises(IllegalTransitionError):
            tx.commit()
        with pytest.raises(IllegalTransitionError):
            tx.rollback()
        tx.send(Message(cluster.orders))
        tx.commit()
        with pytest.raises(IllegalTransitionError):
            tx.rollback()
        with pytest.raises(IllegalTransitionError):
            tx.send(Message(cluster.orders))
        assert tx.state is State.COMMITTED
    assert len(cluster.ops()) == 1


# --- send_in_transaction -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "resolution", "ops"),
    [
        (Resolution.COMMIT, Resolution.COMMIT, [OpKind.COMMIT]),
        (Resolution.ROLLBACK, Resolution.ROLLBACK, [OpKind.ROLLBACK]),
        (Resolution.UNKNOWN, Resolution.UNKNOWN, []),
        (None, Resolution.UNKNOWN, []),
        (True, Resolution.UNKNOWN, []),
        (ValueError("boom"), Resolution.UNKNOWN, []),
    ],
)
def test_send_in_transaction_maps_the_local_answer(
    cluster: Cluster, answer: object, resolution: Resolution, ops: list[OpKind]
) -> None:
    """Conformance 2-5: it runs after the ack; exceptions and None are UNKNOWN, not raised."""
    message = Message(cluster.orders, key=b"1")
    calls = []

    def local(given: Message, arg: object) -> Any:
        calls.append((given, arg, len(cluster.read(cluster.names.half))))
        if isinstance(answer, Exception):
            raise answer
        return answer

    with cluster.producer() as producer:
        result = producer.send_in_transaction(message, local, "arg")
    assert calls == [(message, "arg", 1)]
    assert result.resolution is resolution
    assert result.error is (answer if isinstance(answer, Exception) else None)
    assert bool(result.remark) == (not isinstance(answer, Resolution))
    assert (result.decision is None) == (not ops)
    assert result.decision_error is None
    assert [op.kind for _, op in cluster.ops()] == ops


def test_a_decision_that_cannot_be_delivered_is_part_of_the_result(cluster: Cluster) -> None:
    """Conformance 8: the local answer is returned, and with it why the decision is in doubt."""
    with cluster.producer(send_timeout_ms=1_000, decision_timeout_ms=1_000) as producer:
        transaction_op = producer._shared.op_topic

        def local(message: Message, arg: object) -> Resolution:
            producer._shared.op_topic = cluster.names.prefix + "gone"
            return Resolution.COMMIT

        result = producer.send_in_transaction(Message(cluster.orders), local, timeout=1.0)
        producer._shared.op_topic = transaction_op
    assert result.resolution is Resolution.COMMIT
    assert isinstance(result.decision_error, OutcomeUnknownError)
    assert result.decision_error.transaction_id == result.receipt.transaction_id


# --- failures ----------------------------------------------------------------------------------


def test_after_a_failed_send_only_rollback(cluster: Cluster) -> None:
    """Conformance 6, 7: no ack, no local transaction; the rollback covers the partition's end."""
    with cluster.producer(send_timeout_ms=2_000, decision_timeout_ms=2_000) as producer:
        before = producer.begin()
        receipt = before.send(Message(cluster.orders, key=b"k"))
        half_topic = producer._shared.half_topic
        producer._shared.half_topic = cluster.names.prefix + "gone"
        tx = producer.begin()
        with pytest.raises(HalfNotStoredError) as caught:
            tx.send(Message(cluster.orders, key=b"k"))
        assert caught.value.transaction_id == tx.id
        ran: list[object] = []
        with pytest.raises(HalfNotStoredError):
            producer.send_in_transaction(
                Message(cluster.orders, key=b"k"), lambda m, a: ran.append(m)
            )
        producer._shared.half_topic = half_topic
        assert ran == []
        with pytest.raises(IllegalTransitionError, match="only rollback"):
            tx.commit()
        with pytest.raises(IllegalTransitionError, match="only rollback"):
            tx.send(Message(cluster.orders))
        op_topic = producer._shared.op_topic
        producer._shared.op_topic = cluster.names.prefix + "gone"
        with pytest.raises(OutcomeUnknownError):
            tx.rollback(timeout=0.1)
        producer._shared.op_topic = op_topic
        tx.rollback()
    ops = [op for _, op in cluster.ops() if op.transaction_id == tx.id]
    assert [(op.kind, op.half_offset) for op in ops] == [(OpKind.ROLLBACK, receipt.half_offset)]


def test_a_decision_without_ack_is_in_doubt_and_may_be_repeated(cluster: Cluster) -> None:
    """After a COMMIT of unknown outcome only COMMIT again; it then stands."""
    with cluster.producer(send_timeout_ms=2_000, decision_timeout_ms=2_000) as producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders))
        op_topic = producer._shared.op_topic
        producer._shared.op_topic = cluster.names.prefix + "gone"
        with pytest.raises(OutcomeUnknownError) as caught:
            tx.commit(timeout=0.5)
        producer._shared.op_topic = op_topic
        assert caught.value.transaction_id == tx.id
        assert tx.state is State.COMMIT_IN_DOUBT
        with pytest.raises(IllegalTransitionError, match="only commit"):
            tx.rollback()
        assert tx.commit().op_offset == 0
        assert tx.state is State.COMMITTED
    assert [op.kind for _, op in cluster.ops()] == [OpKind.COMMIT]


# --- validation --------------------------------------------------------------------------------


def test_messages_that_cannot_be_delivered_are_refused(cluster: Cluster) -> None:
    """Unbound, internal and missing topics, partitions, immunity, size: nothing is sent."""
    cluster.create((cluster.names.prefix + "unbound", 1))
    limit = 1_048_588 - 64 * 1024
    refused: list[tuple[Message, str]] = [
        (Message(cluster.names.prefix + "unbound"), "not bound"),
        (Message(cluster.names.half), "internal"),
        (Message("__consumer_offsets"), "internal"),
        (Message(cluster.orders, partition=3), "no partition 3"),
        (Message(cluster.orders, immunity_ms=129_600_001), "transaction_age_ms_max"),
        (Message(cluster.orders, value=b"x" * (limit + 1)), "64 KiB"),
        (Message(cluster.orders, value=b"x" * (limit - 1), headers=[("a", b"")]), "64 KiB"),
    ]
    with cluster.producer() as producer:
        for message, text in refused:
            tx = producer.begin()
            with pytest.raises(InvalidMessageError, match=text):
                tx.send(message)
            assert tx.state is State.INIT
        assert cluster.read(cluster.names.half) == []
        tx.send(Message(cluster.orders, value=b"x" * limit))
    ((record),) = cluster.read(cluster.names.half, 1)
    assert len(record.value()) == limit


def test_without_bound_topics_each_send_is_checked(cluster: Cluster) -> None:
    """topics=(): any real topic that exists, also one created after the start."""
    with cluster.producer(topics=()) as producer:
        late = cluster.names.prefix + "late"
        with pytest.raises(TopicSetupError, match="late"):
            producer.begin().send(Message(late))
        cluster.create((late, 1))
        while late not in cluster.visible():
            pass
        assert producer.begin().send(Message(late)).half_offset == 0


def test_a_transaction_holds_1000_messages_and_8_mib(cluster: Cluster) -> None:
    """All in one half partition, in order; one more of either is refused before it is sent."""
    with cluster.producer() as producer:
        tx = producer.begin()
        for number in range(1_000):
            future = tx.send_async(Message(cluster.orders, value=b"%d" % number))
        future.result()
        with pytest.raises(IllegalTransitionError, match="not acknowledged"):
            producer.begin().send_async(Message(cluster.orders)).transaction.commit()
        with pytest.raises(InvalidMessageError, match="1000 messages"):
            tx.send(Message(cluster.orders))
        tx.commit()
        big = producer.begin()
        for _ in range(8):
            big.send(Message(cluster.orders, value=b"x" * 900_000))
        big.send(Message(cluster.orders, value=b"x" * 900_000))
        with pytest.raises(InvalidMessageError, match="8 MiB"):
            big.send(Message(cluster.orders, value=b"x" * 900_000))
    records = [r for r in cluster.read(cluster.names.half) if len(r.value() or b"") in (1, 2, 3)]
    assert [int(r.value()) for r in records] == list(range(1_000))
    assert len({r.partition() for r in records}) == 1
    op = next(op for _, op in cluster.ops() if op.transaction_id == tx.id)
    assert (op.message_count, op.half_offset) == (1_000, records[-1].offset())


def test_a_missing_checker_is_a_typed_error(cluster: Cluster) -> None:
    """Conformance 1: no checker, no producer, nothing sent."""
    for bad in (None, "checker"):
        with pytest.raises(ConfigError, match="checker"):
            TransactionProducer(
                bootstrap_servers=cluster.servers,
                producer_group=GROUP,
                checker=bad,  # type: ignore[arg-type]
            )
    with pytest.raises(ConfigError, match="topics"):
        cluster.producer(topics="orders")


def test_wrong_topics_name_the_command(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """Missing or unequal half and op topics, and missing real ones, are clear errors."""
    cluster = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    command = f"halfbridge topics create --topic-prefix {topic_prefix} --producer-group {GROUP}"
    with pytest.raises(TopicSetupError, match=command):
        cluster.producer().start()
    cluster.create((cluster.names.half, 2), (cluster.names.op, 1))
    with pytest.raises(TopicSetupError, match=f"2 partitions .* has 1; .*{command}"):
        cluster.producer().start()


def test_missing_real_topic_and_created_check_topic(
    kafka_bootstrap_servers: str, topic_prefix: str
) -> None:
    """A bound topic must exist; the group's check topic is made where it is missing."""
    cluster = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    cluster.create((cluster.names.half, 1), (cluster.names.op, 1))
    with pytest.raises(TopicSetupError, match="orders"):
        cluster.producer().start()
    with pytest.raises(InvalidMessageError, match="internal"):
        cluster.producer(topics=[cluster.names.dead]).start()
    topics = AdminClient({"bootstrap.servers": cluster.servers}).list_topics(timeout=TIMEOUT_S)
    assert len(topics.topics[cluster.names.check(GROUP)].partitions) == 4


def test_use_before_start_and_after_close(cluster: Cluster) -> None:
    """Both are ProducerClosedError; closing twice is nothing."""
    producer = cluster.producer()
    with pytest.raises(ProducerClosedError, match="not started"):
        producer.begin()
    with producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders))
    producer.close()
    for use in (producer.begin, tx.commit, lambda: tx.send(Message(cluster.orders))):
        with pytest.raises(ProducerClosedError, match="closed"):
            use()


def test_a_forked_child_is_refused(cluster: Cluster) -> None:
    """Threads of librdkafka are not in the child: a clear error instead of a hang."""
    with cluster.producer() as producer:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.begin()
            except ForkedProcessError:
                producer.close()
                os.write(writer, b"refused")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 10) == b"refused"
        os.close(reader)
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))


# --- concurrency -------------------------------------------------------------------------------


def test_32_threads_share_one_producer(cluster: Cluster) -> None:
    """Each of 1,600 blocking transactions has its half, its op and its receipt."""
    receipts: list[tuple[str, Any, Any]] = []
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(50):
                tx = producer.begin()
                sent = tx.send(Message(cluster.orders, key=b"%d" % number, value=b"%d" % n))
                receipts.append((tx.id, sent, tx.commit() if n % 5 else tx.rollback()))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    with cluster.producer() as producer:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    halves = {(r.partition(), r.offset()): r for r in cluster.read(cluster.names.half)}
    ops = {(r.partition(), r.offset()): op for r, op in cluster.ops()}
    assert len(halves) == len(ops) == len(receipts) == 1_600
    for transaction_id, sent, decided in receipts:
        op = ops[decided.op_partition, decided.op_offset]
        assert (op.transaction_id, op.kind.value) == (transaction_id, decided.resolution.value)
        half = halves[sent.half_partition, sent.half_offset]
        assert HALF_METADATA.decode(half.headers()[-1][1]).transaction_id == transaction_id
        assert op.half_offset == sent.half_offset


def test_threads_may_share_one_transaction(cluster: Cluster) -> None:
    """Eight threads send in one transaction: indexes have no gap and no double."""
    with cluster.producer() as producer:
        tx = producer.begin()
        indexes: list[int] = []

        def work() -> None:
            indexes.extend(tx.send(Message(cluster.orders)).message_index for _ in range(25))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tx.commit()
    assert sorted(indexes) == list(range(200))
    ((_, op),) = cluster.ops()
    assert op.message_count == 200


def test_pipelined_transactions_from_one_thread(cluster: Cluster) -> None:
    """2,000 transactions: the ack of a half message sends its commit; flush waits for all."""
    decided: list[Any] = []
    ids: set[str] = set()
    with cluster.producer() as producer:
        for number in range(2_000):
            tx = producer.begin()
            ids.add(tx.id)
            tx.send_async(Message(cluster.orders, value=b"%d" % number)).add_done_callback(
                lambda sent: sent.transaction.commit_async().add_done_callback(decided.append)
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert len(decided) == 2_000
        assert all(future.done() and future.exception() is None for future in decided)
        assert {future.result().transaction_id for future in decided} == ids
    assert {op.transaction_id for _, op in cluster.ops()} == ids


def test_the_in_flight_limit_holds(cluster: Cluster) -> None:
    """A pipelined caller waits for room rather than fill the queue."""
    with cluster.producer(in_flight_max=10, linger_ms=0) as producer:
        most = 0
        for _ in range(500):
            producer.begin().send_async(Message(cluster.orders))
            most = max(most, len(producer._shared._kafka))
        assert producer.flush(TIMEOUT_S) == 0
    assert 0 < most <= 20  # len() counts a record twice while its report is served
    assert len(cluster.read(cluster.names.half)) == 500


def test_futures_serve_callers_that_only_wait(cluster: Cluster) -> None:
    """result, callbacks before and after the end, and a callback that raises."""
    with cluster.producer() as producer:
        tx = producer.begin()
        future = tx.send_async(Message(cluster.orders))
        called = threading.Event()

        def raising(_: object) -> None:
            called.set()
            raise ValueError

        future.add_done_callback(raising)
        assert called.wait(TIMEOUT_S)  # nobody but the background thread serves it
        assert future.done()
        again: list[object] = []
        future.add_done_callback(again.append)
        assert again == [future]
        assert future.result().half_offset == 0
        # A callback may even block on another delivery.
        blocked = producer.begin().send_async(Message(cluster.orders))
        done = threading.Event()
        blocked.add_done_callback(lambda sent: (sent.transaction.commit(), done.set()))
        assert done.wait(TIMEOUT_S)


# --- checks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", list(Resolution))
def test_an_explicit_answer_is_written_and_echoes_the_number(
    cluster: Cluster, answer: Resolution
) -> None:
    """Conformance 17: the checker sees the message; the op echoes ids and covers the half end."""
    views: list[MessageView] = []

    def checker(view: MessageView) -> Resolution:
        views.append(view)
        return answer

    with cluster.producer(checker) as producer:
        for key in (b"0", b"1", b"2", b"3"):
            producer.begin().send(Message(cluster.orders, key=key))
        halves = [r for r in cluster.read(cluster.names.half, 4) if r.partition() == 1]
        cluster.ask(_request(cluster, real_partition=2))
        ((record, op),) = cluster.ops(1)
        assert producer.check_counts().answered == 1
    assert (record.partition(), record.key()) == (1, op.transaction_id.encode())
    assert (op.kind.value, op.source, op.check_number) == (answer.value, OpSource.CHECK, 3)
    assert (op.message_count, op.half_offset) == (-1, len(halves) - 1)
    (view,) = views
    assert (view.topic, view.partition, view.key, view.value) == (cluster.orders, 2, b"k", b"v")
    assert view.headers == (("h", b"1"), ("h", None))
    assert (view.transaction_id, view.check_number) == (op.transaction_id, 3)
    assert (view.attempt, view.born_timestamp, view.producer_group) == (1, 77, GROUP)


@pytest.mark.parametrize("answer", [ValueError("database down"), None, "COMMIT", True])
def test_a_failing_checker_is_an_uncounted_unknown(cluster: Cluster, answer: object) -> None:
    """Conformance 20, 21: number 0 and the reason; the responder goes on."""

    def checker(view: MessageView) -> Any:
        if view.transaction_id != f"{1:032x}":
            return Resolution.COMMIT
        if isinstance(answer, Exception):
            raise answer
        return answer

    with cluster.producer(checker, check_threads=1):
        cluster.ask(_request(cluster, 1), _request(cluster, 2))
        ops = {op.transaction_id: op for _, op in cluster.ops(2)}
    failed = ops[f"{1:032x}"]
    assert (failed.kind, failed.check_number) == (OpKind.UNKNOWN, 0)
    assert ("database down" if isinstance(answer, Exception) else repr(answer)) in failed.reason
    assert ops[f"{2:032x}"].kind is OpKind.COMMIT


def test_a_hanging_checker_times_out_and_its_late_answer_counts(cluster: Cluster) -> None:
    """UNKNOWN 0 at the time-out; others go on; what it says in the end is still the truth."""
    release = threading.Event()

    def checker(view: MessageView) -> Resolution:
        if view.transaction_id == f"{1:032x}":
            release.wait(TIMEOUT_S)
        return Resolution.COMMIT

    with cluster.producer(checker, check_timeout_ms=50, check_threads=2):
        cluster.ask(_request(cluster, 1), _request(cluster, 2))
        ops = {op.transaction_id: op for _, op in cluster.ops(2)}
        assert (ops[f"{1:032x}"].kind, ops[f"{1:032x}"].check_number) == (OpKind.UNKNOWN, 0)
        assert "50 ms" in ops[f"{1:032x}"].reason
        assert ops[f"{2:032x}"].kind is OpKind.COMMIT
        release.set()
        ops_after = cluster.ops(3)
    assert [(op.kind, op.check_number) for _, op in ops_after][-1] == (OpKind.COMMIT, 3)


def test_a_restarted_producer_answers_before_it_sends(cluster: Cluster) -> None:
    """Conformance 115: a request that stood there before the start is answered."""
    cluster.ask(_request(cluster))
    with cluster.producer(lambda view: Resolution.COMMIT):
        ((_, op),) = cluster.ops(1)
    assert (op.kind, op.half_offset) == (OpKind.COMMIT, -1)
    assert cluster.read(cluster.names.half) == []


def test_only_the_newest_attempt_is_checked(cluster: Cluster) -> None:
    """Of what was polled together, one request a transaction; a resumed life is another."""
    cluster.ask(
        _request(cluster, attempt=1),
        _request(cluster, attempt=3),
        _request(cluster, attempt=2),
        _request(cluster, resume_count=1),
    )
    seen: list[tuple[int, int]] = []

    def checker(view: MessageView) -> Resolution:
        seen.append((view.resume_count, view.attempt))
        return Resolution.COMMIT

    with cluster.producer(checker) as producer:
        cluster.ops(2)
        assert producer.check_counts().superseded == 2
    assert sorted(seen) == [(0, 3), (1, 1)]


def test_foreign_and_broken_requests_are_skipped(cluster: Cluster) -> None:
    """Conformance 18, 19, 114: counted, unanswered, and the next one is answered."""
    cluster.ask_raw(None)
    cluster.ask_raw([(CHECK, b"junk")])
    cluster.ask(
        _request(cluster, 1, real_topic="others"),
        _request(cluster, 2, producer_group="another"),
        _request(cluster, 3, half_partition=99),
        _request(cluster, 4),
    )
    with cluster.producer(lambda view: Resolution.ROLLBACK) as producer:
        ((_, op),) = cluster.ops(1)
        counts = producer.check_counts()
    assert op.transaction_id == f"{4:032x}"
    assert (counts.received, counts.undecodable, counts.foreign, counts.answered) == (6, 3, 2, 1)


def test_a_full_pool_refuses_visibly(cluster: Cluster) -> None:
    """Conformance 24: no room is counted and logged; nothing waits without bound."""
    release = threading.Event()

    def checker(view: MessageView) -> Resolution:
        release.wait(TIMEOUT_S)
        return Resolution.COMMIT

    with cluster.producer(checker, check_threads=1, check_queue_max=1) as producer:
        cluster.ask(*(_request(cluster, number) for number in range(1, 11)))
        deadline = monotonic() + TIMEOUT_S
        while producer.check_counts().received < 10:
            assert monotonic() < deadline
            threading.Event().wait(0.01)
        refused = producer.check_counts().refused
        release.set()
        assert refused in (8, 9)
        cluster.ops(10 - refused)


def test_the_front_door_is_the_same_object() -> None:
    """`halfbridge` re-exports, it does not wrap."""
    import halfbridge  # noqa: PLC0415

    for name in bridge.__all__:
        assert getattr(halfbridge, name) is getattr(bridge, name)
    assert issubclass(halfbridge.OutcomeUnknownError, BridgeError)

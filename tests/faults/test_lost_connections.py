"""One of several connections is lost for a moment, and the client repeats by itself.

The daemon must notice it: the commit may arrive twice, and a group may have lost sight of a
member that continues.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from halfbridge.checker.admin.cluster import Cluster as Admin
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.errors import AdminError
from halfbridge.checker.loop.clients import Questions
from halfbridge.checker.loop.failures import InputLostError, KafkaTxnFailedError
from halfbridge.checker.loop.intake import TROUBLE_S, Input
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.checker.process.slots import slot_ids
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.reader import TopicReader
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_STEP_S = 0.05
_CALL_S = 20.0
_OFFSET_COMMIT = 8  # the daemon itself commits within kafka_txns only
_BRIEF_MS = 5000  # a kafka_txn's time-out


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    """Yield two brokers behind a proxy: with one, all brokers would be down."""
    with ProxiedCluster(2) as started:
        yield started


@pytest.fixture
def config(cluster: ProxiedCluster, make_config: Callable[..., CheckerConfig]) -> CheckerConfig:
    """Return the settings of a daemon whose topics are there."""
    return make_config(cluster)


@pytest.mark.parametrize("kafka", [{}, {"log.connection.close": "false"}], ids=["", "quiet"])
def test_a_commit_that_may_arrive_twice_replaces_its_producer(
    cluster: ProxiedCluster, config: CheckerConfig, kafka: dict[str, str]
) -> None:
    """The connection is lost after the commit, which is repeated and succeeds.

    Also where the user does not want to read of connections that brokers close.
    """
    config = replace(config, kafka=kafka)
    transactor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    transactor.start()
    group = Consumer({"bootstrap.servers": config.bootstrap_servers, "group.id": "lost"})
    offsets = [(config.names.op, 0, 0, "")]
    transactor.write([])
    transactor.commit(offsets, group.consumer_group_metadata())
    assert not transactor.must_be_replaced()

    before = cluster.proxy.hits(Act.STRAND, Api.END_TXN)
    cluster.proxy.add(Rule(api=Api.END_TXN, act=Act.STRAND, delay_ms=100, times=1))
    transactor.write([])
    transactor.commit(offsets, group.consumer_group_metadata())

    assert cluster.proxy.hits(Act.STRAND, Api.END_TXN) == before + 1
    assert transactor.must_be_replaced()
    transactor.close()
    group.close()


def test_copies_that_nobody_acknowledged_fail_their_kafka_txn(
    cluster: ProxiedCluster, config: CheckerConfig
) -> None:
    """Their offsets may be higher than a rebuild would search."""
    transactor = Transactor(
        replace(config, kafka_txn_timeout_ms=_BRIEF_MS),
        f"{config.names.op}-w",
        ports=system_ports(),
    )
    transactor.start()
    cluster.proxy.drop_answers(*cluster.node_ids)
    try:
        copy = Outgoing(config.names.half, 0, b"key", b"value", [], 0, is_copy=True)
        # Whichever comes first: the worker's patience, or the client library's.
        with pytest.raises(KafkaTxnFailedError, match=r"1 records were not ack|Message timed out"):
            transactor.write([copy])
    finally:
        cluster.proxy.heal()
        transactor.close()


def test_a_member_knows_that_its_coordinator_was_out_of_reach(
    cluster: ProxiedCluster, config: CheckerConfig
) -> None:
    """Being fenced means another worker, unless brokers were out of reach a moment ago."""
    reader = Input(config, slot_ids("lost", topic_prefix=config.topic_prefix), system_ports())

    def fetched() -> None:
        reader.fetch(_STEP_S)

    until("it has joined", lambda: fetched() or reader.assigned)
    assert time.monotonic() - reader._failures._lost_at > TROUBLE_S

    cluster.proxy.add(Rule(api=Api.HEARTBEAT, act=Act.STRAND, times=1))
    until(
        "it notices", lambda: fetched() or time.monotonic() - reader._failures._lost_at < TROUBLE_S
    )
    assert cluster.proxy.hits(Act.STRAND, Api.HEARTBEAT) == 1
    reader.close(leave=True)


def test_a_member_whose_coordinator_was_silent_joins_again(
    cluster: ProxiedCluster, config: CheckerConfig
) -> None:
    """Its session over, the client sends one more heartbeat, without its id: it fences itself."""
    reader = Input(config, slot_ids("silent", topic_prefix=config.topic_prefix), system_ports())

    def fetched() -> None:
        reader.fetch(_STEP_S)

    until("it has joined", lambda: fetched() or reader.assigned)
    place = TopicPartition(*min(reader.assigned), 0)

    def is_over() -> bool:
        # Nothing is fetched, as while a commit hangs, and the client waits for leave to let its
        # partitions go. To the coordinator, a member that commits offsets is alive.
        reader._member._consumer.commit(offsets=[place], asynchronous=True)
        return cluster.proxy.hits(Act.HOLD, Api.HEARTBEAT) == before + 2

    before = cluster.proxy.hits(Act.HOLD, Api.HEARTBEAT)
    cluster.proxy.add(Rule(api=Api.HEARTBEAT, act=Act.SWALLOW, times=1))
    cluster.proxy.add(Rule(api=Api.HEARTBEAT, act=Act.HOLD, times=2))
    cluster.proxy.add(Rule(api=_OFFSET_COMMIT, act=Act.SWALLOW))
    until("its session is over", is_over)
    with pytest.raises(InputLostError, match=r"fenced.* a new one joins"):
        until("it is fenced", fetched)
    cluster.proxy.heal()
    until("it has joined again", lambda: fetched() or reader.assigned)
    reader.close(leave=True)


def test_a_broker_that_does_not_answer_has_no_end_to_tell(
    cluster: ProxiedCluster, config: CheckerConfig
) -> None:
    """The other one answers the same question; what is missing must not look like an answer.

    Taken for the end of a log it stopped partitions for good, as truncated.
    """
    topic = f"{config.topic_prefix}spread"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(_CALL_S)
    questions = Questions(config, system_ports())
    places = [(topic, number) for number in range(2)]
    until("both are led", lambda: topic in questions.topics())
    assert questions.ask_ranges(places).answers() == dict.fromkeys(places, (0, 0))

    cluster.proxy.drop_answers(cluster.node_ids[0])
    silent, reported = sorted(questions.ask_ranges(places).answers().values(), key=_is_range)
    assert (type(silent), reported) == (InputLostError, (0, 0))
    answers = [_watermarks(config, *place) for place in places]
    cluster.proxy.heal()
    assert sorted(answers) == [(), (0, 0)]


def _is_range(answer: object) -> bool:
    return isinstance(answer, tuple)


def _watermarks(config: CheckerConfig, topic: str, partition: int) -> tuple[int, ...]:
    """Return the ends of a log as an operator's command sees them: None if no broker answers."""
    try:
        return Admin(config.bootstrap_servers).watermarks(topic, partition)
    except AdminError:
        return ()


def test_a_reader_begins_although_a_leader_does_not_know_the_topic_yet(
    cluster: ProxiedCluster, topic_prefix: str
) -> None:
    """Asked where the log begins, it answers with an error; the next question is answered.

    It is asked, because the log does not begin with offset 0.
    """
    topic = f"{topic_prefix}new"
    _create_with_a_record(cluster, topic, gone=1)
    code = KafkaError.UNKNOWN_TOPIC_OR_PART
    cluster.proxy.add(Rule(api=Api.LIST_OFFSETS, act=Act.FAIL, error=code, times=1))

    assert _first_of(TopicReader(cluster.proxied_servers, [topic])) == b"value"
    assert cluster.proxy.hits(Act.FAIL, Api.LIST_OFFSETS) == 1


def test_a_reader_begins_although_a_broker_has_not_heard_of_the_topic_yet(
    cluster: ProxiedCluster, topic_prefix: str
) -> None:
    """Asked for its partitions, the broker says that there is no such topic; so it asks again."""
    topic = f"{topic_prefix}later"
    before = cluster.proxy.hits(Act.HOLD, Api.METADATA)
    cluster.proxy.add(Rule(api=Api.METADATA, act=Act.HOLD, times=3))
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(TopicReader, cluster.proxied_servers, [topic])
        until(
            "it gave up, or asked again",
            lambda: joining.done() or cluster.proxy.hits(Act.HOLD, Api.METADATA) == before + 3,
            within_s=_CALL_S,
        )
        _create_with_a_record(cluster, topic)
        assert _first_of(joining.result(_CALL_S)) == b"value"


def _create_with_a_record(cluster: ProxiedCluster, topic: str, *, gone: int = 0) -> None:
    """Make a topic of one partition with `value` after `gone` deleted records."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 2)])[topic].result(_CALL_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in [*[b"gone"] * gone, b"value"]:
        producer.produce(topic, value)
    assert producer.flush(_CALL_S) == 0
    if gone:
        for deletion in admin.delete_records([TopicPartition(topic, 0, gone)]).values():
            deletion.result(_CALL_S)


def _first_of(witness: TopicReader) -> bytes | None:
    """Return the value of the first record that it reads."""
    read: list[ReadRecord] = []
    try:
        until("a record is read", lambda: read.extend(witness.poll()) or read, within_s=_CALL_S)
    finally:
        witness.close()
    return read[0].value

"""Acknowledgements without an offset: the client infers that a record is stored, without an answer.

librdkafka does when a later record of the partition was acknowledged, and when a broker speaks of
a duplicate sequence number, which the proxy puts into the answer here. After a leader's death it
was seen to be wrong: decisions were acknowledged so that were in no log.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic

from halfbridge.bridge import (
    HalfNotStoredError,
    Message,
    OutcomeUnknownError,
    Resolution,
    TransactionProducer,
)
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.reader import read_all
from tests.kit.cluster import ProxiedCluster
from tests.kit.inferred import INFERRED
from tests.kit.proxy import Act, Api

pytestmark = pytest.mark.broker

_GROUP = "inferred"
_CALL_S = 20.0
_LINGER_MS = 200  # so that what is sent within it is sent at once
_AT_ONCE = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    """Yield a broker behind a proxy."""
    with ProxiedCluster(1) as started:
        yield started


@pytest.fixture
def config(cluster: ProxiedCluster, make_config: Callable[..., CheckerConfig]) -> CheckerConfig:
    """Return the settings of a daemon whose topics are there."""
    config = make_config(cluster, _GROUP)
    topic = _real_topic(config)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_CALL_S)
    return config


def _real_topic(config: CheckerConfig) -> str:
    return f"{config.topic_prefix}orders"


@pytest.fixture
def producer(cluster: ProxiedCluster, config: CheckerConfig) -> Iterator[TransactionProducer]:
    """Yield a producer whose records pass the proxy."""
    with _producer(cluster, config) as started:
        yield started


def _producer(
    cluster: ProxiedCluster, config: CheckerConfig, **settings: Any
) -> TransactionProducer:
    return TransactionProducer(
        bootstrap_servers=cluster.proxied_servers,
        producer_group=_GROUP,
        topics=[_real_topic(config)],
        topic_prefix=config.topic_prefix,
        checker=lambda _: Resolution.UNKNOWN,
        **settings,
    )


def test_a_half_message_is_not_stored(
    cluster: ProxiedCluster, producer: TransactionProducer, config: CheckerConfig
) -> None:
    """The producer must not run its local transaction; the next half message is stored again."""
    message = Message(_real_topic(config), value=b"one")
    tx = producer.begin()
    cluster.proxy.add(INFERRED)

    with pytest.raises(HalfNotStoredError, match="without an offset"):
        tx.send(message)
    tx.rollback()

    assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) > 0
    with producer.begin() as later:
        later.send(message)


def test_none_of_the_half_messages_that_were_sent_at_once_is_stored(
    cluster: ProxiedCluster, config: CheckerConfig
) -> None:
    """The client counts their offsets up from none at all: 0, 1 and so on prove nothing either."""
    with _producer(cluster, config, linger_ms=_LINGER_MS) as producer:
        with producer.begin() as tx:
            tx.send(Message(_real_topic(config), value=b"before", key=b"key"))
            tx.commit(wait=True)
        cluster.proxy.add(INFERRED)
        begun = [producer.begin() for _ in range(_AT_ONCE)]
        message = Message(_real_topic(config), value=b"at once", key=b"key")
        for future in [each.send_async(message) for each in begun]:
            with pytest.raises(HalfNotStoredError, match="without an offset"):
                future.result(_CALL_S)
        for each in begun:
            each.rollback()

        with producer.begin() as later:
            assert later.send(message).half_offset > _AT_ONCE


def test_a_decision_is_in_doubt_and_can_be_repeated(
    cluster: ProxiedCluster, producer: TransactionProducer, config: CheckerConfig
) -> None:
    """It must not be reported as stored; when it is repeated, it is stored at a known offset."""
    tx = producer.begin()
    tx.send(Message(_real_topic(config), value=b"one"))
    cluster.proxy.add(INFERRED)

    with pytest.raises(OutcomeUnknownError, match="without an offset"):
        tx.commit(wait=True)

    assert tx.commit().result().op_offset >= 0


def test_a_put_back_is_written_again(cluster: ProxiedCluster, config: CheckerConfig) -> None:
    """A copy whose place is not known does not count: the kafka_txn fails, and is done again."""
    transactor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    transactor.start()
    copy = Outgoing(config.names.half, 0, None, b"a copy", [], 0, is_copy=True)
    cluster.proxy.add(INFERRED)

    with pytest.raises(KafkaTxnFailedError, match="without an offset"):
        transactor.write([copy])

    transactor.close()
    successor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    successor.start()
    assert successor.write([copy])[0] > 0
    successor.close()


def test_a_delivery_is_written_again(cluster: ProxiedCluster, config: CheckerConfig) -> None:
    """Its kafka_txn is not committed: it might lack the record, which would be lost for good."""
    group = Consumer({"bootstrap.servers": config.bootstrap_servers, "group.id": _GROUP})
    offsets = [(config.names.op, 0, 1, "")]
    delivery = Outgoing(_real_topic(config), 0, None, b"delivered", [], 0)
    transactor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    transactor.start()
    cluster.proxy.add(INFERRED)
    transactor.write([delivery])

    with pytest.raises(KafkaTxnFailedError, match="without an offset"):
        transactor.commit(offsets, group.consumer_group_metadata())

    transactor.close()
    successor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    successor.start()
    successor.write([delivery])
    successor.commit(offsets, group.consumer_group_metadata())
    successor.close()
    group.close()
    read = read_all(config.bootstrap_servers, [_real_topic(config)])
    assert [record.value for record in read] == [b"delivered"]

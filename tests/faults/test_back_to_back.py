"""kafka_txns of one record each, one right after the other."""

import statistics
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import Layout
from halfbridge.checker.admin.topics import create_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.producers import TransactionalProducers
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.checker.metrics import Metrics
from halfbridge.kafka.adapter import system_ports

pytestmark = pytest.mark.broker

_CALL_S = 30.0
_ROUNDS = 20
_PER_ROUND = 10
# A kafka_txn of one record asks the brokers five times, one after the other, and they write its
# markers: an idle machine shows about 8 acknowledged records in that time. Clients that wait 100 ms
# after each CONCURRENT_TRANSACTIONS, as by default, are beyond 50.
_RECORDS_MAX = 40


def test_case_57_back_to_back_kafka_txns(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """The median one lasts no longer than so many acknowledged records beside it, one by one.

    Both are measured in turn, on the same broker, so that a busy machine slows both.
    """
    config = CheckerConfig(bootstrap_servers=kafka_bootstrap_servers, topic_prefix=topic_prefix)
    layout = Layout(partitions=1, replication_factor=1, producer_groups=())
    create_topics(Cluster(kafka_bootstrap_servers), config.names, layout)
    settings = {"bootstrap.servers": kafka_bootstrap_servers, "acks": "all", "linger.ms": 0}
    plain: Any = Producer(settings)
    group = Consumer({"bootstrap.servers": kafka_bootstrap_servers, "group.id": topic_prefix})
    turns = TransactionalProducers(config, f"{topic_prefix}turns", Metrics(), ports=system_ports())
    turns.start()
    record = Outgoing(config.names.dead, 0, None, b"x" * 100, [], 0)
    offsets = [(config.names.op, 0, 1, "")]
    metadata = group.consumer_group_metadata()

    def send() -> None:
        plain.produce(record.topic, record.value, partition=0)
        assert plain.flush(_CALL_S) == 0

    def transact() -> None:
        turns.write([record])
        turns.commit(offsets, metadata, in_background=False)

    sends, kafka_txns = [], []
    for call in (send, transact):  # the first of each finds its brokers
        call()
    for _ in range(_ROUNDS):
        sends += [_lasted_s(send) for _ in range(_PER_ROUND)]
        kafka_txns += [_lasted_s(transact) for _ in range(_PER_ROUND)]
    turns.close()
    group.close()

    ratio = statistics.median(kafka_txns) / statistics.median(sends)
    print(
        f"{1 / statistics.median(kafka_txns):.0f} kafka_txns a second, {_reported(kafka_txns)};"
        f" an acknowledged record, {_reported(sends)}: {ratio:.1f} of them a kafka_txn"
    )
    assert ratio < _RECORDS_MAX


def _lasted_s(call: Any) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _reported(samples: list[float]) -> str:
    ms = sorted(each * 1000 for each in samples)
    return f"p50 {statistics.median(ms):.1f} ms, p99 {ms[int(len(ms) * 0.99)]:.1f} ms"

"""Messages of a real topic on a broker: what a read_committed consumer sees, and nothing else."""

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from halfbridge.spark import read_messages
from tests.spark.real_topic import Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PARTITIONS = 4


class Topic(RealTopic):
    """A real topic whose messages are counted; a record is (transaction id, partition)."""

    def begin(self, records: Iterable[Any], *, slot: int = 0) -> Producer:
        """Write the records in a kafka_txn that stays open."""
        each_has = (Real(transaction_id=name, partition=partition) for name, partition in records)
        return super().begin(each_has, slot=slot)

    def count(self, spark: SparkSession) -> dict[str, int]:
        """Return the number of messages of each transaction."""
        messages = read_messages(spark, bootstrap_servers=self.servers, topics=self.name)
        rows = messages.groupBy("transaction_id").count().collect()
        return {row["transaction_id"]: row["count"] for row in rows}


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> Topic:
    """An empty real topic."""
    made = make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders", partitions=PARTITIONS)
    return Topic(made.servers, made.name)


@pytest.mark.feature
def test_only_committed_messages_are_read(spark: SparkSession, topic: Topic) -> None:
    """Aborted ones are not, be they between committed ones or all that a partition has."""
    topic.commit(("a1", 0), ("a1", 0), ("a1", 1))
    topic.abort(("c3", 0), ("c3", 0), ("a1", 0), ("c3", 2))
    topic.commit(("b2", 0))
    assert topic.count(spark) == {"a1": 3, "b2": 1}


def test_partition_that_holds_a_marker_only(spark: SparkSession, topic: Topic) -> None:
    """Its one offset is the kafka_txn's commit marker: no row, no loss, no waiting."""
    topic.commit(("a1", 0), ("b2", 3))
    topic.delete_before(1, partition=3)
    assert topic.count(spark) == {"a1": 1}


def test_open_kafka_txn_hides_its_partition_until_it_ends(
    spark: SparkSession, topic: Topic
) -> None:
    """Messages of an open kafka_txn, and those behind it, are there once it has ended."""
    topic.commit(("a1", 0), ("a1", 1))
    producer = topic.begin([("b2", 0)], slot=1)
    topic.commit(("c3", 0), ("c3", 1))
    assert topic.count(spark) == {"a1": 2, "c3": 1}
    topic.end(producer, slot=1)
    assert topic.count(spark) == {"a1": 2, "b2": 1, "c3": 2}


def test_empty_topic(spark: SparkSession, topic: Topic) -> None:
    """A topic that nobody has written to has no counts."""
    assert topic.count(spark) == {}

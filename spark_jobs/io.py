"""How jobs read topics. Every option that decides what a row is stands here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

# What makes a read right; nobody may change these.
_FIXED = {
    # Spark's default shows records of open and aborted kafka_txns.
    "kafka.isolation.level": "read_committed",
    # Offsets of markers and aborted records are not taken for loss, so true costs nothing.
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}
# What the caller may set otherwise. Spark asks the broker twice for offsets after every poll,
# whose default is 500 records; the sizes are what a poll of 10,000 records of 1 KB takes.
_DEFAULTS = {
    "kafka.default.api.timeout.ms": "30000",  # 60 s is long to learn that no broker answers
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}


def real_topic_options(
    topic: str, *, bootstrap_servers: str, kafka: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options of Spark's Kafka source for all committed rows of `topic`.

    Args:
        topic: Name of one real topic.
        bootstrap_servers: `host:port`, separated by commas.
        kafka: Consumer properties by their Kafka names (security, say), without `kafka.`.

    Raises:
        ValueError: `kafka` sets what makes the read right, or topic or servers are empty; the
            caller's mistake.
    """
    if not topic or not bootstrap_servers:
        raise ValueError("topic and bootstrap_servers must not be empty")
    given = {f"kafka.{name}": value for name, value in (kafka or {}).items()}
    fixed = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",  # under read_committed: the last stable offset
        **_FIXED,
    }
    if clash := sorted(given.keys() & fixed.keys()):
        names = ", ".join(name.removeprefix("kafka.") for name in clash)
        raise ValueError(f"{names} cannot be set: a job reads what was committed, and all of it")
    return {**_DEFAULTS, **given, **fixed}


def read_real_topic(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return all rows of `topic` that are committed when the read is planned.

    An open kafka_txn hides its partition's rows behind it until it ends: Spark reads to the last
    stable offset and says nothing.

    Returns:
        key binary, value binary, topic string, partition int, offset long, timestamp timestamp,
        timestampType int, headers array<struct<key string, value binary>> (null: no headers);
        unique by (partition, offset), in no order.

    Raises:
        ValueError: as `real_topic_options`.
    """
    options = real_topic_options(topic, bootstrap_servers=bootstrap_servers, kafka=kafka)
    return spark.read.format("kafka").options(**options).load()

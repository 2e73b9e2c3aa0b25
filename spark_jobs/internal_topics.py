"""Reads exactly what a snapshot says, natively and `read_committed`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.snapshot import Range, Snapshot

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)
# What makes a read right; nobody may change these.
FIXED = {
    # Spark's default shows records of open and aborted kafka_txns.
    "kafka.isolation.level": "read_committed",
    # Offsets of markers and aborted records are not taken for loss, so true costs nothing.
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}
# As in spark_jobs.io, and for the same reasons.
DEFAULTS = {
    "kafka.default.api.timeout.ms": "30000",
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}


def source_options(bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source that do not say which topics.

    Args:
        bootstrap_servers: `host:port`, separated by commas.
        kafka: Consumer properties by their Java names, without `kafka.`.

    Raises:
        JobError: `kafka` sets what makes the read right; the user must leave it out.
    """
    given = {f"kafka.{name}": value for name, value in kafka.items()}
    fixed = {"kafka.bootstrap.servers": bootstrap_servers, **FIXED}
    if clash := sorted(given.keys() & fixed.keys()):
        names = ", ".join(name.removeprefix("kafka.") for name in clash)
        raise JobError(f"{names} cannot be set: a job reads what was committed, and all of it")
    return {**DEFAULTS, **given, **fixed}


def read_topics(
    spark: SparkSession, snapshot: Snapshot, topics: Iterable[str], options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of `topics` that `snapshot` names, in Kafka's columns.

    Args:
        spark: A session with the Kafka connector.
        snapshot: Holds these topics.
        topics: Names of topics.
        options: `source_options`.
    """
    return read_ranges(spark, {topic: snapshot.topics[topic] for topic in topics}, options)


def read_ranges(
    spark: SparkSession,
    topics: Mapping[str, Mapping[int, Range]],
    options: Mapping[str, str],
) -> DataFrame:
    """Return the rows of these ranges, in Kafka's columns."""
    wanted = {
        topic: {number: each for number, each in ranges.items() if each.start < each.end}
        for topic, ranges in topics.items()
    }
    wanted = {topic: ranges for topic, ranges in wanted.items() if ranges}
    if not wanted:
        return spark.createDataFrame([], KAFKA_SCHEMA)
    offsets = {
        **options,
        "assign": _json({topic: sorted(ranges) for topic, ranges in wanted.items()}),
        "startingOffsets": _json(
            {topic: {n: each.start for n, each in r.items()} for topic, r in wanted.items()}
        ),
        "endingOffsets": _json(
            {topic: {n: each.end for n, each in r.items()} for topic, r in wanted.items()}
        ),
    }
    return spark.read.format("kafka").options(**offsets).load()


def _json(value: object) -> str:
    return json.dumps(value)

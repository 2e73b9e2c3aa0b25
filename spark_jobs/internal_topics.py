"""Reads exactly what a snapshot says, natively and `read_committed`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spark_jobs.errors import JobError
from spark_jobs.io import cluster_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.snapshot import Range, Snapshot

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)


def source_options(bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source that do not say which topics.

    Args:
        bootstrap_servers: `host:port`, separated by commas.
        kafka: Consumer properties by their Java names, without `kafka.`.

    Raises:
        JobError: `kafka` sets what makes the read right; the user must leave it out.
    """
    try:
        return cluster_options(bootstrap_servers, kafka)
    except ValueError as error:
        raise JobError(str(error)) from error


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

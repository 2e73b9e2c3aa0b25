"""How jobs read topics: all options that affect the rows of a read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.reading.offsets import EARLIEST, LATEST, Position, check_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.reading.offsets import Range

# The columns of Spark's Kafka source.
KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)
# A value of timestampType: the broker set the timestamp when it appended the record.
LOG_APPEND_TIME = 1
ISOLATION = "read_committed"

# Options on which the correctness of a read rests; callers cannot change them.
_FIXED = {
    # Spark's default shows records of open and aborted kafka_txns.
    "kafka.isolation.level": ISOLATION,
    # Offsets of markers and aborted records do not count as loss, so true costs nothing.
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}
# Defaults that callers may change. Spark asks the broker twice for offsets after every poll,
# whose default is 500 records; the sizes suffice for a poll of 10,000 records of 1 KB.
_DEFAULTS = {
    "kafka.default.api.timeout.ms": "30000",  # 60 s is long to learn that no broker answers
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}

_JAVA_TOKENS = (
    "oauth_cb is a Python function, which does not reach Spark's own (Java) Kafka client: set"
    " sasl.jaas.config and sasl.login.callback.handler.class"
)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read: by name, or all that match a pattern."""

    names: tuple[str, ...] = ()  # names, sorted, each once
    pattern: str = ""  # a Java regular expression for the whole name, instead of names

    @classmethod
    def of(cls, *names: str, pattern: str = "") -> Topics:
        """Return the topics of these names, or of this pattern.

        Raises:
            ValueError: none or both are given, or a name is empty or several at once; the caller
                corrects it.
        """
        if bool(names) == bool(pattern) or not all(names):
            raise ValueError("give topics by name, or a pattern: not both, none empty")
        if several := [name for name in names if "," in name]:
            raise ValueError(f"{several[0]!r} is not the name of one topic")
        return cls(tuple(sorted(set(names))), pattern)

    def option(self) -> dict[str, str]:
        """Return the option of Spark's source."""
        if self.pattern:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join(self.names)}

    def __str__(self) -> str:
        return (self.pattern and f"/{self.pattern}/") or ",".join(self.names)


def source_options(
    topics: Topics, *, bootstrap_servers: str, kafka: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options of Spark's source that a batch read and a stream have in common.

    `kafka` are consumer properties by their Kafka names (security, say), without `kafka.`.

    Raises:
        ValueError: `kafka` sets what makes the read right, or has `oauth_cb`, or servers are empty;
            the caller's mistake.
    """
    return cluster_options(bootstrap_servers, kafka or {}, which=topics.option())


def cluster_options(
    bootstrap_servers: str, kafka: Mapping[str, str], *, which: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options of Spark's source that every read has, and `which` topics it reads.

    Raises ValueError: as `source_options`; the caller's mistake.
    """
    if not bootstrap_servers:
        raise ValueError("bootstrap_servers must not be empty")
    if "oauth_cb" in kafka:
        raise ValueError(_JAVA_TOKENS)
    given = {f"kafka.{name}": value for name, value in kafka.items()}
    fixed = {"kafka.bootstrap.servers": bootstrap_servers, **(which or {}), **_FIXED}
    if clash := sorted(given.keys() & fixed.keys()):
        names = ", ".join(name.removeprefix("kafka.") for name in clash)
        raise ValueError(f"{names} cannot be set: a job reads all committed records, and no others")
    return {**_DEFAULTS, **given, **fixed}


def read_topics(
    spark: SparkSession,
    topics: Topics,
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    start: Position = EARLIEST,
    end: Position = LATEST,
) -> DataFrame:
    """Return the committed rows of `topics` between two positions.

    Offsets are resolved when the read is planned; a plan that is run twice reads the same rows. An
    open kafka_txn hides its partition's rows after it until it ends: Spark reads to the last
    stable offset, without an error.

    Returns:
        The columns of KAFKA_SCHEMA; unique by (topic, partition, offset), in no order. `headers`
        is null where there are none.

    Raises:
        ValueError: `source_options` or `check_batch` raises it; the caller's mistake.
    """
    check_batch(start, end)
    common = source_options(topics, bootstrap_servers=bootstrap_servers, kafka=kafka)
    options = {**common, **start.starting(), **end.ending()}
    return spark.read.format("kafka").options(**options).load()


def read_ranges(
    spark: SparkSession, topics: Mapping[str, Mapping[int, Range]], options: Mapping[str, str]
) -> DataFrame:
    """Return the committed rows of these ranges and no others, as `read_topics` does.

    `options` are `cluster_options`, which name no topics. Ranges may be empty.
    """
    wanted = {
        topic: {number: each for number, each in ranges.items() if each.start < each.end}
        for topic, ranges in topics.items()
    }
    wanted = {topic: ranges for topic, ranges in wanted.items() if ranges}
    if not wanted:
        # The limit tells Spark that it is empty, and it plans no join with it.
        return spark.createDataFrame([], KAFKA_SCHEMA).limit(0)
    starts = {topic: {n: each.start for n, each in of.items()} for topic, of in wanted.items()}
    ends = {topic: {n: each.end for n, each in of.items()} for topic, of in wanted.items()}
    which = {
        "assign": json.dumps({topic: sorted(of) for topic, of in wanted.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    return spark.read.format("kafka").options(**options, **which).load()


def stream_topics(
    spark: SparkSession,
    topics: Topics,
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    start: Position = EARLIEST,
    max_offsets: int | None = None,
) -> DataFrame:
    """Return the committed rows of `topics` as a stream, with the columns of `read_topics`.

    A checkpoint that has a batch continues there: `start` counts for a new one only, and
    partitions that are new to it are read from their first offset. A pattern also matches topics
    that are created later. `max_offsets` is the most of a batch, all partitions together; offsets
    of markers and aborted records count too, so a batch may have no rows at all.
    """
    options = source_options(topics, bootstrap_servers=bootstrap_servers, kafka=kafka)
    options.update(start.starting())
    if max_offsets is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets)
    return spark.readStream.format("kafka").options(**options).load()

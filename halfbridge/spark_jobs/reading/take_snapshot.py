"""Takes snapshots. A job on one is sound because of the order in which the ends are asked for.

A transaction moves one way: half message, op, then, in one kafka_txn, deliveries or dead letters
together with O. A consumer of any of these topics sees a growing beginning of it.

For an audit: O, then real topics and dead letters, then ops, then halves. So

- a delivery or dead letter in the snapshot has its op and its half in it: a delivery without
  them is a phantom at any time, however busy the daemon is;
- of two decisions the first in op order is in it when the second is;
- an op below O had its effect in a kafka_txn that was decided before O could be seen, so its rows
  were appended before the real topics' ends were asked. The markers of that kafka_txn may still be
  on their way to some partitions: the ends that count are last stable offsets that lie above
  everything appended by then. A record that is missing there is lost, whatever clocks say. Where
  an open kafka_txn prevents such an end from being reached, missing records are not reported.

For undecided transactions: halves, then ops, so that none is called undecided whose decision was
there when its half was.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from halfbridge.serde.headers import DEAD, TRANSACTION_ID
from halfbridge.serde.topics import DEAD_LETTERS, TopicNames
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.cluster import Brokers, connect
from halfbridge.spark_jobs.reading.offsets import NOTHING_LEFT_MS, Range, Snapshot
from halfbridge.spark_jobs.reading.topics import (
    LOG_APPEND_TIME,
    Topics,
    cluster_options,
    read_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.kafka.ports import TopicPartition

# The daemon's kafka_txns end within 20 s even when it dies (kafka_txn_timeout_ms).
SETTLE_S = 25.0
# A kafka_txn in which the daemon puts copies back ends within this time, usually in milliseconds; a
# longer one is reported. A snapshot waits for it.
_BRIEF_S = 1.0
# Offsets read to learn when a cut log begins now; most of them may be markers.
_PROBE_OFFSETS = 1_000

Ranges = dict[str, dict[int, Range]]


def audit_snapshot(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str],
    prefix: str,
    real_topics: Iterable[str],
    settle_s: float = SETTLE_S,
) -> Snapshot:
    """Return a snapshot for an audit.

    Of `real_topics` those that exist are read; the others are named in `gone`. Open kafka_txns on
    real topics are waited for, `settle_s` at most.

    Raises:
        JobError: the installation's topics are not there, or no broker answers; the user follows
            its text.
    """
    names = TopicNames(prefix)
    with connect(spark, bootstrap_servers, kafka) as cluster:
        wanted = sorted(real_topics)
        present = _present(cluster, names, (names.half, names.op, names.dead))
        real = [topic for topic in wanted if topic in present]
        applied = cluster.applied(names.daemon_group, names.half, names.op)
        taken_ms = now_ms()
        # Asked first: if a topic is created again now, the id does not fit the ends, which is an
        # error later. The other way round its offsets would be read of another topic.
        ids = cluster.topic_ids(Topics.of(names.half, names.op, names.dead, *real))
        outputs, hidden = cluster.awaited_ends(
            cluster.partitions([*real, names.dead]), within_s=settle_s
        )
        ops = cluster.stable_ends(cluster.partitions([names.op]))
        halves = cluster.stable_ends(cluster.partitions([names.half]))
        ends = {**outputs, **ops, **halves}
        starts = cluster.starts(ends)
    return Snapshot(
        prefix=prefix,
        taken_ms=taken_ms,
        topics=_with_first(
            spark, _ranges(starts, ends), cluster_options(bootstrap_servers, kafka), real=real
        ),
        real_topics=tuple(real),
        applied=applied.ops,
        positions=applied.positions,
        hidden=tuple(sorted({topic for topic, _ in hidden})),
        gone=tuple(topic for topic in wanted if topic not in present),
        topic_ids=ids,
    )


def other_halves(
    spark: SparkSession,
    names: TopicNames,
    prefixes: Iterable[str],
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str],
) -> tuple[Ranges, dict[str, str]]:
    """Return the present ranges of the half topics of other installations, and the topics' ids.

    Asked after the ends of the real topics: what another installation has delivered by then has its
    half message in it, or had it before its retention deleted that. Without `prefixes`, all other
    installations that the cluster has are read.

    Raises:
        JobError: one that is named is not there, or no broker answers; the user follows its text.
    """
    with connect(spark, bootstrap_servers, kafka) as cluster:
        present = cluster.topics()
        wanted = [TopicNames(prefix) for prefix in prefixes] or TopicNames.found_in(present)
        halves = [each.half for each in wanted if each != names]
        for half in halves:
            if half not in present:
                raise _missing(half, "--other-prefix")
        ids = cluster.topic_ids(Topics.of(*halves)) if halves else {}  # first, as in an audit
        ends = cluster.stable_ends(cluster.partitions(halves)) if halves else {}
        starts = cluster.starts(ends) if ends else {}
    options = cluster_options(bootstrap_servers, kafka)
    return _with_first(spark, _ranges(starts, ends), options), ids


def undecided_snapshot(
    spark: SparkSession, *, bootstrap_servers: str, kafka: Mapping[str, str], prefix: str
) -> Snapshot:
    """Return a snapshot of half and op topic, without what retention has deleted of them."""
    names = TopicNames(prefix)
    with connect(spark, bootstrap_servers, kafka) as cluster:
        _present(cluster, names, (names.half, names.op))
        taken_ms = now_ms()
        halves, hidden = cluster.awaited_ends(cluster.partitions([names.half]), within_s=_BRIEF_S)
        ops, hidden_ops = cluster.awaited_ends(cluster.partitions([names.op]), within_s=_BRIEF_S)
        ends = {**halves, **ops}
        starts = cluster.starts(ends)
    return Snapshot(
        prefix=prefix,
        taken_ms=taken_ms,
        topics=_ranges(starts, ends),
        real_topics=(),
        hidden=tuple(sorted({topic for topic, _ in hidden | hidden_ops})),
    )


def first_times(rows: DataFrame, real: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the time of the first record of each partition that has one; `rows` are its first.

    In `real` topics and the dead-letter topic only the daemon's records count, which bear partition
    time; other writers may set any timestamps. In all other topics the brokers' append times do: a
    writer's clock that is a year behind would say that nothing of that year was deleted.
    """
    topic, names = F.col("topic"), F.col("headers")["key"]
    has_time = (
        F.when(topic.isin(*real), F.array_contains(names, TRANSACTION_ID))
        .when(topic.endswith(DEAD_LETTERS), F.array_contains(names, DEAD))
        .otherwise(F.col("timestampType") == LOG_APPEND_TIME)
    )
    timed = rows.where(has_time)
    first = timed.groupBy("topic", "partition").agg(F.min(F.unix_millis("timestamp")).alias("ms"))
    return {(row["topic"], row["partition"]): row["ms"] for row in first.collect()}


def topic_ranges(
    spark: SparkSession, topic: str, *, bootstrap_servers: str, kafka: Mapping[str, str]
) -> Ranges:
    """Return what one topic holds now.

    Raises JobError: no such topic, or no broker answers; the user follows the text.
    """
    with connect(spark, bootstrap_servers, kafka) as cluster:
        if topic not in cluster.topics():
            raise _missing(topic)
        ends = cluster.stable_ends(cluster.partitions([topic]))
        return _ranges(cluster.starts(ends), ends)


def _present(cluster: Brokers, names: TopicNames, needed: tuple[str, ...]) -> frozenset[str]:
    """Return all topics of the cluster.

    Raises JobError: one of the `needed` is not there; the user follows the text.
    """
    present = cluster.topics()
    for topic in needed:
        if topic not in present:
            raise _missing(topic, names.prefix)
    return present


def _missing(topic: str, prefix: str = "") -> JobError:
    hint = f" the prefix {prefix!r} is right" if prefix else " no --prefix is missing"
    text = f"topic {topic} does not exist: see that{hint}, or run `halfbridge topics create`"
    return JobError(text)


def _ranges(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Ranges:
    ranges: Ranges = {}
    for (topic, number), end in sorted(ends.items()):
        start = starts[topic, number]
        ranges.setdefault(topic, {})[number] = Range(start, max(start, end))
    return ranges


def _with_first(
    spark: SparkSession, ranges: Ranges, options: Mapping[str, str], *, real: Iterable[str] = ()
) -> Ranges:
    """Return the ranges, each that is cut with the time of the first record left (`first_times`).

    Where no record that is left has a time, anything may have been deleted: NOTHING_LEFT_MS.
    """
    cut = {
        topic: {number: each for number, each in of.items() if each.is_cut}
        for topic, of in ranges.items()
    }
    probes = {
        topic: {
            number: Range(each.start, min(each.end, each.start + _PROBE_OFFSETS))
            for number, each in of.items()
        }
        for topic, of in cut.items()
    }
    first = _first_ms(spark, probes, options, real)
    empty = {
        topic: {number: each for number, each in of.items() if (topic, number) not in first}
        for topic, of in cut.items()
    }
    first |= _first_ms(spark, empty, options, real)  # until here only markers, or no time
    return {
        topic: {
            number: replace(each, first_ms=first.get((topic, number), NOTHING_LEFT_MS))
            if each.is_cut
            else each
            for number, each in of.items()
        }
        for topic, of in ranges.items()
    }


def _first_ms(
    spark: SparkSession,
    ranges: Mapping[str, Mapping[int, Range]],
    options: Mapping[str, str],
    real: Iterable[str],
) -> dict[TopicPartition, int]:
    if not any(ranges.values()):
        return {}
    return first_times(read_ranges(spark, ranges, options), real)


def now_ms() -> int:
    """Return the time of this machine, ms since 1970."""
    return int(datetime.now(timezone.utc).timestamp() * 1000)

"""The daemon's metrics: RocketMQ's names where they exist, `halfbridge_` for the rest.

Every method takes the totals of a whole batch, so each counter is incremented, and each label value
looked up, once in a batch.

Source: RocketMQ BrokerMetricsConstant (rocketmq_half_messages, rocketmq_commit_messages_total,
rocketmq_rollback_messages_total, rocketmq_finish_message_latency).
"""

from __future__ import annotations

import importlib.metadata
import platform
from bisect import bisect_left
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from halfbridge.kafka.making import client_versions
from halfbridge.serde.limits import TOPIC_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# From the fastest kafka_txn to more than the longest usual check; RocketMQ's buckets start at 1 ms
# as well.
LATENCY_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
# A label value is a topic, a group, a reason or a rule. Topics beyond this number share one series,
# and so do invalid topic names: a client may invent any number of names, and each series costs the
# daemon and the metrics server memory for as long as they run.
TOPICS_MAX = 1000
OTHER_TOPICS = "(other)"
OffsetName = Literal["H", "O", "T"]


def build_info(registry: CollectorRegistry) -> None:
    """Register `halfbridge_build_info`: 1, with the versions of this process as labels."""
    info = Gauge(
        "halfbridge_build_info",
        "1, with the versions that this process runs.",
        ("version", "python", "librdkafka"),
        registry=registry,
    )
    info.labels(_version(), platform.python_version(), client_versions()[1]).set(1)


@cache
def _version() -> str:
    try:
        return importlib.metadata.version("halfbridge")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # a checkout that is not installed


class Metrics:
    """All metrics of one worker, on a registry of its own. Thread-safe; made for one hot loop.

    Each attribute is a call that records: a counter adds a number (default 1), a gauge sets the
    value, a histogram observes. Where the metric has labels, the call takes a mapping: label value,
    or a tuple of them -> number. Gauges that are not in the mapping fall to 0.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build_info(self.registry)
        self._create_transaction_metrics()
        self._create_check_metrics()
        self._create_kafka_metrics()
        self._create_partition_metrics()
        self._create_memory_metrics()

    def _create_transaction_metrics(self) -> None:
        self._half = self._gauges(
            "rocketmq_half_messages",
            "Half messages that are undecided, or committed and wait for a real topic.",
            "topic",
        )
        self.half_messages = self._half.set_all
        self.committed = self._counters(
            "rocketmq_commit_messages", "Messages delivered by a COMMIT.", "topic"
        ).add_all
        self.rolled_back = self._counters(
            "rocketmq_rollback_messages", "Messages of a ROLLBACK.", "topic"
        ).add_all
        self._latency = self._histogram(
            "rocketmq_finish_message_latency", "From half message to applied decision, seconds."
        )
        self.conflicts = self._counter(
            "halfbridge_conflicts", "Decisions that contradict an earlier one; no effect."
        ).inc
        self.duplicates = self._counter(
            "halfbridge_duplicates", "Half messages and decisions that repeat another; no effect."
        ).inc
        self.invalid_ops = self._counter(
            "halfbridge_invalid_ops", "Ops without effect: wrong group, offset or source, broken."
        ).inc
        self.not_believed = self._counters(
            "halfbridge_not_believed", "Records without the signature demanded.", "record"
        ).add_all
        # Both from the start: `increase` of a series that begins at 1 would miss the first record.
        self.not_believed({"half": 0, "op": 0})
        self.orphan_ops = self._counter(
            "halfbridge_orphan_ops", "Decisions for transactions that are not known (any more)."
        ).inc
        self.discards = self._counters(
            "halfbridge_discards", "Transactions given up.", "reason"
        ).add_all
        self.dead_letters = self._counters(
            "halfbridge_dead_letters", "Messages in the dead-letter topic.", "reason"
        ).add_all
        self.stubs = self._counter(
            "halfbridge_dead_letter_stubs", "Dead letters that only refer to their records."
        ).inc
        # The rule is `answer` or `window`.
        self.put_backs = self._counters(
            "halfbridge_put_backs", "Half messages appended again.", "rule"
        ).add_all

    def _create_check_metrics(self) -> None:
        self.checks_sent = self._counters(
            "halfbridge_checks_sent", "Check requests sent.", "group"
        ).add_all
        # The resolution is COMMIT, ROLLBACK, UNKNOWN, or FAILED: the checker gave no answer.
        self.checks_answered = self._counters(
            "halfbridge_checks_answered", "Answers to checks.", "group", "resolution"
        ).add_all
        self.checks_expired = self._counter(
            "halfbridge_checks_expired", "Check requests not answered within the interval."
        ).inc
        self._checks_without_topic = self._counters(
            "halfbridge_checks_without_topic",
            "Checks that nobody was sent, since the group's check topic does not exist.",
            "group",
        ).add_all
        self.oldest_undecided_age_s = self._gauge(
            "halfbridge_oldest_undecided_age_seconds",
            "Age of the oldest transaction that waits for a decision or a real topic.",
        ).set

    def _create_kafka_metrics(self) -> None:
        self.kafka_txn_s = self._histogram(
            "halfbridge_kafka_txn_duration_seconds", "From begin to acknowledged commit."
        ).observe
        self.kafka_txn_failed = self._counter(
            "halfbridge_kafka_txn_failures", "Failed kafka_txns."
        ).inc
        self.barriers = self._counter(
            "halfbridge_barriers",
            "Aborted records that proved the end of a half partition, for an op that waits for it.",
        ).inc
        self.deferred = self._counter(
            "halfbridge_deliveries_deferred",
            "Committed transactions whose delivery had to wait for a real topic.",
        ).inc
        self.waits_cut_short = self._counter(
            "halfbridge_waits_cut_short",
            "Deferred transactions that were not waited for any longer: too many, or no memory.",
        ).inc
        self.real_topics_missing = self._gauges(
            "halfbridge_real_topics_missing",
            "Waits of pairs for partitions of this real topic, which is missing, closed or away.",
            "topic",
        ).set_all
        self.partitions_unavailable = self._gauges(
            "halfbridge_partition_unavailable",
            "1 for each partition, of at most 20, that deliveries wait for, with the cause.",
            "topic",
            "partition",
            "cause",
        ).set_all
        self.producer_replaced = self._counter(
            "halfbridge_producer_replacements", "Transactional producers that were replaced."
        ).inc
        self.spare_id_taken = self._counter(
            "halfbridge_spare_transactional_ids",
            "Transactional ids left for another one, because their last kafka_txn did not end.",
        ).inc
        self.clients_replaced = self._counters(
            "halfbridge_client_replacements",
            "Other Kafka clients that were replaced, because no broker answered them for 30 s.",
            "client",
        ).add_all
        self.consumer_stalled = self._counter(
            "halfbridge_consumer_stalls", "Consumers that fetched nothing more, and were replaced."
        ).inc
        self._delivery = self._gauge(
            "halfbridge_delivery_mode", "1 for the mode in which the worker delivers.", "delivery"
        )
        self.settings_disagree = self._gauge(
            "halfbridge_settings_disagree", "1 while another worker runs with other limits."
        ).set
        self.topic_settings_wrong = self._gauges(
            "halfbridge_topic_settings_wrong",
            "1 for each setting of an internal topic that is wrong.",
            "topic",
            "setting",
        ).set_all
        self.unhealthy = self._gauges(
            "halfbridge_unhealthy", "1 for each cause of a /healthz of 503.", "cause"
        ).set_all

    def _create_partition_metrics(self) -> None:
        self._lag = self._gauge(
            "halfbridge_lag",
            "Records behind the end: H and T of half and op partition, O of ops not applied.",
            "partition",
            "offset",
        )
        self._lags: dict[tuple[int, str], Gauge] = {}
        self._retention = self._gauge(
            "halfbridge_retention_left_seconds",
            "Until the oldest undecided half message or unapplied op is deleted by retention.",
            "partition",
        )
        self.rebuilt_s = self._histogram(
            "halfbridge_rebuild_seconds", "From assignment of a partition to its first decision."
        ).observe
        self.partitions_stopped = self._gauge(
            "halfbridge_partitions_stopped", "Partitions that wait for `checker init`."
        ).set
        self.partitions_waiting = self._gauge(
            "halfbridge_partitions_waiting", "Partitions left out for now, and asked about again."
        ).set

    def _create_memory_metrics(self) -> None:
        self.ledger_bytes = self._gauge(
            "halfbridge_ledger_bytes", "Bytes of bodies held in memory."
        ).set
        self._entries = self._gauge(
            "halfbridge_entries_bytes", "Bytes of entries held in memory: all but bodies."
        )
        self._fullest = self._gauge(
            "halfbridge_entries_fill_ratio",
            "Bytes of entries of the fullest pair, divided by its share of the budget.",
        )

    def finish_latencies_s(self, seconds: Iterable[float]) -> None:
        """Observe the latencies of a batch, seconds."""
        observe_many(self._latency, seconds)

    def check_topic_missing(self, group: str) -> None:
        """Add a check that was not sent, because the group's check topic does not exist."""
        self._checks_without_topic({group: 1})

    def entries_bytes(self, size: int, *, fullest: float) -> None:
        """Set the bytes of all entries, and the used part of the fullest pair's share."""
        self._entries.set(size)
        self._fullest.set(fullest)

    def lag(self, partition: int, offset: OffsetName, *, records: int) -> None:
        """Set how many records `offset` of `partition` is behind the end."""
        child = self._lags.get((partition, offset))
        if child is None:
            child = self._lag.labels(str(partition), offset)
            self._lags[partition, offset] = child
        child.set(records)

    def delivers(self, mode: str) -> None:
        """Set the mode in which the worker delivers."""
        self._delivery.labels(mode).set(1)

    def retention_left_s(self, partition: int, seconds: float) -> None:
        """Set how long retention keeps the oldest needed record; infinite if none is needed."""
        self._retention.labels(str(partition)).set(seconds)

    def forget_partition(self, partition: int) -> None:
        """Remove the lags of a revoked partition, so that no stale value is shown."""
        for key in [key for key in self._lags if key[0] == partition]:
            del self._lags[key]
            self._lag.remove(str(key[0]), key[1])
        with suppress(KeyError):  # it was never set; newer clients say nothing
            self._retention.remove(str(partition))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _counters(self, name: str, text: str, *labels: str) -> Series:
        return Series(Counter(name, text, labels, registry=self.registry))

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _gauges(self, name: str, text: str, *labels: str) -> Series:
        return Series(self._gauge(name, text, *labels))

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=LATENCY_BUCKETS_S)


class Series:
    """The children of a metric with labels, bound once for each value: a string, or several."""

    def __init__(self, parent: Counter | Gauge) -> None:
        self._parent: Any = parent
        self._children: dict[str | tuple[str, ...], Any] = {}

    def add_all(self, by_value: Mapping[Any, int]) -> None:
        """Add to counters."""
        for value, count in by_value.items():
            self._child(value).inc(count)

    def set_all(self, by_value: Mapping[Any, int]) -> None:
        """Set gauges; those not in `by_value` fall to 0."""
        totals = dict.fromkeys(self._children.values(), 0)
        for value, count in by_value.items():
            child = self._child(value)
            totals[child] = totals.get(child, 0) + count
        for child, total in totals.items():
            child.set(total)

    def _child(self, value: str | tuple[str, ...]) -> Any:
        child = self._children.get(value)
        if child is not None:
            return child
        labels = value if isinstance(value, tuple) else (value,)
        if len(self._children) >= TOPICS_MAX or max(map(len, labels)) > TOPIC_CHARS_MAX:
            # The name is not remembered, because there may be any number of such names.
            labels = (OTHER_TOPICS,) * len(labels)
            value = labels if isinstance(value, tuple) else OTHER_TOPICS
            child = self._children.get(value)
        if child is None:
            child = self._children[value] = self._parent.labels(*labels)
        return child


def observe_many(histogram: Histogram, values: Iterable[float]) -> None:
    """Observe all `values`, with one locked addition per bucket instead of two per value."""
    # prometheus-client has no bulk call; these three attributes have stood since 0.4, and
    # test_metrics compares the outcome with plain observe().
    bounds: list[float] = histogram._upper_bounds  # noqa: SLF001
    buckets: list[Any] = histogram._buckets  # noqa: SLF001  (see above)
    counts = [0] * len(bounds)
    total = 0.0
    for value in values:
        counts[bisect_left(bounds, value)] += 1
        total += value
    if not any(counts):
        return
    histogram._sum.inc(total)  # noqa: SLF001  (see above)
    for bucket, count in zip(buckets, counts, strict=True):
        if count:
            bucket.inc(count)

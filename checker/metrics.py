"""The daemon's metrics: RocketMQ's names where they exist, `halfbridge_` for the rest.

Every method takes what a whole batch did, never one record: a counter is incremented once a
batch, its child looked up once for each label value.

Source: RocketMQ BrokerMetricsConstant (rocketmq_half_messages, rocketmq_commit_messages_total,
rocketmq_rollback_messages_total, rocketmq_finish_message_latency).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# From the fastest kafka_txn to beyond the longest usual check; RocketMQ's own buckets start at
# 1 ms too.
LATENCY_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
# A label value comes from a topic, a reason or a rule. More topics than that are one series.
TOPICS_MAX = 1000
OTHER_TOPICS = "(other)"

OffsetName = Literal["H", "O", "T"]


class Metrics:
    """All metrics of one worker, on a registry of its own.

    Thread-safe (prometheus-client locks each value); meant for one hot loop.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._create_transaction_metrics()
        self._create_check_metrics()
        self._create_kafka_metrics()

    def _create_transaction_metrics(self) -> None:
        self._half = _Children(
            self._gauge("rocketmq_half_messages", "Undecided half messages.", "topic")
        )
        self._commits = _Children(
            self._counter("rocketmq_commit_messages", "Messages delivered by a COMMIT.", "topic")
        )
        self._rollbacks = _Children(
            self._counter("rocketmq_rollback_messages", "Messages of a ROLLBACK.", "topic")
        )
        self._latency = self._histogram(
            "rocketmq_finish_message_latency", "From half message to applied decision, seconds."
        )
        self._conflicts = self._counter(
            "halfbridge_conflicts", "Decisions that contradict an earlier one; no effect."
        )
        self._duplicates = self._counter(
            "halfbridge_duplicates", "Halves and decisions that say again what stands; no effect."
        )
        self._invalid_ops = self._counter(
            "halfbridge_invalid_ops", "Ops without effect: wrong group, offset or source, broken."
        )
        self._orphan_ops = self._counter(
            "halfbridge_orphan_ops", "Decisions for transactions that are not known (any more)."
        )
        self._discards = _Children(
            self._counter("halfbridge_discards", "Transactions given up.", "reason")
        )
        self._dead_letters = _Children(
            self._counter("halfbridge_dead_letters", "Messages in the dead-letter topic.", "reason")
        )
        self._put_backs = _Children(
            self._counter("halfbridge_put_backs", "Half messages appended again.", "rule")
        )

    def _create_check_metrics(self) -> None:
        self._checks_sent = _Children(
            self._counter("halfbridge_checks_sent", "Check requests sent.", "group")
        )
        self._checks_answered = _Children(
            self._counter("halfbridge_checks_answered", "Answers to checks.", "group", "resolution")
        )
        self._checks_expired = self._counter(
            "halfbridge_checks_expired", "Check requests not answered within the interval."
        )
        self._checks_without_topic = _Children(
            self._counter(
                "halfbridge_checks_without_topic",
                "Checks that nobody was sent, since the group's check topic does not exist.",
                "group",
            )
        )
        self._oldest = self._gauge(
            "halfbridge_oldest_undecided_age_seconds", "Age of the oldest undecided transaction."
        )

    def _create_kafka_metrics(self) -> None:
        self._lag = self._gauge(
            "halfbridge_lag",
            "Records behind the end: H and T of half and op partition, O of ops not applied.",
            "partition",
            "offset",
        )
        self._lags: dict[tuple[int, str], Gauge] = {}
        self._txn_duration = self._histogram(
            "halfbridge_kafka_txn_duration_seconds", "From begin to acknowledged commit."
        )
        self._txn_failures = self._counter("halfbridge_kafka_txn_failures", "Failed kafka_txns.")
        self._rebuild = self._histogram(
            "halfbridge_rebuild_seconds", "From assignment of a partition to its first decision."
        )
        self._replacements = self._counter(
            "halfbridge_producer_replacements", "Transactional producers that were replaced."
        )
        self._stalls = self._counter(
            "halfbridge_consumer_stalls", "Consumers that fetched nothing more, and were replaced."
        )
        self._stopped = self._gauge(
            "halfbridge_partitions_stopped", "Partitions that wait for `checker init`."
        )
        self._waiting = self._gauge(
            "halfbridge_partitions_waiting", "Partitions left out for now, and asked about again."
        )
        self._ledger = self._gauge("halfbridge_ledger_bytes", "Bytes of bodies held in memory.")

    def half_messages(self, by_topic: Mapping[str, int]) -> None:
        """Set how many messages are undecided; topics not in `by_topic` fall to 0."""
        self._half.set_all(by_topic)

    def committed(self, by_topic: Mapping[str, int]) -> None:
        """Add delivered messages, by real topic."""
        self._commits.add_all(by_topic)

    def rolled_back(self, by_topic: Mapping[str, int]) -> None:
        """Add rolled back messages, by real topic."""
        self._rollbacks.add_all(by_topic)

    def finish_latencies_s(self, seconds: Iterable[float]) -> None:
        """Observe the latencies of a batch, seconds."""
        observe_many(self._latency, seconds)

    def checks_sent(self, by_group: Mapping[str, int]) -> None:
        """Add check requests sent, by producer group."""
        self._checks_sent.add_all(by_group)

    def check_topic_missing(self, group: str) -> None:
        """Add a check that could not be sent, for want of the group's check topic."""
        self._checks_without_topic.add_all({group: 1})

    def checks_answered(self, by_answer: Mapping[tuple[str, str], int]) -> None:
        """Add answers to checks, by producer group and resolution (COMMIT, ROLLBACK, UNKNOWN)."""
        self._checks_answered.add_all(by_answer)

    def checks_expired(self, count: int) -> None:
        """Add check requests that nobody answered in time."""
        self._checks_expired.inc(count)

    def conflicts(self, count: int) -> None:
        """Add decisions that contradict an earlier one."""
        self._conflicts.inc(count)

    def duplicates(self, count: int) -> None:
        """Add halves and decisions that repeat what stands."""
        self._duplicates.inc(count)

    def invalid_ops(self, count: int) -> None:
        """Add ops that had no effect because something in them is wrong."""
        self._invalid_ops.inc(count)

    def orphan_ops(self, count: int) -> None:
        """Add decisions for transactions that are not known (any more)."""
        self._orphan_ops.inc(count)

    def discards(self, by_reason: Mapping[str, int]) -> None:
        """Add transactions given up, by reason."""
        self._discards.add_all(by_reason)

    def dead_letters(self, by_reason: Mapping[str, int]) -> None:
        """Add messages written to the dead-letter topic, by reason."""
        self._dead_letters.add_all(by_reason)

    def put_backs(self, by_rule: Mapping[str, int]) -> None:
        """Add half messages appended again, by rule (`answer` or `window`)."""
        self._put_backs.add_all(by_rule)

    def oldest_undecided_age_s(self, seconds: float) -> None:
        """Set the age of the oldest undecided transaction, seconds; 0 when there is none."""
        self._oldest.set(seconds)

    def lag(self, partition: int, offset: OffsetName, *, records: int) -> None:
        """Set how many records `offset` of `partition` is behind the end."""
        child = self._lags.get((partition, offset))
        if child is None:
            child = self._lag.labels(str(partition), offset)
            self._lags[partition, offset] = child
        child.set(records)

    def forget_partition(self, partition: int) -> None:
        """Remove a revoked partition's lags, so that no stale value stays behind."""
        for key in [key for key in self._lags if key[0] == partition]:
            del self._lags[key]
            self._lag.remove(str(key[0]), key[1])

    def kafka_txn_s(self, seconds: float) -> None:
        """Observe one kafka_txn from begin to acknowledged commit, seconds."""
        self._txn_duration.observe(seconds)

    def kafka_txn_failed(self) -> None:
        """Add one failed kafka_txn."""
        self._txn_failures.inc()

    def rebuilt_s(self, seconds: float) -> None:
        """Observe one partition's rebuild, seconds."""
        self._rebuild.observe(seconds)

    def producer_replaced(self) -> None:
        """Add one replaced transactional producer."""
        self._replacements.inc()

    def consumer_stalled(self) -> None:
        """Count a consumer that was given up because it fetched nothing more."""
        self._stalls.inc()

    def partitions_stopped(self, count: int) -> None:
        """Set how many partitions stopped with an error."""
        self._stopped.set(count)

    def partitions_waiting(self, count: int) -> None:
        """Set how many partitions are left out for now."""
        self._waiting.set(count)

    def ledger_bytes(self, size: int) -> None:
        """Set how many bytes of bodies the ledgers hold."""
        self._ledger.set(size)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=LATENCY_BUCKETS_S)


def observe_many(histogram: Histogram, values: Iterable[float]) -> None:
    """Observe all `values` with one locked addition a bucket instead of two a value."""
    # prometheus-client has no bulk call; these three attributes have stood since 0.4, and
    # test_metrics compares the outcome with plain observe().
    bounds: list[float] = histogram._upper_bounds  # noqa: SLF001
    buckets: list[Any] = histogram._buckets  # noqa: SLF001
    counts = [0] * len(bounds)
    total = 0.0
    for value in values:
        counts[bisect_left(bounds, value)] += 1
        total += value
    if not any(counts):
        return
    histogram._sum.inc(total)  # noqa: SLF001
    for bucket, count in zip(buckets, counts, strict=True):
        if count:
            bucket.inc(count)


class _Children:
    """The children of a metric with labels, bound once for each value (a tuple of several)."""

    def __init__(self, parent: Counter | Gauge) -> None:
        self._parent: Any = parent
        self._children: dict[str | tuple[str, ...], Any] = {}

    def add_all(self, by_value: Mapping[str, int] | Mapping[tuple[str, str], int]) -> None:
        for value, count in by_value.items():
            self._child(value).inc(count)

    def set_all(self, by_value: Mapping[str, int]) -> None:
        for value, child in self._children.items():
            if value not in by_value:
                child.set(0)
        for value, count in by_value.items():
            self._child(value).set(count)

    def _child(self, value: str | tuple[str, ...]) -> Any:
        child = self._children.get(value)
        if child is None:
            labels = value if isinstance(value, tuple) else (value,)
            if len(self._children) >= TOPICS_MAX:
                labels = (OTHER_TOPICS,) * len(labels)
                value = labels if isinstance(value, tuple) else OTHER_TOPICS
            child = self._children[value] = self._parent.labels(*labels)
        return child

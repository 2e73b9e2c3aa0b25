"""The daemon's metrics: RocketMQ's names where they exist, `halfbridge_` for the rest.

Every method takes the totals of a whole batch, never one record. So each counter is incremented
once in a batch, and each label value is looked up once.

Source: RocketMQ BrokerMetricsConstant (rocketmq_half_messages, rocketmq_commit_messages_total,
rocketmq_rollback_messages_total, rocketmq_finish_message_latency).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from halfbridge.checker.series import Series, observe_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# From the fastest kafka_txn to more than the longest usual check; RocketMQ's buckets start at 1 ms
# as well.
LATENCY_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
OffsetName = Literal["H", "O", "T"]


class Metrics:
    """All metrics of one worker, on a registry of its own.

    Thread-safe (prometheus-client locks each value); made for one hot loop.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._create_transaction_metrics()
        self._create_check_metrics()
        self._create_kafka_metrics()

    def _create_transaction_metrics(self) -> None:
        self._half = Series(
            self._gauge("rocketmq_half_messages", "Undecided half messages.", "topic")
        )
        self._commits = Series(
            self._counter("rocketmq_commit_messages", "Messages delivered by a COMMIT.", "topic")
        )
        self._rollbacks = Series(
            self._counter("rocketmq_rollback_messages", "Messages of a ROLLBACK.", "topic")
        )
        self._latency = self._histogram(
            "rocketmq_finish_message_latency", "From half message to applied decision, seconds."
        )
        self._conflicts = self._counter(
            "halfbridge_conflicts", "Decisions that contradict an earlier one; no effect."
        )
        self._duplicates = self._counter(
            "halfbridge_duplicates", "Half messages and decisions that repeat another; no effect."
        )
        self._invalid_ops = self._counter(
            "halfbridge_invalid_ops", "Ops without effect: wrong group, offset or source, broken."
        )
        self._orphan_ops = self._counter(
            "halfbridge_orphan_ops", "Decisions for transactions that are not known (any more)."
        )
        self._discards = Series(
            self._counter("halfbridge_discards", "Transactions given up.", "reason")
        )
        self._dead_letters = Series(
            self._counter("halfbridge_dead_letters", "Messages in the dead-letter topic.", "reason")
        )
        self._stubs = self._counter(
            "halfbridge_dead_letter_stubs", "Dead letters that only refer to their records."
        )
        self._put_backs = Series(
            self._counter("halfbridge_put_backs", "Half messages appended again.", "rule")
        )

    def _create_check_metrics(self) -> None:
        self._checks_sent = Series(
            self._counter("halfbridge_checks_sent", "Check requests sent.", "group")
        )
        self._checks_answered = Series(
            self._counter("halfbridge_checks_answered", "Answers to checks.", "group", "resolution")
        )
        self._checks_expired = self._counter(
            "halfbridge_checks_expired", "Check requests not answered within the interval."
        )
        self._checks_without_topic = Series(
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
        self._retention = self._gauge(
            "halfbridge_retention_left_seconds",
            "Until the oldest undecided half message or unapplied op is deleted by retention.",
            "partition",
        )
        self._txn_duration = self._histogram(
            "halfbridge_kafka_txn_duration_seconds", "From begin to acknowledged commit."
        )
        self._txn_failures = self._counter("halfbridge_kafka_txn_failures", "Failed kafka_txns.")
        self._barriers = self._counter(
            "halfbridge_barriers",
            "Aborted records that proved the end of a half partition, for an op that waits for it.",
        )
        self._waits_cut_short = Series(
            self._counter(
                "halfbridge_waits_cut_short",
                "Transactions to a missing topic, given up early: budgets of waiting were used up.",
                "group",
            )
        )
        self._topics_missing = Series(
            self._gauge(
                "halfbridge_real_topics_missing",
                "Partitions whose deliveries wait for this real topic, which does not exist.",
                "topic",
            )
        )
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
        self._waiting = self._gauge("halfbridge_partitions_waiting", "Partitions left out for now.")
        differ = "1 while another worker runs with other limits."
        self._disagree = self._gauge("halfbridge_settings_disagree", differ)
        self._settings_wrong = Series(
            self._gauge(
                "halfbridge_topic_settings_wrong",
                "1 for each setting of an internal topic that is wrong.",
                "topic",
                "setting",
            )
        )
        ill = "1 for each cause of a /healthz of 503."
        self._unhealthy = Series(self._gauge("halfbridge_unhealthy", ill, "cause"))
        self._ledger = self._gauge("halfbridge_ledger_bytes", "Bytes of bodies held in memory.")
        self._entries = self._gauge(
            "halfbridge_entries_bytes", "Bytes of entries held in memory: all but bodies."
        )
        self._fullest = self._gauge(
            "halfbridge_entries_fill_ratio",
            "Bytes of entries of the fullest pair, divided by its share of the budget.",
        )

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
        """Add a check that was not sent, because the group's check topic does not exist."""
        self._checks_without_topic.add_all({group: 1})

    def checks_answered(self, by_answer: Mapping[tuple[str, str], int]) -> None:
        """Add answers to checks, by producer group and resolution.

        The resolution is COMMIT, ROLLBACK, UNKNOWN, or FAILED: the checker gave no answer.
        """
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

    def stubs(self, count: int) -> None:
        """Add dead letters that only refer to their records."""
        self._stubs.inc(count)

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

    def kafka_txn_s(self, seconds: float) -> None:
        """Observe one kafka_txn from begin to acknowledged commit, seconds."""
        self._txn_duration.observe(seconds)

    def kafka_txn_failed(self) -> None:
        """Add one failed kafka_txn."""
        self._txn_failures.inc()

    def waits_cut_short(self, by_group: Mapping[str, int]) -> None:
        """Add transactions that were not waited for, by producer group."""
        self._waits_cut_short.add_all(by_group)

    def real_topics_missing(self, by_topic: Mapping[str, int]) -> None:
        """Set how many pairs wait, by missing real topic; all others fall to 0."""
        self._topics_missing.set_all(by_topic)

    def barriers(self, count: int) -> None:
        """Add records that were appended to prove where half partitions end."""
        self._barriers.inc(count)

    def rebuilt_s(self, seconds: float) -> None:
        """Observe one partition's rebuild, seconds."""
        self._rebuild.observe(seconds)

    def producer_replaced(self) -> None:
        """Add one replaced transactional producer."""
        self._replacements.inc()

    def consumer_stalled(self) -> None:
        """Add one consumer that was replaced because it had stalled."""
        self._stalls.inc()

    def partitions_stopped(self, count: int) -> None:
        """Set how many partitions stopped with an error."""
        self._stopped.set(count)

    def partitions_waiting(self, count: int) -> None:
        """Set how many pairs are waiting pairs."""
        self._waiting.set(count)

    def settings_disagree(self, value: bool) -> None:  # noqa: FBT001 (the only argument)
        """Set whether another worker of the installation runs with other limits."""
        self._disagree.set(value)

    def topic_settings_wrong(self, by_setting: Mapping[tuple[str, str], int]) -> None:
        """Set which settings, (topic, setting), are wrong; all others fall to 0."""
        self._settings_wrong.set_all(by_setting)

    def unhealthy(self, causes: Mapping[str, int]) -> None:
        """Set what needs an operator, apart from stopped partitions; all others fall to 0."""
        self._unhealthy.set_all(causes)

    def ledger_bytes(self, size: int) -> None:
        """Set how many bytes of bodies the ledgers hold."""
        self._ledger.set(size)

    def entries_bytes(self, size: int, *, fullest: float) -> None:
        """Set the bytes of all entries, and the used part of the fullest pair's share."""
        self._entries.set(size)
        self._fullest.set(fullest)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=LATENCY_BUCKETS_S)

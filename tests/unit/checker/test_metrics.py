"""Metrics: the names of docs/incidents/index.md, updated once per batch."""

import platform

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from halfbridge import __version__
from halfbridge.changes.writing import ChangesMetrics
from halfbridge.checker.metrics import (
    LATENCY_BUCKETS_S,
    OTHER_TOPICS,
    TOPICS_MAX,
    Metrics,
    observe_many,
)
from halfbridge.kafka.making import client_versions
from halfbridge.sql.local_messages.metrics import RelayMetrics

NAMES = (
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_finish_message_latency_bucket",
    "halfbridge_checks_sent_total",
    "halfbridge_checks_answered_total",
    "halfbridge_checks_expired_total",
    "halfbridge_conflicts_total",
    "halfbridge_duplicates_total",
    "halfbridge_invalid_ops_total",
    "halfbridge_orphan_ops_total",
    "halfbridge_discards_total",
    "halfbridge_dead_letters_total",
    "halfbridge_put_backs_total",
    "halfbridge_oldest_undecided_age_seconds",
    "halfbridge_lag",
    "halfbridge_kafka_txn_duration_seconds_bucket",
    "halfbridge_kafka_txn_failures_total",
    "halfbridge_rebuild_seconds_bucket",
    "halfbridge_producer_replacements_total",
    "halfbridge_client_replacements_total",
    "halfbridge_consumer_stalls_total",
    "halfbridge_partitions_stopped",
    "halfbridge_partitions_waiting",
    "halfbridge_ledger_bytes",
    "halfbridge_entries_bytes",
    "halfbridge_entries_fill_ratio",
    "halfbridge_settings_disagree",
    "halfbridge_unhealthy",
    "halfbridge_build_info",
)


def _touch_all(metrics: Metrics) -> None:
    metrics.half_messages({"orders": 3})
    metrics.committed({"orders": 2})
    metrics.rolled_back({"orders": 1})
    metrics.finish_latencies_s([0.004, 0.006])
    metrics.checks_sent({"orders-service": 4})
    metrics.checks_answered({("orders-service", "COMMIT"): 1})
    metrics.checks_expired(1)
    metrics.clients_replaced({"admin": 1})
    metrics.check_topic_missing("orders-service")
    metrics.conflicts(1)
    metrics.duplicates(1)
    metrics.invalid_ops(1)
    metrics.orphan_ops(1)
    metrics.discards({"AGE": 1})
    metrics.dead_letters({"INVALID": 1})
    metrics.put_backs({"window": 5})
    metrics.oldest_undecided_age_s(1.5)
    metrics.lag(0, "H", records=7)
    metrics.kafka_txn_s(0.01)
    metrics.kafka_txn_failed()
    metrics.rebuilt_s(0.2)
    metrics.producer_replaced()
    metrics.partitions_stopped(1)
    metrics.partitions_waiting(1)
    metrics.ledger_bytes(1024)
    metrics.entries_bytes(2048, fullest=0.5)
    metrics.settings_disagree(True)
    metrics.unhealthy({"work": 1})


def test_every_metric_of_the_design_is_served() -> None:
    """After all metrics are updated, each name is in the text."""
    metrics = Metrics()

    _touch_all(metrics)

    samples = {line.split("{")[0].split(" ")[0] for line in _lines(metrics)}
    assert set(NAMES) <= samples


@pytest.mark.parametrize("kind", [Metrics, RelayMetrics, ChangesMetrics])
def test_the_build_is_reported(kind: type[Metrics | RelayMetrics | ChangesMetrics]) -> None:
    """Daemon and both relays report their versions of halfbridge, Python and librdkafka."""
    _, librdkafka = client_versions()
    labels = {"version": __version__, "python": platform.python_version(), "librdkafka": librdkafka}

    assert kind().registry.get_sample_value("halfbridge_build_info", labels) == 1


def test_counters_add_up_over_batches() -> None:
    """Counts of batches are added up."""
    metrics = Metrics()

    metrics.committed({"a": 2, "b": 1})
    metrics.committed({"a": 3})

    value = metrics.registry.get_sample_value
    assert value("rocketmq_commit_messages_total", {"topic": "a"}) == 5
    assert value("rocketmq_commit_messages_total", {"topic": "b"}) == 1


def test_topic_without_half_messages_falls_to_zero() -> None:
    """The gauge of a topic without undecided messages is 0."""
    metrics = Metrics()

    metrics.half_messages({"a": 2})
    metrics.half_messages({"b": 1})

    value = metrics.registry.get_sample_value
    assert value("rocketmq_half_messages", {"topic": "a"}) == 0
    assert value("rocketmq_half_messages", {"topic": "b"}) == 1


def test_many_topics_end_in_one_series() -> None:
    """Topics beyond TOPICS_MAX are counted in one series."""
    metrics = Metrics()

    metrics.committed({f"t{n}": 1 for n in range(TOPICS_MAX + 5)})

    other = {"topic": OTHER_TOPICS}
    assert metrics.registry.get_sample_value("rocketmq_commit_messages_total", other) == 5


def test_names_beyond_the_limit_are_not_kept() -> None:
    """Names beyond the limit are not stored; the gauge of the others is their sum."""
    metrics = Metrics()

    for start in range(0, 3 * TOPICS_MAX, TOPICS_MAX):
        metrics.half_messages({f"t{start + n}": 2 for n in range(TOPICS_MAX)})
    metrics.half_messages({"t0": 1, "u": 3, "v": 4, "w" * 5_000: 5})

    value = metrics.registry.get_sample_value
    assert value("rocketmq_half_messages", {"topic": OTHER_TOPICS}) == 3 + 4 + 5
    assert value("rocketmq_half_messages", {"topic": "t0"}) == 1
    assert value("rocketmq_half_messages", {"topic": "t1"}) == 0
    assert len(metrics._half._children) == TOPICS_MAX + 1


def test_a_name_that_no_topic_can_have_is_one_of_the_others() -> None:
    """A name of 4,000 characters is counted as one of the others."""
    metrics = Metrics()

    metrics.check_topic_missing("g" * 4_000)

    other = {"group": OTHER_TOPICS}
    assert metrics.registry.get_sample_value("halfbridge_checks_without_topic_total", other) == 1


def test_many_groups_end_in_one_series() -> None:
    """Groups beyond the limit are counted in one series, also with several labels."""
    metrics = Metrics()

    metrics.checks_answered({(f"g{n}", "COMMIT"): 1 for n in range(TOPICS_MAX + 5)})

    other = {"group": OTHER_TOPICS, "resolution": OTHER_TOPICS}
    assert metrics.registry.get_sample_value("halfbridge_checks_answered_total", other) == 5


def test_observe_many_equals_observing_one_by_one() -> None:
    """observe_many gives the same text as single observations, also at bucket edges."""
    values = [0.0, 0.001, 0.0011, 0.5, 3600.0, 3600.1, 1e9]
    texts = []
    for bulk in (True, False):
        registry = CollectorRegistry()
        histogram = Histogram("h", "h", registry=registry, buckets=LATENCY_BUCKETS_S)
        if bulk:
            observe_many(histogram, values)
        else:
            for value in values:
                histogram.observe(value)
        text = generate_latest(registry).decode().splitlines()
        texts.append([line for line in text if not line.startswith("h_created")])

    assert texts[0] == texts[1]


def test_observing_nothing_changes_nothing() -> None:
    """An empty batch does not change the histogram."""
    metrics = Metrics()

    metrics.finish_latencies_s([])

    assert metrics.registry.get_sample_value("rocketmq_finish_message_latency_count") == 0


def test_revoked_partition_leaves_no_lag_behind() -> None:
    """A revoked partition has no lag and no retention gauge."""
    metrics = Metrics()
    metrics.lag(0, "H", records=7)
    metrics.lag(1, "O", records=8)

    for partition in (0, 1):
        metrics.retention_left_s(partition, 5.0)
    metrics.forget_partition(0)

    value = metrics.registry.get_sample_value
    assert value("halfbridge_lag", {"partition": "0", "offset": "H"}) is None
    assert value("halfbridge_lag", {"partition": "1", "offset": "O"}) == 8
    assert value("halfbridge_retention_left_seconds", {"partition": "0"}) is None
    assert value("halfbridge_retention_left_seconds", {"partition": "1"}) == 5


def _lines(metrics: Metrics) -> list[str]:
    text = generate_latest(metrics.registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_partition_that_was_never_measured_is_forgotten_too() -> None:
    """A partition without gauges can be forgotten."""
    metrics = Metrics()
    metrics.forget_partition(3)
    metrics.forget_partition(3)

"""What the daemon's metrics say at one moment, taken from the text of /metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LATENCY = "rocketmq_finish_message_latency_bucket"
# Counter -> what the page calls it.
OUTCOMES = {
    "rocketmq_commit_messages_total": "delivered",
    "rocketmq_rollback_messages_total": "rolled back",
    "halfbridge_dead_letters_total": "dead letters",
    "halfbridge_checks_sent_total": "checks sent",
    "halfbridge_kafka_txn_failures_total": "kafka_txns failed",
}
_TOTALS = {
    "rocketmq_half_messages": "undecided",
    "halfbridge_partitions_stopped": "stopped",
    "halfbridge_partitions_waiting": "waiting",
    "halfbridge_entries_bytes": "entries_bytes",
    "halfbridge_ledger_bytes": "ledger_bytes",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of all daemons at one moment.

    Attributes:
        at_s: Monotonic seconds.
        counters: Sum of each counter of `OUTCOMES`.
        buckets: Upper bound of latency, seconds, to how many were at most so long.
        totals: Sum of each gauge of which sums make sense.
        oldest_s: Age of the oldest undecided transaction; 0 where there is none.
        retention_s: Least time until a needed record is deleted; infinite where nothing is.
        lags: (partition, offset's letter) to records.
        workers: Name of a worker to whether it answers.
        silent: Addresses that did not answer.
    """

    at_s: float
    counters: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[float, float] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    oldest_s: float = 0.0
    retention_s: float = float("inf")
    lags: Mapping[tuple[int, str], float] = field(default_factory=dict)
    workers: Mapping[str, bool] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


class _Sums:
    """Adds up the samples of several daemons."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(OUTCOMES.values(), 0.0)
        self.totals = dict.fromkeys(_TOTALS.values(), 0.0)
        self.buckets: dict[float, float] = {}
        self.lags: dict[tuple[int, str], float] = {}
        self.workers: dict[str, bool] = {}
        self.oldest_s = 0.0
        self.retention_s = float("inf")

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one sample."""
        if name in OUTCOMES:
            self.counters[OUTCOMES[name]] += value
        elif name in _TOTALS:
            self.totals[_TOTALS[name]] += value
        elif name == _LATENCY:
            bound = float(labels["le"])
            self.buckets[bound] = self.buckets.get(bound, 0.0) + value
        elif name == "halfbridge_oldest_undecided_age_seconds":
            self.oldest_s = max(self.oldest_s, value)
        elif name == "halfbridge_retention_left_seconds":
            self.retention_s = min(self.retention_s, value)
        elif name == "halfbridge_lag":
            self.lags[int(labels["partition"]), labels["offset"]] = value
        elif name == "halfbridge_worker_up":
            self.workers[labels["worker"]] = value > 0


def reading_of(texts: Iterable[tuple[str, str | None]], *, at_s: float) -> Reading:
    """Return the metrics of several daemons in sum, and the addresses of silent ones.

    Args:
        texts: Address of each daemon, and the text of its /metrics; None: it did not answer.
        at_s: When the texts were read, monotonic seconds.

    Raises:
        ValueError: a text is no metrics, so the address belongs to another program; the operator
            corrects the address.
    """
    sums, silent = _Sums(), []
    for url, text in texts:
        if text is None:
            silent.append(url)
            continue
        before = len(sums.workers)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums.add(sample.name, sample.labels, sample.value)
        if len(sums.workers) == before:  # one worker in its own process names none
            sums.workers[url] = True
    return Reading(
        at_s=at_s,
        counters=sums.counters,
        buckets=sums.buckets,
        totals=sums.totals,
        oldest_s=sums.oldest_s,
        retention_s=sums.retention_s,
        lags=sums.lags,
        workers=sums.workers,
        silent=tuple(silent),
    )

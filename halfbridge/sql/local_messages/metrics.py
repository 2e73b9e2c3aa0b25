"""The relay's metrics, under `halfbridge_relay_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Gauge, Histogram

from halfbridge.relays import ServiceMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping


_LATENCY_BUCKETS_S = (
    *(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class RelayMetrics(ServiceMetrics):
    """All metrics of one relay, on a registry of its own. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self._counter("rows", "Rows whose message transaction committed.")
        self.transactions = self._counter("transactions", "Message transactions committed.")
        self.lost = self._counter(
            "attempts_lost", "Attempts rolled back: a lease, rows or a check were faster."
        )
        self.repeats = self._counter("repeated_commits", "COMMITs repeated after a death.")
        self.retries = self._counter("retries", "Failed attempts of rows.")
        self.errors = self._counter("errors", "Rows given up: MESSAGE_ERROR.")
        self.dead_letters = self._counter(
            "dead_transactions", "Message transactions of rows that became dead letters."
        )
        self.rowless_letters = self._counter(
            "letters_without_rows", "Transactions of the group in dead letters, and in no row."
        )
        self.withdrawn = self._counter("withdrawn", "Pre-sent rows that nobody confirmed.")
        self.round_s = Histogram(
            "halfbridge_relay_round_seconds",
            "Time from reading the waiting rows to the acknowledged COMMITs of their messages.",
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.buckets = self._gauge("buckets", "Key buckets leased to this relay.")
        self.oldest_age_s = self._gauge(
            "oldest_row_age_seconds", "Age of the oldest row that is not relayed and not given up."
        )
        self.backlog = Gauge(
            "halfbridge_relay_backlog_rows",
            "Rows that are not done, by state; GLOBAL_COMMIT: not acknowledged yet.",
            ["state"],
            registry=self.registry,
        )

    def note_backlog(self, rows: Mapping[str, int], oldest_age_ms: int) -> None:
        """Set the number of rows that are not done, by state, and the age of the oldest."""
        for state, count in rows.items():
            self.backlog.labels(state).set(count)
        self.oldest_age_s.set(oldest_age_ms / 1_000)

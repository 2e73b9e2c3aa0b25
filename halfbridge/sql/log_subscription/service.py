"""A log subscription that runs: its metrics, its health, and its end."""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from checker.http import Health
from halfbridge.sql.log_subscription.errors import LogSubscriptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from halfbridge.sql.log_subscription.changes import LogSource
    from halfbridge.sql.log_subscription.subscription import LogSubscription

_LOG = logging.getLogger("halfbridge.sql")
# Each look asks the server anew, on a connection of its own.
_LAG_INTERVAL_S = 10.0


class LogRelayService:
    """Runs a subscription until `stop`, and says how it is. `run` is called once.

    Args:
        subscription: Runs in the thread that calls `run`.
        source: The subscription's, asked for its lag.
        name: Of the subscription, the metrics' label.
    """

    def __init__(self, subscription: LogSubscription, source: LogSource, *, name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._subscription = subscription
        self._source = source
        self._name = name
        self._stopping = Event()
        self._lag_bytes: int | None = None

    def run(self) -> None:
        """Relay until `stop`; raises what `LogSubscription.run` raises."""
        watcher = Thread(target=self._watch_lag, name="halfbridge-log-lag", daemon=True)
        watcher.start()
        try:
            self._subscription.run(self._stopping)
        finally:
            self._stopping.set()
            watcher.join()

    def stop(self) -> None:
        """Have `run` finish its batch and return. Thread-safe."""
        self._stopping.set()

    def health(self) -> Health:
        """Return the health of this moment."""
        progress = self._subscription.progress
        reason = progress.last_error or ("" if progress.is_open else "starting")
        return Health(progress.is_open, not progress.last_error, reason)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, all with the label `subscription`."""
        progress = self._subscription.progress
        for name, text, value in (
            ("messages", "Inserts whose messages were committed.", progress.messages),
            ("batches", "Message transactions committed.", progress.batches),
            ("retries", "Times the subscription began again from its position.", progress.retries),
        ):
            counter = CounterMetricFamily(f"halfbridge_log_{name}", text, labels=["subscription"])
            counter.add_metric([self._name], value)
            yield counter
        if self._lag_bytes is not None:
            gauge = GaugeMetricFamily(
                "halfbridge_log_lag_bytes",
                "How much of the database's log lies behind what was read, and is kept for it.",
                labels=["subscription"],
            )
            gauge.add_metric([self._name], self._lag_bytes)
            yield gauge

    def _watch_lag(self) -> None:
        """Ask for the lag now and then; an unknown one is not shown."""
        while True:
            try:
                self._lag_bytes = self._source.lag_bytes()
            except Exception as error:  # noqa: BLE001 (drivers raise their own)
                self._lag_bytes = None  # the last one would be shown for ever
                level = logging.DEBUG if isinstance(error, LogSubscriptionError) else logging.ERROR
                _LOG.log(level, "the lag of %s is not known: %s", self._name, error)
            if self._stopping.wait(_LAG_INTERVAL_S):
                return

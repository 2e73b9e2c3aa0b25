"""Runs a log subscription, with its metrics, its health and its shutdown."""

from __future__ import annotations

import logging
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from halfbridge.checker.status import Health
from halfbridge.sql.local_messages.errors import DrainError
from halfbridge.sql.local_messages.service import DRAIN_S_MAX
from halfbridge.sql.log_subscription.errors import LogSubscriptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from halfbridge.sql.log_subscription.changes import LogSource
    from halfbridge.sql.log_subscription.subscription import LogSubscription

_LOG = logging.getLogger("halfbridge.sql")
# Each query of the lag opens a new connection to the server.
_LAG_INTERVAL_S = 10.0
# A relay without a step for this long is unhealthy. It covers two waits for an answer of the
# database (Bounds.answer_s), or one for half messages, one for COMMITs and one for the database.
STEP_S_MAX = 60.0


class LogRelayService:
    """Runs a subscription until `stop`, and reports its health. `run` is called once.

    Args:
        subscription: The subscription.
        source: The subscription's source, for its lag.
        name: Name of the subscription; the label of the metrics.
        step_s_max: Longest time without a step while the relay is healthy, seconds.
    """

    def __init__(
        self,
        subscription: LogSubscription,
        source: LogSource,
        *,
        name: str,
        step_s_max: float = STEP_S_MAX,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._subscription = subscription
        self._source = source
        self._name = name
        self._stopping = Event()
        self._lag_bytes: int | None = None
        self._step_s_max = step_s_max
        self._failure: BaseException | None = None

    def run(self, *, drain_s: float = DRAIN_S_MAX) -> None:
        """Relay until `stop`, or until `LogSubscription.run` raises; raise that.

        Args:
            drain_s: Longest time for the current batch after `stop`.

        Raises:
            DrainError: The batch took longer. Its threads end with the process. Nothing is lost:
                the next relay continues from the stored position.
        """
        relay = Thread(target=self._relay, name="halfbridge-log-relay", daemon=True)
        watcher = Thread(target=self._watch_lag, name="halfbridge-log-lag", daemon=True)
        for thread in (relay, watcher):
            thread.start()
        try:
            self._stopping.wait()
        finally:
            self._stopping.set()
            deadline = monotonic() + drain_s
            for thread in (relay, watcher):  # the watcher may still wait for the server
                thread.join(max(0.0, deadline - monotonic()))
        if self._failure is not None:
            raise self._failure
        if relay.is_alive():
            text = f"{self._name} did not end in {drain_s:g} s; {self._last_step()}"
            _LOG.error("a log subscription was not drained: %s", text)
            raise DrainError(text)

    def stop(self) -> None:
        """Make `run` return after its current batch. Thread-safe."""
        self._stopping.set()

    def health(self) -> Health:
        """Return the current health."""
        progress = self._subscription.progress
        if progress.last_error:
            return Health(progress.is_open, healthy=False, reason=progress.last_error)
        if monotonic() - progress.step_at > self._step_s_max:
            return Health(progress.is_open, healthy=False, reason=self._last_step())
        return Health(progress.is_open, reason="" if progress.is_open else "starting")

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
                "Bytes of the database's log that were not read yet, and are kept for the relay.",
                labels=["subscription"],
            )
            gauge.add_metric([self._name], self._lag_bytes)
            yield gauge

    def _relay(self) -> None:
        try:
            self._subscription.run(self._stopping)
        except BaseException as error:  # noqa: BLE001 (raised by `run`)
            self._failure = error
        finally:
            self._stopping.set()

    def _last_step(self) -> str:
        progress = self._subscription.progress
        age_s = monotonic() - progress.step_at
        return f"its last step was {age_s:.0f} s ago: {progress.step}"

    def _watch_lag(self) -> None:
        """Query the lag periodically; while it is not known, it is not shown."""
        while True:
            try:
                self._lag_bytes = self._source.lag_bytes()
            except Exception as error:  # noqa: BLE001 (drivers raise their own)
                self._lag_bytes = None  # the last value would become stale
                level = logging.DEBUG if isinstance(error, LogSubscriptionError) else logging.ERROR
                _LOG.log(level, "the lag of %s is not known: %s", self._name, error)
            if self._stopping.wait(_LAG_INTERVAL_S):
                return

"""Prometheus metrics of the streaming queries of a session.

Spark commits nothing to Kafka's consumer groups, so lag exporters see nothing of its reads: what
they would tell is told here.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from halfbridge.spark_jobs.jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_PREFIX = "halfbridge_spark_"
_EXTREMES = ("min", "avg", "max")


class ProgressMetrics(StreamingQueryListener):
    """Keeps gauges up to date with what each query reports after a batch.

    Args:
        registry: Where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}{name}", text, ("query", *labels), registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}{name}", text, ("query", *labels), registry=registry)

        self._running = gauge("query_running", "1 while the query runs.")
        self._failures = counter("query_failures", "Queries that ended with an error.")
        self._batches = counter("batches", "Batches done.")
        self._batch = gauge("batch_id", "Number of the newest batch.")
        self._rows = counter("input_rows", "Rows read; a batch that is run again counts again.")
        self._input_rate = gauge("input_rows_per_second", "Rate at which rows arrive.")
        self._rate = gauge("processed_rows_per_second", "Rate at which rows are done.")
        self._durations = gauge("duration_seconds", "Parts of the newest batch's time.", "phase")
        self._behind = gauge(
            "offsets_behind_latest",
            "Offsets up to the last stable one that the newest batch left, of the partitions of a"
            " source; markers and aborted records count.",
            *("source", "of"),
        )
        self._dropped = counter(
            "rows_dropped_by_watermark", "Rows that came behind the watermark: lost to the query."
        )
        self._state_rows = gauge("state_rows", "Rows in state stores.", "operator")
        self._state_bytes = gauge("state_memory_bytes", "Memory of state stores.", "operator")
        self._observed = gauge("observed", "What the query counts itself.", "name")
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Take note of the query's name, which its end does not tell."""
        name = event.name or str(event.id)
        self._names[str(event.runId)] = name
        self._failures.labels(name)  # from 0 on, so that a first failure is an increase
        self._dropped.labels(name)
        self._running.labels(name).set(1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Take in the report of a batch, or of a look that found nothing."""
        progress: dict[str, Any] = json.loads(event.progress.json)
        name = progress.get("name") or progress["id"]
        durations_ms = progress["durationMs"]
        if "addBatch" in durations_ms:
            self._batches.labels(name).inc()
        self._batch.labels(name).set(progress["batchId"])
        self._rows.labels(name).inc(progress["numInputRows"])
        self._input_rate.labels(name).set(progress.get("inputRowsPerSecond", 0))
        self._rate.labels(name).set(progress.get("processedRowsPerSecond", 0))
        for phase, duration_ms in durations_ms.items():
            self._durations.labels(name, phase).set(duration_ms / 1000)
        for number, source in enumerate(progress["sources"]):
            metrics = source.get("metrics") or {}
            for of in _EXTREMES:
                if (behind := metrics.get(f"{of}OffsetsBehindLatest")) is not None:
                    self._behind.labels(name, number, of).set(float(behind))
        for number, operator in enumerate(progress["stateOperators"]):
            self._dropped.labels(name).inc(operator.get("numRowsDroppedByWatermark", 0))
            self._state_rows.labels(name, number).set(operator.get("numRowsTotal", 0))
            self._state_bytes.labels(name, number).set(operator.get("memoryUsedBytes", 0))
        for observed in progress.get("observedMetrics", {}).values():
            for each, value in observed.items():
                if isinstance(value, (int, float)):
                    self._observed.labels(name, each).set(value)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing: the gauges stand."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Say that the query runs no more, and whether it failed."""
        name = self._names.pop(str(event.runId), str(event.id))
        self._running.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()


class StallMetrics(Collector):
    """Asks at each scrape how many offsets open kafka_txns hide, partition by partition.

    Args:
        stalls: Asks the cluster: (topic, partition) -> offsets, where there are any.
    """

    def __init__(self, stalls: Callable[[], dict[tuple[str, int], int]]) -> None:
        self._stalls = stalls

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without asking anybody: registering must not fail."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what the cluster says now."""
        hidden, answered = self._families()
        try:
            for (topic, partition), offsets in self._stalls().items():
                hidden.add_metric((topic, str(partition)), offsets)
            answered.add_metric((), 1)
        except JobError:
            answered.add_metric((), 0)
        yield from (hidden, answered)

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                f"{_PREFIX}stalled_offsets",
                "Offsets behind the last stable one: an open kafka_txn hides them from readers.",
                labels=("topic", "partition"),
            ),
            GaugeMetricFamily(f"{_PREFIX}stall_lookup_ok", "1 when the cluster answered."),
        )


@contextmanager
def metrics_served(
    spark: SparkSession,
    port: int | None,
    *,
    say: Callable[[str], None],
    stalls: Callable[[], dict[tuple[str, int], int]] | None = None,
    sinks: Sequence[Mapping[str, str]] = (),
) -> Iterator[int | None]:
    """Serve the metrics of the session's streaming queries for the time of the block.

    Args:
        spark: The session; queries that start inside the block are seen.
        port: Where; 0: a free one; None: nowhere, nothing is done.
        say: Told the address.
        stalls: As `cluster.Cluster.stalls`, asked at each scrape.
        sinks: Options of `txn_half` sinks, whose newest manifests are read at each scrape.

    Yields:
        The port.

    Raises:
        OSError: the port is taken; the user must act.
    """
    if port is None:
        yield None
        return
    registry = CollectorRegistry()
    listener = ProgressMetrics(registry)
    if stalls is not None:
        registry.register(StallMetrics(stalls))
    if sinks:
        from halfbridge.spark_jobs.sink.progress import SinkMetrics  # noqa: PLC0415 (needs a Kafka client)

        registry.register(SinkMetrics(sinks))
    server, thread = start_http_server(port, registry=registry)
    spark.streams.addListener(listener)
    try:
        say(f"metrics: http://localhost:{server.server_port}/metrics")
        yield server.server_port
    finally:
        spark.streams.removeListener(listener)
        server.shutdown()
        server.server_close()
        thread.join()

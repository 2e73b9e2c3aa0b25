"""Follows streaming queries: their progress, their end, and their Prometheus metrics.

Spark commits nothing to Kafka's consumer groups, so lag exporters do not see its reads. The metrics
report its lag instead.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener

from halfbridge.spark_jobs.capabilities import progress_of
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.tables.checkpoints import TopicsChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from halfbridge.spark_jobs.capabilities import Progress

OBSERVED = "rows"
_POLL_S = 1  # how late a signal ends the query; PySpark accepts whole seconds only
# Spark keeps the newest 100 reports; reading them costs some hundred calls into its JVM.
_REPORTS_S = 5.0
_FAILED_REPORT = ("NullPointerException", "KafkaMicroBatchStream", "ProgressContext.finishTrigger")
_STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Totals:
    """The totals of all batches of one run."""

    batches: int = 0  # batches done
    rows: int = 0  # rows written by them
    quarantined: int = 0  # how many of these are quarantined
    seconds: float = 0.0  # from the query's start to its end
    offsets_behind: int = 0  # offsets that were not read at the last batch, all partitions together
    interrupted: bool = False  # whether a signal ended it
    # Batches done of which Spark gave no numbers; they are in none of the above.
    unreported: int = 0
    # Numbers of the batches whose rows another run has added; they are in none of the rows.
    not_added: AbstractSet[int] = frozenset()
    _newest: int = field(default=-1, repr=False)

    @property
    def rows_per_s(self) -> float:
        """Rows written a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def add(self, progress: Progress) -> bool:
        """Add one report of Spark's, as JSON; return whether it is about a new batch."""
        number: int = progress["batchId"]
        if number <= self._newest or "addBatch" not in progress["durationMs"]:
            return False  # already counted, or without new rows
        self._newest = number
        self.batches += 1
        # Absent where the sink had the batch already when it began.
        counts = progress.get("observedMetrics", {}).get(OBSERVED, {})
        if number in self.not_added:
            counts = {}  # files were written, and another run was quicker
        self.rows += counts.get("rows") or 0
        self.quarantined += counts.get("quarantined") or 0
        self.offsets_behind = _behind(progress)
        return True

    def to_json(self) -> dict[str, object]:
        """Return the numbers under the names that reports use."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "quarantined": self.quarantined,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows_per_s, 1),
            "interrupted": self.interrupted,
            "unreported_batches": self.unreported,
        }


def run_to_end(
    start: Callable[[], StreamingQuery],
    show: Callable[[str], None],
    *,
    check: Callable[[], None],
    not_added: AbstractSet[int] = frozenset(),
) -> Totals:
    """Start a query, wait for its end, show a line for each batch, and return the totals.

    SIGINT and SIGTERM stop the query: for one that runs at an interval they are the way to end it.
    A batch that was not finished is repeated at the next start. After batches and at the end, also
    of a query that failed, `check` checks that the topics are still those of the checkpoint.
    `not_added` has the batches whose rows another run has added; it grows while the query runs.

    A query that begins with a batch which a killed one left unfinished does that batch and then
    fails, for Spark 4.1's Kafka source cannot report on it (SPARK-55271). It is started once more,
    and continues after that batch.

    Raises:
        TopicsChangedError: `check` raised it; the query has ended; the user follows the text.
        StreamingQueryException: the query failed; the user acts on its cause, and starts it again.
    """
    totals = Totals(not_added=not_added)
    began_s = time.monotonic()
    check = _without_outages(check, show)
    with _stop_asked() as stop:
        query = start()
        try:
            _follow(query, totals, show, stop, check)
        except StreamingQueryException as error:
            if totals.batches or not _is_failed_report(error):
                check()  # where a topic was deleted, that is the cause
                raise
            query.stop()  # returns when its name is free; the error comes before that
            totals.unreported = 1
            show("an unfinished batch was run again; continuing after it")
            _follow(start(), totals, show, stop, check)
    totals.seconds = time.monotonic() - began_s
    return totals


def _follow(
    query: StreamingQuery,
    totals: Totals,
    show: Callable[[str], None],
    stop: threading.Event,
    check: Callable[[], None],
) -> None:
    polled_s = time.monotonic()
    checked = totals.batches
    try:
        while not query.awaitTermination(_POLL_S):
            if time.monotonic() - polled_s >= _REPORTS_S:
                _take_in(query, totals, show)
                if totals.batches != checked:
                    check()
                    checked = totals.batches
                polled_s = time.monotonic()
            if stop.is_set():
                totals.interrupted = True
                query.stop()
        _take_in(query, totals, show)
        check()
    except TopicsChangedError:
        query.stop()
        raise


def _without_outages(check: Callable[[], None], show: Callable[[str], None]) -> Callable[[], None]:
    """Return `check`, which shows that brokers do not answer: a query may survive an outage."""

    def checked() -> None:
        try:
            check()
        except TopicsChangedError:
            raise
        except JobError as error:
            show(f"whether topics were deleted is not known: {error}")

    return checked


def _is_failed_report(error: StreamingQueryException) -> bool:
    java_stack: str = getattr(error, "_stackTrace", "")  # str(error) is its first line only
    return all(word in java_stack for word in _FAILED_REPORT)


def _take_in(query: StreamingQuery, totals: Totals, show: Callable[[str], None]) -> None:
    for report in query.recentProgress:
        progress = progress_of(report)
        before = totals.rows
        if totals.add(progress):
            took_s = progress["durationMs"]["triggerExecution"] / 1000
            show(
                f"batch {progress['batchId']}: {totals.rows - before:,} rows in {took_s:.1f} s;"
                f" {totals.rows:,} in all, {totals.offsets_behind:,} offsets to go"
            )


def _behind(progress: Progress) -> int:
    total = 0
    for source in progress["sources"]:
        ends, latest = (_by_partition(source.get(name)) for name in ("endOffset", "latestOffset"))
        total += sum(max(0, offset - ends.get(where, 0)) for where, offset in latest.items())
    return total


def _by_partition(offsets: object) -> dict[tuple[str, str], int]:
    if not isinstance(offsets, dict):
        return {}
    return {
        (topic, number): int(offset)
        for topic, partitions in offsets.items()
        for number, offset in partitions.items()
    }


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets; elsewhere than in the main thread, never."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in _STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_PREFIX = "halfbridge_spark_"
_EXTREMES = ("min", "avg", "max")


class ProgressMetrics(StreamingQueryListener):
    """Keeps gauges up to date with what each query reports after a batch."""

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
            "rows_dropped_by_watermark", "Rows older than the watermark: lost to the query."
        )
        self._state_rows = gauge("state_rows", "Rows in state stores.", "operator")
        self._state_bytes = gauge("state_memory_bytes", "Memory of state stores.", "operator")
        self._observed = gauge("observed", "Numbers that the query counts itself.", "name")
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Keep the query's name, which the event of its end does not have."""
        name = event.name or str(event.id)
        self._names[str(event.runId)] = name
        self._failures.labels(name)  # from 0 on, so that a first failure is an increase
        self._dropped.labels(name)
        self._running.labels(name).set(1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Set the gauges from the report of a batch, or of a poll without new rows."""
        progress: Progress = json.loads(event.progress.json)
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
        """Do nothing: the gauges keep their values."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Record that the query has ended, and whether it failed."""
        name = self._names.pop(str(event.runId), str(event.id))
        self._running.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()


class StallMetrics(Collector):
    """Asks at each scrape how many offsets open kafka_txns hide: (topic, partition) -> offsets."""

    def __init__(self, stalls: Callable[[], dict[tuple[str, int], int]]) -> None:
        self._stalls = stalls

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without asking anybody: registering must not fail."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics that are read from the cluster at each scrape."""
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
    """Serve the metrics of the session's streaming queries within the block; yield the port.

    Port 0 is a free one; None: nothing is done. Queries that start inside the block are seen. At
    each scrape `stalls` is asked, as `cluster.Brokers.stalls`, and the newest manifests of `sinks`
    are read, which are options of `txn_half` sinks.

    Raises:
        OSError: the port is in use; the user must act.
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

"""The progress of an app of the sink, and its refused messages: for metrics and notebooks.

In Spark 4.1 a Python sink cannot add numbers to a query's progress. The numbers are in the
manifests, which any process can read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from halfbridge.serde.errors import SerdeError
from halfbridge.spark_jobs.sink.clients import LOG
from halfbridge.spark_jobs.sink.errors import SinkError
from halfbridge.spark_jobs.sink.options import BATCH_ID_MAX, parse_options
from halfbridge.spark_jobs.sink.process import here
from halfbridge.spark_jobs.sink.tally import newest_tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric


_PREFIX = "halfbridge_spark_sink_"
# Records that one scrape may read of the manifest partition. A manifest has 1 KB to 235 KB
# (docs/spark_sink.md has the arithmetic), so 5,000 are 5 MB to 1 GB. An app with a batch every ten
# seconds writes 5,000 in half a day.
RECORDS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The numbers in the newest manifest of an app.

    Attributes:
        app_id: The app.
        batch_id: The app's newest published batch; -1: none yet.
        row_count: Rows of that batch.
        published_ms: When the driver wrote the manifest, epoch milliseconds; -1 without one.
        refused_count: Refused messages of the batches that the daemon had delivered when the newest
            one was committed.
        is_counted: Whether dead letters can be read; if not, refused_count has no meaning.
    """

    app_id: str
    batch_id: int = -1
    row_count: int = 0
    published_ms: int = -1
    refused_count: int = 0
    is_counted: bool = False


def sink_progress(options: Mapping[str, str]) -> SinkProgress:
    """Return the progress of an app.

    Args:
        options: The sink's: app.id, kafka.bootstrap.servers, halfbridge.prefix, kafka.*.

    Raises:
        SinkOptionError: an option is wrong; correct it.
        SearchLimitError: the app has written nothing among the newest RECORDS_MAX records of its
            partition of the manifest topic; this passes with its next batch.
        SinkError: the manifest topic cannot be read; repeat the call.
        DecodeError: a manifest of the app is damaged, or of a newer version; upgrade this reader.
    """
    parsed = parse_options(options)
    process = here()
    log = process.log(parsed)
    found = log.find(parsed.app_id, BATCH_ID_MAX, records_max=RECORDS_MAX)
    tally = newest_tally(found.earlier_commits)
    progress = SinkProgress(
        parsed.app_id, refused_count=tally.refused_count, is_counted=bool(tally.offsets)
    )
    # Only winners count: a COMMIT of a second driver has other numbers, and one that came too late
    # publishes nothing. Shown is the latest batch with a winner.
    key = (parsed.app_id, *parsed.client_key())
    shown = process.shown.get(key)
    while found.earlier_batch >= 0:
        if shown is None or shown.batch_id != found.earlier_batch:
            found = log.find(parsed.app_id, found.earlier_batch, records_max=RECORDS_MAX)
            if (entry := found.standing.winner) is None:
                continue
            shown = process.shown.put(key, entry.manifest._replace(attempts=()))
        return replace(
            progress,
            batch_id=shown.batch_id,
            row_count=shown.row_count,
            published_ms=shown.timestamp,
        )
    return progress


class SinkMetrics(Collector):
    """Reads the newest manifest of each app at each scrape.

    Args:
        sinks: Options of sinks, as `sink_progress` takes them.
    """

    def __init__(self, sinks: Sequence[Mapping[str, str]]) -> None:
        self._sinks = sinks

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without asking brokers, because registration must not fail."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """Yield the present numbers; an app whose manifests cannot be read is left out."""
        batch, rows, published, refused, answered = self._families()
        for options in self._sinks:
            app = options.get("app.id", "")
            try:
                progress = sink_progress(options)
            except (SinkError, SerdeError) as error:
                LOG.info("no progress of %s: %s", app, error)
                answered.add_metric((app,), 0)
                continue
            answered.add_metric((app,), 1)
            batch.add_metric((app,), progress.batch_id)
            rows.add_metric((app,), progress.row_count)
            published.add_metric((app,), progress.published_ms / 1_000)
            if progress.is_counted:
                refused.add_metric((app,), progress.refused_count)
        yield from (batch, rows, published, refused, answered)

    def _families(
        self,
    ) -> tuple[
        GaugeMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
        CounterMetricFamily,
        GaugeMetricFamily,
    ]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=("app",))

        return (
            gauge("batch_id", "Newest batch that was published; -1: none yet."),
            gauge("batch_rows", "Rows of that batch."),
            gauge("batch_timestamp_seconds", "When it was published."),
            CounterMetricFamily(
                f"{_PREFIX}refused_messages",
                "Messages of published batches that became dead letters.",
                labels=("app",),
            ),
            gauge("lookup_ok", "1 when the manifest topic told it."),
        )

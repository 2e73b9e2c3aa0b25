"""The progress of an app of the sink, and its refused messages.

Metrics and notebooks read both; the driver also reports refused messages after each batch, because
Spark cannot notice that published rows became dead letters. In Spark 4.1 a Python sink cannot add
numbers to a query's progress. The numbers are in the manifests, which any process can read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from halfbridge.serde.errors import SerdeError
from halfbridge.spark_jobs.sink.clients import LOG
from halfbridge.spark_jobs.sink.dead_letters import (
    Refused,
    Tally,
    await_delivery,
    newest_tally,
    refused_by,
    tally_of,
)
from halfbridge.spark_jobs.sink.errors import RefusedError, SinkError
from halfbridge.spark_jobs.sink.options import BATCH_ID_MAX, parse_options
from halfbridge.spark_jobs.sink.process import sink_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.spark_jobs.sink.dead_letters import Poll
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess

_PREFIX = "halfbridge_spark_sink_"
# Records that one scrape may read of the manifest partition. A manifest has 1 KB to 235 KB
# (docs/reference/sink.md has the arithmetic), so 5,000 are 5 MB to 1 GB. An app with a batch every
# ten seconds writes 5,000 in half a day.
RECORDS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The numbers in the newest manifest of an app."""

    app_id: str
    batch_id: int = -1  # the app's newest published batch; -1: none yet
    row_count: int = 0  # rows of that batch
    published_ms: int = -1  # when the driver wrote the manifest, epoch milliseconds; -1 without one
    # Refused messages of the batches that the daemon had delivered when the newest one was
    # committed.
    refused_count: int = 0
    # Whether dead letters can be read; if not, refused_count has no meaning.
    is_counted: bool = False


def sink_progress(options: Mapping[str, str]) -> SinkProgress:
    """Return the progress of an app; of the sink's options those of the clients and app.id count.

    Raises:
        SinkOptionError: an option is wrong; correct it.
        SearchLimitError: the app has written nothing among the newest RECORDS_MAX records of its
            partition of the manifest topic; nobody acts: it passes with the next batch.
        SinkError: the manifest topic cannot be read; repeat the call.
        DecodeError: a manifest of the app is damaged, or of a newer version; upgrade this reader.
    """
    parsed = parse_options(options)
    process = sink_process()
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
            if (entry := found.state.winner) is None:
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
    """Reads the newest manifest of each app at each scrape; `sinks` as for `sink_progress`."""

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
                LOG.info("metrics of %s are left out: %s", app, error)
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
            gauge("lookup_ok", "1 if the manifest topic could be read."),
        )


class RefusedWatch:
    """Counts the refused messages of an app. The app's manifests carry the count."""

    def __init__(
        self,
        options: SinkOptions,
        process: SinkProcess,
        winner_of: Callable[[int], BatchManifest | None],
    ) -> None:
        self._options = options
        self._process = process
        self._winner_of = winner_of

    def before(self, earlier: Sequence[BatchManifest]) -> Tally:
        """Return the tally for the next manifest, which counts the batches before it.

        `earlier` are COMMITs of the batch before; empty for the first batch, whose count begins at
        the end of the dead-letter topic.

        Raises:
            RefusedError: there are new refused messages, and fail.on.refused is set; the owner of
                the query corrects the rows or the topics.
        """
        since = newest_tally(earlier)
        if not since.offsets:
            dead = self._process.dead_letters(self._options)
            topic_id = dead.topic_id()
            return Tally(since.refused_count, dead.ends(), topic_id)
        batch_id = max(each.batch_id for each in earlier)
        return self._poll(since, batch_id)

    def after(self, winner: BatchManifest, decisions: Mapping[int, int]) -> None:
        """Poll once more after the daemon has delivered a batch, if it does so in time."""
        wait_ms = self._options.refused_wait_ms
        if not wait_ms or not winner.dead_letter_offsets:
            return
        dead = self._process.dead_letters(self._options)
        ports = self._process.ports
        if not await_delivery(self._options, ports, dead, decisions, timeout_ms=wait_ms):
            LOG.warning(
                "batch %d of %s: after %d ms the daemon has not delivered it, or its dead letters"
                " are not visible; its refused messages are counted with a later batch",
                *(winner.batch_id, winner.app_id, wait_ms),
            )
        self._poll(tally_of(winner), winner.batch_id)

    def _poll(self, since: Tally, newest_batch: int) -> Tally:
        """Poll, and return the new tally; the old one if the topic cannot be read now."""
        poll = self._process.dead_letters(self._options).read(since)
        if poll is None:
            return since
        refused = Refused({}, "", 0)
        if poll.letters:
            try:
                refused = refused_by(poll.letters, self._winner_of, newest_batch=newest_batch)
            except (SinkError, SerdeError) as error:  # a failure to count must not fail the batch
                LOG.warning(
                    "refused messages of %s are counted with a later batch, for their manifests"
                    " cannot be read: %s",
                    *(self._options.app_id, error),
                )
                return since
        tally = Tally(since.refused_count + refused.messages, poll.offsets, poll.topic_id)
        deletion = self._deletion(since, poll) if poll.is_recreated else ""
        if deletion:
            LOG.warning("some dead letters may not be counted: %s", deletion)
        self._tell(refused, tally, poll.unread)
        if (refused.messages or refused.unverified or deletion) and self._options.fails_on_refused:
            raise RefusedError(
                self._failure(refused, deletion),
                app_id=self._options.app_id,
                refused_count=refused.messages,
            )
        return tally

    def _deletion(self, since: Tally, poll: Poll) -> str:
        return (
            f"{self._options.names.dead} was deleted and created again (id {since.topic_id}, now"
            f" {poll.topic_id}): dead letters of {self._options.app_id} that were deleted with it"
            " are not counted"
        )

    def _failure(self, refused: Refused, anew: str) -> str:
        """Return a text that says what happened to refused rows, and what to do."""
        app, topic = self._options.app_id, self._options.names.dead
        said = [anew] if anew else []
        if refused.messages:
            said.append(
                f"{_words(refused)} of {app} were published, and the daemon has put them into"
                f" {topic} ({refused.why}): no consumer sees them"
            )
        if refused.unverified:
            said.append(
                f"{refused.unverified} transactions in {topic} say that they are of {app} or of its"
                " producer group, and whether they were published was not verified (they are of"
                " too many or too old batches, or name none): see that topic"
            )
        return (
            f"{'. '.join(said)}. Mend the cause (the daemon's policy, the real topic) and send"
            " these rows once more. To go on, start the query with fail.on.refused=false until one"
            " new batch is published, which notes them as counted; from then on true fails on new"
            " ones only"
        )

    def _tell(self, refused: Refused, tally: Tally, unread: int) -> None:
        app = self._options.app_id
        if refused.messages:
            LOG.warning(
                "%s of %s are dead letters (%s); %d in all, of batches delivered so far",
                *(_words(refused), app, refused.why, tally.refused_count),
            )
        if refused.unverified:
            LOG.warning(
                "%d transactions among the dead letters say that they are of %s or of its producer"
                " group; whether they were published was not verified",
                *(refused.unverified, app),
            )
        if unread:
            LOG.info(
                "%d offsets of dead letters were left unread; the next batch of %s reads them",
                unread,
                app,
            )


def _words(refused: Refused) -> str:
    batches = ", ".join(f"{count} of batch {batch}" for batch, count in refused.by_batch.items())
    return f"{refused.messages} messages ({batches})"

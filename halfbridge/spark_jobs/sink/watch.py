"""Reports published rows that became dead letters, which Spark cannot notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.errors import SerdeError
from halfbridge.spark_jobs.sink.clients import LOG
from halfbridge.spark_jobs.sink.errors import RefusedError, SinkError
from halfbridge.spark_jobs.sink.refused import await_delivery
from halfbridge.spark_jobs.sink.tally import Refused, Tally, newest_tally, refused_by, tally_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.serde.manifest_records import BatchManifest
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess
    from halfbridge.spark_jobs.sink.refused import Look


class RefusedWatch:
    """Counts the refused messages of an app. The app's manifests carry the count.

    Args:
        options: The sink's options.
        process: Holds the clients.
        winner_of: Batch -> its winning manifest.
    """

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

        Args:
            earlier: COMMITs of the batch before; empty for the first batch, whose count begins at
                the end of the dead-letter topic.

        Raises:
            RefusedError: there are new refused messages, and fail.on.refused is set.
        """
        since = newest_tally(earlier)
        if not since.offsets:
            dead = self._process.dead_letters(self._options)
            topic_id = dead.topic_id()
            return Tally(since.refused_count, dead.ends(), topic_id)
        batch_id = max(each.batch_id for each in earlier)
        return self._look(since, batch_id)

    def after(self, winner: BatchManifest, decisions: Mapping[int, int]) -> None:
        """Look once more after the daemon has delivered a batch, if it does so in time.

        Args:
            winner: Manifest of the batch.
            decisions: Half partition -> offset of its last COMMIT.

        Raises:
            RefusedError: as `before`, also for the batch itself.
        """
        wait_ms = self._options.refused_wait_ms
        if not wait_ms or not winner.dead_letter_offsets:
            return
        dead = self._process.dead_letters(self._options)
        ports = self._process.ports
        if not await_delivery(self._options, ports, dead, decisions, timeout_ms=wait_ms):
            LOG.warning(
                "batch %d of %s: after %d ms the daemon has not delivered it, or its dead letters"
                " are not visible; what is refused of it is counted with a later batch",
                *(winner.batch_id, winner.app_id, wait_ms),
            )
        self._look(tally_of(winner), winner.batch_id)

    def _look(self, since: Tally, newest_batch: int) -> Tally:
        """Look, and return the new tally; the old one if the topic cannot be read now."""
        look = self._process.dead_letters(self._options).read(since)
        if look is None:
            return since
        refused = Refused({}, "", 0)
        if look.letters:
            try:
                refused = refused_by(look.letters, self._winner_of, newest_batch=newest_batch)
            except (SinkError, SerdeError) as error:  # a failure to count must not fail the batch
                LOG.warning(
                    "refused messages of %s are counted with a later batch, for their manifests"
                    " cannot be read: %s",
                    *(self._options.app_id, error),
                )
                return since
        tally = Tally(since.refused_count + refused.messages, look.offsets, look.topic_id)
        anew = self._anew(since, look) if look.is_anew else ""
        if anew:
            LOG.warning("%s", anew)
        self._tell(refused, tally, look.unread)
        if (refused.messages or refused.unverified or anew) and self._options.fails_on_refused:
            raise RefusedError(self._failure(refused, anew))
        return tally

    def _anew(self, since: Tally, look: Look) -> str:
        return (
            f"{self._options.names.dead} was deleted and created again (id {since.topic_id}, now"
            f" {look.topic_id}): dead letters of {self._options.app_id} that were deleted with it"
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
                " producer group, and whether they were published was not looked up (they are of"
                " too many or too old batches, or name none): see there"
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
                " group; whether they were published was not looked up",
                *(refused.unverified, app),
            )
        if unread:
            LOG.info("%d offsets of dead letters are left for the next batch of %s", unread, app)


def _words(refused: Refused) -> str:
    batches = ", ".join(f"{count} of batch {batch}" for batch, count in refused.by_batch.items())
    return f"{refused.messages} messages ({batches})"

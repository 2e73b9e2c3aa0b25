"""One batch, on the driver: the manifest is its commit point, the decisions follow from it."""

from __future__ import annotations

import os
from time import time_ns
from typing import TYPE_CHECKING

from serde.records import BatchManifest, ManifestKind, OpKind, OpSource
from spark_jobs.sink.chunks import merge_timestamps
from spark_jobs.sink.clients.kafka_io import LOG, actor_name
from spark_jobs.sink.cluster.kafka_io import MS_PER_S
from spark_jobs.sink.errors import (
    AttemptGivenUpError,
    BatchOrderError,
    CommitInDoubtError,
    ReplayMismatchError,
    UnknownPastError,
)
from spark_jobs.sink.log.kafka_io import log_for
from spark_jobs.sink.manifest import Fate, Replay, compare, rounds, without_transactions
from spark_jobs.sink.rows import ContentHash
from spark_jobs.sink.sender.kafka_io import decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from serde.records import ManifestAttempt
    from spark_jobs.sink.attempt import AttemptReport
    from spark_jobs.sink.manifest import Found
    from spark_jobs.sink.options import SinkOptions

_NS_PER_MS = 1_000_000


# Process, app and cluster -> the latest batch whose COMMITs this process has written.
_SETTLED: dict[tuple[object, ...], int] = {}


class BatchCommitter:
    """Commits and aborts the batches of one app. Holds no state: Spark makes one for each call."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def commit(self, batch_id: int, reports: Sequence[AttemptReport]) -> None:
        """Publish a batch, or find it published; may be repeated, also with other attempts.

        Raises:
            ReplayMismatchError, BatchOrderError, UnknownPastError: the text says what to do; no
                new row was published.
            AttemptGivenUpError: the batch came too late; run again it is published.
            CommitInDoubtError: the brokers do not answer; run again it is settled.
            SinkSetupError: the manifest topic is missing or too small.
        """
        winner = self.record(batch_id, reports)
        # First, whatever comes of this commit: the driver that left a winner may never come back,
        # and one whose rows differ fails each time.
        self.settle(winner)
        mine = self._manifest(ManifestKind.COMMIT, batch_id, reports)
        replay = compare(winner, mine)
        if replay is Replay.OWN:
            return
        listed = {each.attempt_id for each in winner.attempts}
        self._roll_back(each for each in mine.attempts if each.attempt_id not in listed)
        if replay is Replay.DIFFERENT:
            raise _mismatch(winner, mine)
        LOG.info(
            "batch %d of %s was published before; nothing is sent twice", batch_id, mine.app_id
        )

    def record(self, batch_id: int, reports: Sequence[AttemptReport]) -> BatchManifest:
        """Return the batch's winning manifest: ours if nobody was first. The commit point.

        Raises: as commit, but for ReplayMismatchError.
        """
        mine = self._manifest(ManifestKind.COMMIT, batch_id, reports)
        log = log_for(self._options)
        found = log.find(self._options.app_id, batch_id)
        if found.standing.winner is None:
            if found.later_batch > batch_id:
                self._roll_back(mine.attempts)
                raise _out_of_order(mine, found)
            if self._options.follows_another(batch_id) and not found.follows_the_one_before:
                self._roll_back(mine.attempts)
                raise _unknown_past(mine, found, self._options)
            self._settle_earlier(found.earlier_batch)
            found = log.append(mine._replace(searched_from=found.searched_from))
        winner = found.standing.winner
        if winner is None:
            self._roll_back_lost(mine.attempts, found)
            raise AttemptGivenUpError(
                f"batch {batch_id} of {mine.app_id} took too long or was aborted, and was given up"
                " before this commit: nothing of it was published. Start the query again; the"
                " batch is run anew"
            )
        return winner.manifest

    def settle(self, winner: BatchManifest, *, source: OpSource = OpSource.PRODUCER) -> None:
        """Write the decisions of a winning manifest, all of them and in order; may be repeated.

        Whoever writes them writes all: of several who do so at a time, each first decision comes
        from one that has written those before it, so the order of rows holds.

        Raises:
            CommitInDoubtError: not all were acknowledged; repeat it.
        """
        self._decide(OpKind.COMMIT, winner.attempts, winner.producer_group, source)
        _SETTLED[self._key] = max(winner.batch_id, _SETTLED.get(self._key, -1))

    def abort(self, batch_id: int, reports: Sequence[AttemptReport]) -> None:
        """Roll back what no winning manifest lists, and make sure that none ever will.

        A winner that another driver left is settled first; one of this driver is left to the next
        start of the query, which is failing.

        Raises:
            SinkError: it could not; the check settles what is left.
        """
        if not reports:
            return
        log = log_for(self._options)
        found = log.find(self._options.app_id, batch_id)
        rejected = self._manifest(ManifestKind.REJECT, batch_id, reports)
        fates = [found.standing.fate(each.attempt_id) for each in rejected.attempts]
        if Fate.OPEN in fates:
            # A commit of ours may still be on its way to the log: from here on it is void.
            found = log.append(
                rejected._replace(searched_from=found.searched_from, reason="the batch was aborted")
            )
        winner = found.standing.winner
        if winner is not None and winner.attempt_ids.isdisjoint(
            each.attempt_id for each in rejected.attempts
        ):
            self.settle(winner.manifest)
        self._roll_back_lost([report.attempt for report in reports], found)

    def find(self, batch_id: int) -> Found:
        """Return what stands in the log about a batch.

        Raises:
            SinkError: it cannot be read; repeat it.
        """
        return log_for(self._options).find(self._options.app_id, batch_id)

    def reject(self, batch_id: int, attempt_id: str, reason: str) -> Found:
        """Give an attempt up unless a manifest has it by now; return what stands then.

        Raises:
            SinkError: it could not; repeat it.
        """
        found = self.find(batch_id)
        if found.standing.fate(attempt_id) is not Fate.OPEN:
            return found
        manifest = self._manifest(ManifestKind.REJECT, batch_id, ())._replace(
            attempts=(without_transactions(attempt_id),),
            searched_from=found.searched_from,
            reason=reason,
        )
        return log_for(self._options).append(manifest)

    def _settle_earlier(self, batch_id: int) -> None:
        """Settle the batch before, if this process has not: its driver may have died before it did.

        Decided later, by a responder or by its driver, its rows would come out behind newer ones.

        Raises:
            SinkError: it cannot be; repeat it.
        """
        if batch_id <= _SETTLED.get(self._key, -1):
            return
        winner = self.find(batch_id).standing.winner
        if winner is not None:
            self.settle(winner.manifest)

    @property
    def _key(self) -> tuple[object, ...]:
        return (os.getpid(), self._options.app_id, *self._options.client_key())

    def _manifest(
        self, kind: ManifestKind, batch_id: int, reports: Sequence[AttemptReport]
    ) -> BatchManifest:
        commits = kind is ManifestKind.COMMIT
        content = ContentHash()
        for report in reports:
            content.add_sum(report.content_sum)
        return BatchManifest(
            app_id=self._options.app_id,
            batch_id=batch_id,
            kind=kind,
            searched_from=0,
            first_append_timestamp=merge_timestamps(
                report.first_append_timestamp for report in reports
            ),
            age_ms_max=self._options.age_ms_max,
            row_count=sum(report.row_count for report in reports) if commits else 0,
            content_hash=content.hex() if commits else "",
            timestamp=time_ns() // _NS_PER_MS,
            producer_group=self._options.producer_group,
            actor=actor_name(),
            reason="",
            attempts=tuple(
                report.attempt if commits else without_transactions(report.attempt.attempt_id)
                for report in reports
            ),
        )

    def _roll_back_lost(self, attempts: Iterable[ManifestAttempt], found: Found) -> None:
        """Roll back those of the attempts that the log says are lost, and no others."""
        stands = found.standing
        self._roll_back(each for each in attempts if stands.fate(each.attempt_id) is Fate.ROLLBACK)

    def _roll_back(self, attempts: Iterable[ManifestAttempt]) -> None:
        """Roll attempts back; what does not get through is found by the check."""
        try:
            self._decide(OpKind.ROLLBACK, attempts, self._options.producer_group, OpSource.PRODUCER)
        except CommitInDoubtError as error:
            LOG.warning("attempts of %s are left to the check: %s", self._options.app_id, error)

    def _decide(
        self,
        kind: OpKind,
        attempts: Iterable[ManifestAttempt],
        producer_group: str,
        source: OpSource,
    ) -> None:
        cut = rounds(attempts)
        if not cut:
            return
        decide(
            self._options,
            kind,
            cut,
            producer_group=producer_group,
            source=source,
            timeout_s=self._options.commit_timeout_ms / MS_PER_S,
        )


def _mismatch(winner: BatchManifest, mine: BatchManifest) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"batch {mine.batch_id} of {mine.app_id} was published already, with {winner.row_count}"
        f" rows (hash {winner.content_hash[:8]}) by {winner.actor}, and now has {mine.row_count}"
        f" (hash {mine.content_hash[:8]}). No row of this run was published; what was left of the"
        " earlier ones was. Either the checkpoint was deleted, reset or restored while app.id"
        " stayed the same: then set a new app.id, or bring the checkpoint back. Or two queries"
        " share this app.id: give each its own. Or the query is not deterministic (rand,"
        " current_timestamp, a source that changed): make it so"
    )


def _unknown_past(mine: BatchManifest, found: Found, options: SinkOptions) -> UnknownPastError:
    known = f"none later than {found.earlier_batch}" if found.earlier_batch >= 0 else "none"
    return UnknownPastError(
        f"batch {mine.batch_id} of {mine.app_id}: of the batches before it"
        f" {options.names.manifest} on {options.bootstrap_servers} knows {known}, so that one may"
        " have been published under other options. If app.id, halfbridge.prefix or"
        " kafka.bootstrap.servers were changed, or the topic was made anew: go back to what they"
        " were. If the query wrote to another sink until now, or has a new app.id for good, see"
        f" that the rows of batch {mine.batch_id} are not in their topic yet, and set the option"
        f" first.batch to {mine.batch_id}: it is published then, and those after it. Nothing was"
        " published now"
    )


def _out_of_order(mine: BatchManifest, found: Found) -> BatchOrderError:
    return BatchOrderError(
        f"batch {mine.batch_id} of {mine.app_id} was never published, but batch"
        f" {found.later_batch} was. Either the checkpoint was deleted or reset: then set a new"
        " app.id, or bring the checkpoint back. Or a batch write took a batch.id that is not larger"
        " than that of every write before it. Nothing was published now"
    )

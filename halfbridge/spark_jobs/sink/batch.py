"""One batch, on the driver: the manifest is its commit point, and the decisions follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.manifest_records import BatchManifest, ManifestKind
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.sink.batch_manifest import new_manifest
from halfbridge.spark_jobs.sink.checkpoint import NO_PLAN
from halfbridge.spark_jobs.sink.clients import LOG
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RefusedError, SinkOptionError
from halfbridge.spark_jobs.sink.manifest import (
    Fate,
    Rerun,
    compare,
    rounds,
    without_transactions,
)
from halfbridge.spark_jobs.sink.process import here
from halfbridge.spark_jobs.sink.refusals import given_up, refusal_of, replay_refusal_of
from halfbridge.spark_jobs.sink.topics import MS_PER_S
from halfbridge.spark_jobs.sink.watch import RefusedWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.serde.manifest_records import ManifestAttempt
    from halfbridge.spark_jobs.sink.attempt import AttemptReport
    from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
    from halfbridge.spark_jobs.sink.manifest import Found
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess


class BatchCommitter:
    """Commits and aborts the batches of one app. Holds no state: Spark makes one per call.

    Args:
        options: The sink's options.
        process: Holds the clients; None: `here()`.
    """

    def __init__(self, options: SinkOptions, process: SinkProcess | None = None) -> None:
        self._options = options
        self._process = process or here()
        self._watch = RefusedWatch(options, self._process, self._winner_of)

    def commit(
        self, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
    ) -> None:
        """Publish a batch unless it is published already; may be repeated, with other attempts too.

        Args:
            batch_id: Number of the batch.
            reports: Reports of the batch's tasks.
            plan: The batch's plan in the checkpoint.

        Raises:
            ReplayMismatchError, PlanMismatchError, BatchOrderError, UnknownPastError: the text
                says what to do; no new row was published.
            AttemptGivenUpError: the batch came too late; a new run publishes it.
            CommitInDoubtError: brokers do not answer; a new run settles the batch.
            RefusedError: published rows are dead letters, and fail.on.refused is set.
            SinkSetupError: the manifest topic is missing or too small.
        """
        winner = self.record(batch_id, reports, plan)
        # Decisions come first, even if this commit fails: the driver that wrote the winner may
        # never return, and a driver whose rows differ fails each time.
        decisions = self.decide_all(winner)
        mine = self._manifest(ManifestKind.COMMIT, batch_id, reports, plan)
        rerun = compare(winner, mine)
        if rerun is not Rerun.OWN:
            listed = {each.attempt_id for each in winner.attempts}
            self._roll_back(each for each in mine.attempts if each.attempt_id not in listed)
            self._accept(rerun, winner, mine, plan)
        self._watch.after(winner, decisions)

    def record(
        self, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
    ) -> BatchManifest:
        """Return the batch's winning manifest: this driver's, if it is the first. The commit point.

        Raises: as commit, but for ReplayMismatchError.
        """
        mine = self._manifest(ManifestKind.COMMIT, batch_id, reports, plan)
        log = self._process.log(self._options)
        found = log.find(self._options.app_id, batch_id)
        if found.standing.winner is None:
            refusal = refusal_of(
                mine, found, plan, options=self._options, winner_of=self._winner_of
            )
            if refusal is not None:
                self._roll_back(mine.attempts)
                raise refusal
            self._decide_earlier(found, plan)
            found = log.append(self._counted(mine, found))
        winner = found.standing.winner
        if winner is None:
            self._roll_back_lost(mine.attempts, found)
            raise given_up(mine)
        return winner.manifest

    def decide_all(
        self, winner: BatchManifest, *, source: OpSource = OpSource.PRODUCER
    ) -> dict[int, int]:
        """Write all decisions of a winning manifest, in order; may be repeated.

        Each writer writes all decisions. If several processes write at the same time, the first
        decision of a transaction comes from a process that has written all earlier ones. So the
        order of rows is kept.

        Returns:
            Half partition -> offset of its last decision.

        Raises:
            CommitInDoubtError: not all decisions were acknowledged; repeat the call.
        """
        written = self._decide(OpKind.COMMIT, winner.attempts, winner.producer_group, source)
        self._process.decided.put(self._key, max(winner.batch_id, self._decided_to))
        return written

    def abort(self, batch_id: int, reports: Sequence[AttemptReport]) -> None:
        """Roll back the attempts that no winning manifest lists, and reject them for good.

        The winner of another driver is decided first. A winner of this driver is left to the next
        start of the query, because the query is failing.

        Raises:
            SinkError: that failed; the check settles the attempts.
        """
        if not reports:
            return
        log = self._process.log(self._options)
        found = log.find(self._options.app_id, batch_id)
        rejected = self._manifest(ManifestKind.REJECT, batch_id, reports)
        fates = [found.standing.fate(each.attempt_id) for each in rejected.attempts]
        if Fate.OPEN in fates:
            # A manifest of this driver may still be on its way to the log; the REJECT voids it.
            found = log.append(
                rejected._replace(searched_from=found.searched_from, reason="the batch was aborted")
            )
        winner = found.standing.winner
        if winner is not None and winner.attempt_ids.isdisjoint(
            each.attempt_id for each in rejected.attempts
        ):
            self.decide_all(winner.manifest)
        self._roll_back_lost([report.attempt for report in reports], found)

    def find(self, batch_id: int) -> Found:
        """Return the log's records of a batch.

        Raises:
            SinkError: the log cannot be read; repeat the call.
        """
        return self._process.log(self._options).find(self._options.app_id, batch_id)

    def reject(self, batch_id: int, attempt_id: str, reason: str) -> Found:
        """Reject an attempt unless a manifest lists it; return the log's records of the batch.

        Raises:
            SinkError: that failed; repeat the call.
        """
        found = self.find(batch_id)
        if found.standing.fate(attempt_id) is not Fate.OPEN:
            return found
        manifest = self._manifest(ManifestKind.REJECT, batch_id, ())._replace(
            attempts=(without_transactions(attempt_id),),
            searched_from=found.searched_from,
            reason=reason,
        )
        return self._process.log(self._options).append(manifest)

    def _accept(
        self, rerun: Rerun, winner: BatchManifest, mine: BatchManifest, plan: BatchPlan
    ) -> None:
        """Accept that another driver has published this batch, if the rows or the plan agree.

        Raises:
            ReplayMismatchError, PlanMismatchError: they do not agree.
        """
        refusal = replay_refusal_of(rerun, winner, mine, plan, options=self._options)
        if refusal is not None:
            raise refusal
        if rerun is Rerun.DIFFERENT:
            LOG.warning(
                "batch %d of %s was published before with %d rows, other ones than the %d of this"
                " run, by the same plan: the first ones stand (on.mismatch)",
                *(mine.batch_id, mine.app_id, winner.row_count, mine.row_count),
            )
        elif mine.attempts:
            LOG.info(
                "batch %d of %s was published before; nothing is sent twice",
                *(mine.batch_id, mine.app_id),
            )

    def _decide_earlier(self, found: Found, plan: BatchPlan) -> None:
        """Decide the latest earlier batch, unless that is done: its driver may have died first.

        If a responder or its driver decided it later, its rows would come after newer rows. Spark
        notes batch N-1 as done when its commit has returned; then it is decided, and a new process
        (Spark ends idle ones after a minute) writes nothing again. The note says nothing of an
        older batch, which is the latest one if the query wrote to another sink meanwhile.

        Raises:
            SinkError: that failed; repeat the call.
        """
        if found.earlier_batch <= self._decided_to:
            return
        is_the_one_before = found.earlier_batch == found.batch_id - 1
        if (
            plan.is_before_done
            and is_the_one_before
            and all(each.query_id == plan.query_id for each in found.earlier_commits)
        ):
            return
        winner = self._winner_of(found.earlier_batch)
        if winner is not None:
            self.decide_all(winner)

    def _counted(self, mine: BatchManifest, found: Found) -> BatchManifest:
        """Return the manifest to append, completed with `searched_from` and the tally.

        Raises:
            RefusedError: new rows were refused, and fail.on.refused is set.
        """
        try:
            tally = self._watch.before(found.earlier_commits)
        except RefusedError:
            self._roll_back(mine.attempts)
            raise
        return mine._replace(
            searched_from=found.searched_from,
            refused_count=tally.refused_count,
            dead_letter_offsets=tally.offsets,
            dead_letter_topic_id=tally.topic_id,
        )

    def _winner_of(self, batch_id: int) -> BatchManifest | None:
        winner = self.find(batch_id).standing.winner
        return None if winner is None else winner.manifest

    @property
    def _key(self) -> tuple[object, ...]:
        return (self._options.app_id, *self._options.client_key())

    @property
    def _decided_to(self) -> int:
        decided = self._process.decided.get(self._key)
        return -1 if decided is None else decided

    def _manifest(
        self,
        kind: ManifestKind,
        batch_id: int,
        reports: Sequence[AttemptReport],
        plan: BatchPlan = NO_PLAN,
    ) -> BatchManifest:
        return new_manifest(
            self._options, self._process, kind=kind, batch_id=batch_id, reports=reports, plan=plan
        )

    def _roll_back_lost(self, attempts: Iterable[ManifestAttempt], found: Found) -> None:
        """Roll back the attempts whose fate in the log is LOST, and no others."""
        stands = found.standing
        self._roll_back(each for each in attempts if stands.fate(each.attempt_id) is Fate.ROLLBACK)

    def _roll_back(self, attempts: Iterable[ManifestAttempt]) -> None:
        """Roll back attempts; if that fails, the check settles them."""
        try:
            self._decide(OpKind.ROLLBACK, attempts, self._options.producer_group, OpSource.PRODUCER)
        except (CommitInDoubtError, SinkOptionError) as error:
            LOG.warning("attempts of %s are left to the check: %s", self._options.app_id, error)

    def _decide(
        self,
        kind: OpKind,
        attempts: Iterable[ManifestAttempt],
        producer_group: str,
        source: OpSource,
    ) -> dict[int, int]:
        cut = rounds(attempts)
        if not cut:
            return {}
        return self._process.decide(
            self._options,
            kind,
            cut,
            producer_group=producer_group,
            source=source,
            timeout_s=self._options.commit_timeout_ms / MS_PER_S,
        )

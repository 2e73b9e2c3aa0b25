"""One batch, on the driver: the manifest is its commit point, and the decisions follow from it.

Where the manifests in the log forbid to publish the batch, `refusal_of` makes the error, which says
what happened and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.manifest import BatchManifest, ManifestKind
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.sink.attempt import merge_timestamps
from halfbridge.spark_jobs.sink.checkpoint import NO_PLAN
from halfbridge.spark_jobs.sink.clients import LOG
from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    BatchOrderError,
    PlanMismatchError,
    RefusedError,
    ReplayMismatchError,
    SinkError,
    UnknownPastError,
)
from halfbridge.spark_jobs.sink.manifest import (
    AttemptOutcome,
    Rerun,
    compare,
    differ,
    rounds,
    same_origin,
    without_transactions,
)
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.spark_jobs.sink.progress import RefusedWatch
from halfbridge.spark_jobs.sink.rows import ContentHash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfbridge.serde.manifest import ManifestAttempt
    from halfbridge.spark_jobs.sink.attempt import AttemptReport
    from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
    from halfbridge.spark_jobs.sink.manifest import Found
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess


class BatchCommitter:
    """Commits and aborts the batches of one app. Holds no state: Spark makes one per call."""

    def __init__(self, options: SinkOptions, process: SinkProcess | None = None) -> None:
        self._options = options
        self._process = process or sink_process()
        self._watch = RefusedWatch(options, self._process, self._winner_of)

    def commit(
        self, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
    ) -> None:
        """Publish a batch unless it is published already; may be repeated, with other attempts too.

        Raises:
            ReplayMismatchError, PlanMismatchError, BatchOrderError, UnknownPastError: no new row
                was published; the owner of the query follows the text.
            AttemptGivenUpError: the batch came too late; a new run publishes it.
            CommitInDoubtError: brokers do not answer; a new run settles the batch.
            RefusedError: published rows are dead letters, and fail.on.refused is set; the owner of
                the query corrects the rows or the topics.
            SinkSetupError: the manifest topic is missing or too small; an operator corrects it.
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
        """Return the batch's winner: this driver's manifest if it is first. The commit point.

        Raises what `commit` raises.
        """
        mine = self._manifest(ManifestKind.COMMIT, batch_id, reports, plan)
        log = self._process.log(self._options)
        found = log.find(self._options.app_id, batch_id)
        if found.state.winner is None:
            refusal = refusal_of(
                mine, found, plan, options=self._options, winner_of=self._winner_of
            )
            if refusal is not None:
                self._roll_back(mine.attempts)
                raise refusal
            self._decide_earlier(found, plan)
            found = log.append(self._counted(mine, found))
        winner = found.state.winner
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
        order of rows is kept. Returns half partition -> offset of its last decision.

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
        """
        if not reports:
            return
        log = self._process.log(self._options)
        found = log.find(self._options.app_id, batch_id)
        rejected = self._manifest(ManifestKind.REJECT, batch_id, reports)
        fates = [found.state.fate(each.attempt_id) for each in rejected.attempts]
        if AttemptOutcome.OPEN in fates:
            # A manifest of this driver may still be on its way to the log; the REJECT voids it.
            found = log.append(
                rejected._replace(searched_from=found.searched_from, reason="the batch was aborted")
            )
        winner = found.state.winner
        if winner is not None and winner.attempt_ids.isdisjoint(
            each.attempt_id for each in rejected.attempts
        ):
            self.decide_all(winner.manifest)
        self._roll_back_lost([report.attempt for report in reports], found)

    def find(self, batch_id: int) -> Found:
        """Return the log's records of a batch; after a SinkError repeat the call."""
        return self._process.log(self._options).find(self._options.app_id, batch_id)

    def reject(self, batch_id: int, attempt_id: str, reason: str) -> Found:
        """Reject an attempt unless a manifest lists it; return the log's records of the batch.

        After a SinkError repeat the call.
        """
        found = self.find(batch_id)
        if found.state.fate(attempt_id) is not AttemptOutcome.OPEN:
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
        """Accept that another driver has published this batch, if the rows or the plan agree."""
        refusal = replay_refusal_of(rerun, winner, mine, plan, options=self._options)
        if refusal is not None:
            raise refusal
        if rerun is Rerun.DIFFERENT:
            LOG.warning(
                "batch %d of %s was published before with %d rows, other ones than the %d of this"
                " run, by the same plan: the first ones are kept (on.mismatch)",
                *(mine.batch_id, mine.app_id, winner.row_count, mine.row_count),
            )
        elif mine.attempts:
            # A driver was killed after its manifest was stored: its successor logs that.
            LOG.warning(
                "batch %d of %s was published before this run, by %s: its %d rows in %d"
                " transactions are settled, and nothing is sent twice",
                *(mine.batch_id, mine.app_id, winner.actor, winner.row_count),
                sum(len(each.transactions) for each in winner.attempts),
            )

    def _decide_earlier(self, found: Found, plan: BatchPlan) -> None:
        """Decide the latest earlier batch, unless that is done: its driver may have died first.

        If a responder or its driver decided it later, its rows would come after newer rows. Spark
        notes batch N-1 as done when its commit has returned; then it is decided, and a new process
        (Spark ends idle ones after a minute) writes nothing again. The note says nothing of an
        older batch, which is the latest one if the query wrote to another sink meanwhile.
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
        """Return the manifest to append, completed with `searched_from` and the tally."""
        try:
            tally = self._watch.before(found.counted_commits)
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
        winner = self.find(batch_id).state.winner
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
        """Roll back the attempts whose fate in the log is ROLLBACK, and no others."""
        state = found.state
        self._roll_back(
            each for each in attempts if state.fate(each.attempt_id) is AttemptOutcome.ROLLBACK
        )

    def _roll_back(self, attempts: Iterable[ManifestAttempt]) -> None:
        """Roll back attempts; if that fails, the check settles them."""
        try:
            self._decide(OpKind.ROLLBACK, attempts, self._options.producer_group, OpSource.PRODUCER)
        except SinkError as error:
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
        timeout_s = self._options.commit_timeout_ms / MS_PER_S
        with self._process.decider(self._options) as decider:
            return decider.decide(
                kind, cut, producer_group=producer_group, source=source, timeout_s=timeout_s
            )


def new_manifest(
    options: SinkOptions,
    process: SinkProcess,
    *,
    kind: ManifestKind,
    batch_id: int,
    reports: Sequence[AttemptReport],
    plan: BatchPlan,
) -> BatchManifest:
    """Return the manifest of a batch; a REJECT names attempts without their transactions."""
    commits = kind is ManifestKind.COMMIT
    content = ContentHash()
    for report in reports:
        content.add_sum(report.content_sum)
    return BatchManifest(
        app_id=options.app_id,
        batch_id=batch_id,
        kind=kind,
        searched_from=0,
        first_append_timestamp=merge_timestamps(
            report.first_append_timestamp for report in reports
        ),
        age_ms_max=options.age_ms_max,
        row_count=sum(report.row_count for report in reports) if commits else 0,
        content_hash=content.hex() if commits else "",
        query_id=plan.query_id,
        plan_hash=plan.plan_hash,
        refused_count=0,
        dead_letter_offsets=(),
        dead_letter_topic_id="",
        timestamp=process.ports.clock.time_ms(),
        producer_group=options.producer_group,
        actor=process.actor,
        reason="",
        attempts=tuple(
            report.attempt if commits else without_transactions(report.attempt.attempt_id)
            for report in reports
        ),
    )


_NOTHING = "Nothing was published now"
_FIRST_KEPT = (
    "No row of this run was published; the remaining decisions of the earlier run were written"
)
_LOST_PLAN = (
    "Two drivers ran on one checkpoint, and its store let one write over the plan of the other"
    " (docs/reference/sink.md says which stores do not), or somebody changed the file. Rows that"
    " are in one plan and not in the other would be lost, or published twice. Stop all drivers but"
    " one. Where the store keeps older versions of files, bring back the one that was published,"
    " and start the query again. Else use a new app.id and a new checkpoint, and begin after the"
    " offsets that were published: the log of the driver that published them names those"
)


def refusal_of(
    mine: BatchManifest,
    found: Found,
    plan: BatchPlan,
    *,
    options: SinkOptions,
    winner_of: Callable[[int], BatchManifest | None],
) -> SinkError | None:
    """Return why a batch without a winner must not be published; None if it may."""
    if found.later_batch > mine.batch_id:
        return _out_of_order(mine, found, options)
    if options.follows_another(mine.batch_id) and not found.follows_the_one_before:
        return _unknown_past(mine, found, options)
    if plan.departure:
        return _departed(mine, plan.departure)
    if found.earlier_batch == mine.batch_id - 1:
        return _refusal_by_the_one_before(mine, found, plan.hash_before, winner_of)
    return None


def replay_refusal_of(
    rerun: Rerun,
    winner: BatchManifest,
    mine: BatchManifest,
    plan: BatchPlan,
    *,
    options: SinkOptions,
) -> SinkError | None:
    """Return why a batch with a winner is not accepted as published; None if it is."""
    if rerun is Rerun.OTHER_QUERY:
        return _other_query(winner, mine)
    if rerun is Rerun.OTHER_PLAN or plan.departure:
        return _other_plan(winner, mine, plan.departure)
    is_same_plan = bool(winner.plan_hash and mine.plan_hash)
    if rerun is Rerun.DIFFERENT and not (options.keeps_first and is_same_plan):
        return _other_rows(winner, mine)
    return None


def given_up(mine: BatchManifest) -> AttemptGivenUpError:
    """Return the error for a batch whose attempts were rejected before this commit."""
    return AttemptGivenUpError(
        f"batch {mine.batch_id} of {mine.app_id} took too long or was aborted, and was given up"
        " before this commit: nothing of it was published. Start the query again; the"
        " batch is run again",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _refusal_by_the_one_before(
    mine: BatchManifest,
    found: Found,
    hash_before: str,
    winner_of: Callable[[int], BatchManifest | None],
) -> SinkError | None:
    """Return why a batch does not follow the one before; None if it does, as far as is known.

    Drivers that lost a race for the batch before have also written COMMITs of it. So its winner is
    read if one of the COMMITs differs.
    """
    expected = mine._replace(plan_hash=hash_before)
    if all(same_origin(each, expected) for each in found.earlier_commits):
        return None
    before = winner_of(found.earlier_batch)
    if before is None or same_origin(before, expected):
        return None
    if differ(before.query_id, mine.query_id):
        return _other_query(before, mine)
    return _plan_before_changed(before, mine, hash_before)


def _other_rows(winner: BatchManifest, mine: BatchManifest) -> ReplayMismatchError:
    if winner.plan_hash and winner.plan_hash == mine.plan_hash:
        why = (
            "The plan in the checkpoint is the same, so the query is not deterministic (rand, uuid,"
            " a source that changed). To go on with the rows that were published first, as if this"
            " run had brought them, set the option on.mismatch to keep-first; a query that is"
            " deterministic needs no such option"
        )
    else:
        why = (
            "Either the checkpoint was deleted, reset or restored while app.id stayed the same:"
            " then set a new app.id, or bring the checkpoint back. Or two queries share this"
            " app.id: give each its own. Or the query is not deterministic (rand,"
            " current_timestamp, a source that changed): make it so. The plan of the batch is not"
            " known, so that the option on.mismatch has no effect"
        )
    return ReplayMismatchError(
        f"{_published(winner, mine)}. {_FIRST_KEPT}. {why}",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _other_query(winner: BatchManifest, mine: BatchManifest) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"{_published(winner, mine)}: from the checkpoint of query {winner.query_id}, and this one"
        f" is that of query {mine.query_id}. {_FIRST_KEPT}. Either the checkpoint was deleted or"
        " reset while app.id stayed the same: then set a new app.id, or bring the checkpoint back."
        " Or two queries share this app.id: give each its own",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _other_plan(winner: BatchManifest, mine: BatchManifest, departure: str) -> PlanMismatchError:
    now = departure or f"now those of offsets/{mine.batch_id} have {mine.plan_hash}"
    return PlanMismatchError(
        f"{_published(winner, mine)}: by another plan (the offsets in offsets/{winner.batch_id} of"
        f" the checkpoint had SHA-256 {winner.plan_hash}; {now}). {_FIRST_KEPT}. {_LOST_PLAN}",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _departed(mine: BatchManifest, departure: str) -> PlanMismatchError:
    return PlanMismatchError(
        f"batch {mine.batch_id} of {mine.app_id}: {departure}. {_NOTHING}. Two drivers run on one"
        " checkpoint, and its store let one write over the plan of the other"
        " (docs/reference/sink.md says which stores do not). Stop all drivers but one, and start"
        " that one again: it runs the batch by the plan that is in the checkpoint now",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _plan_before_changed(
    before: BatchManifest, mine: BatchManifest, hash_now: str
) -> PlanMismatchError:
    return PlanMismatchError(
        f"batch {mine.batch_id} of {mine.app_id} begins where offsets/{before.batch_id} of the"
        f" checkpoint ends, and that plan is another one (SHA-256 {hash_now}) than the one by which"
        f" batch {before.batch_id} was published by {before.actor} ({before.plan_hash})."
        f" {_NOTHING}. {_LOST_PLAN}",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _unknown_past(mine: BatchManifest, found: Found, options: SinkOptions) -> UnknownPastError:
    known = f"none later than {found.earlier_batch}" if found.earlier_batch >= 0 else "none"
    return UnknownPastError(
        f"batch {mine.batch_id} of {mine.app_id}: of the batches before it"
        f" {options.names.manifest} on {options.bootstrap_servers} knows {known}, so that one may"
        " have been published under other options. If app.id, halfbridge.prefix or"
        " kafka.bootstrap.servers were changed, or the topic was created again: restore the old"
        " values. If the query wrote to another sink until now, or has a new app.id for good, see"
        f" that the rows of batch {mine.batch_id} are not in their topic yet, and set the option"
        f" first.batch to {mine.batch_id}: it is published then, and those after it. {_NOTHING}",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _out_of_order(mine: BatchManifest, found: Found, options: SinkOptions) -> BatchOrderError:
    if options.batch_id is None:
        what_to_do = (
            "The checkpoint was deleted or reset: set a new app.id, or bring the checkpoint back."
            " Or another driver runs on it: stop one of them"
        )
    else:
        what_to_do = (
            "The batch.id of a write is larger than that of every write before it under the same"
            " app.id. A backfill of an older date is a series of its own: give it an app.id of its"
            f" own (for example {mine.app_id}-backfill), in which its numbers grow again"
        )
    return BatchOrderError(
        f"batch {mine.batch_id} of {mine.app_id} was never published, but batch"
        f" {found.later_batch} was. {what_to_do}. {_NOTHING}",
        app_id=mine.app_id,
        batch_id=mine.batch_id,
    )


def _published(winner: BatchManifest, mine: BatchManifest) -> str:
    return (
        f"batch {mine.batch_id} of {mine.app_id} was published already, with {winner.row_count}"
        f" rows (hash {winner.content_hash[:8]}) by {winner.actor}, and now has {mine.row_count}"
        f" (hash {mine.content_hash[:8]})"
    )

"""The errors by which the driver refuses to publish a batch, with what happened and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    BatchOrderError,
    PlanMismatchError,
    ReplayMismatchError,
    UnknownPastError,
)
from halfbridge.spark_jobs.sink.manifest import Rerun, differ, same_origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.serde.manifest_records import BatchManifest
    from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
    from halfbridge.spark_jobs.sink.errors import SinkError
    from halfbridge.spark_jobs.sink.manifest import Found
    from halfbridge.spark_jobs.sink.options import SinkOptions

_NOTHING = "Nothing was published now"
_OLD_STANDS = "No row of this run was published; what was left of the earlier ones was"
_LOST_PLAN = (
    "Two drivers ran on one checkpoint, and its store let one write over the plan of the other"
    " (docs/spark_sink.md says which stores do not), or somebody changed the file. Rows that are in"
    " one plan and not in the other would be lost, or published twice. Stop all drivers but one."
    " Where the store keeps older versions of files, bring back the one that was published, and"
    " start the query again. Else take a new app.id and a new checkpoint, and begin behind the"
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
    """Return why a batch without a winner must not be published; None if it may.

    Args:
        mine: The batch's manifest, not appended yet.
        found: The log's records of the batch.
        plan: The batch's plan in the checkpoint.
        options: The sink's options.
        winner_of: Batch -> its winning manifest.

    Raises: as `winner_of`.
    """
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
    """Return why a batch with a winner is not accepted as published; None if it is.

    Args:
        rerun: The result of `compare`.
        winner: The published manifest.
        mine: The manifest of this driver.
        plan: The batch's plan in the checkpoint.
        options: The sink's options.
    """
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
        " batch is run anew"
    )


def _refusal_by_the_one_before(
    mine: BatchManifest,
    found: Found,
    hash_before: str,
    winner_of: Callable[[int], BatchManifest | None],
) -> SinkError | None:
    """Return why a batch does not follow the one before; None if it does, as far as is known.

    Drivers that lost a race for the batch before have also written COMMITs of it. So its winner is
    looked up if one of the COMMITs differs.
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
    """Return the error for a batch that was published with other rows."""
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
    return ReplayMismatchError(f"{_published(winner, mine)}. {_OLD_STANDS}. {why}")


def _other_query(winner: BatchManifest, mine: BatchManifest) -> ReplayMismatchError:
    """Return the error for a batch that was published, or follows one, from another checkpoint."""
    return ReplayMismatchError(
        f"{_published(winner, mine)}: from the checkpoint of query {winner.query_id}, and this one"
        f" is that of query {mine.query_id}. {_OLD_STANDS}. Either the checkpoint was deleted or"
        " reset while app.id stayed the same: then set a new app.id, or bring the checkpoint back."
        " Or two queries share this app.id: give each its own"
    )


def _other_plan(winner: BatchManifest, mine: BatchManifest, departure: str) -> PlanMismatchError:
    """Return the error for a batch that was published by another plan."""
    now = departure or f"now those of offsets/{mine.batch_id} have {mine.plan_hash}"
    return PlanMismatchError(
        f"{_published(winner, mine)}: by another plan (the offsets in offsets/{winner.batch_id} of"
        f" the checkpoint had SHA-256 {winner.plan_hash}; {now}). {_OLD_STANDS}. {_LOST_PLAN}"
    )


def _departed(mine: BatchManifest, departure: str) -> PlanMismatchError:
    """Return the error for a batch whose plan in the checkpoint is not the plan that was run."""
    return PlanMismatchError(
        f"batch {mine.batch_id} of {mine.app_id}: {departure}. {_NOTHING}. Two drivers run on one"
        " checkpoint, and its store let one write over the plan of the other"
        " (docs/spark_sink.md says which stores do not). Stop all drivers but one, and start that"
        " one again: it runs the batch by the plan that stands in the checkpoint now"
    )


def _plan_before_changed(
    before: BatchManifest, mine: BatchManifest, hash_now: str
) -> PlanMismatchError:
    """Return the error for a batch after one whose plan has changed since it was published."""
    return PlanMismatchError(
        f"batch {mine.batch_id} of {mine.app_id} begins where offsets/{before.batch_id} of the"
        f" checkpoint ends, and that plan is another one (SHA-256 {hash_now}) than the one by which"
        f" batch {before.batch_id} was published by {before.actor} ({before.plan_hash})."
        f" {_NOTHING}. {_LOST_PLAN}"
    )


def _unknown_past(mine: BatchManifest, found: Found, options: SinkOptions) -> UnknownPastError:
    """Return the error for a stream's batch if the one before it is not known."""
    known = f"none later than {found.earlier_batch}" if found.earlier_batch >= 0 else "none"
    return UnknownPastError(
        f"batch {mine.batch_id} of {mine.app_id}: of the batches before it"
        f" {options.names.manifest} on {options.bootstrap_servers} knows {known}, so that one may"
        " have been published under other options. If app.id, halfbridge.prefix or"
        " kafka.bootstrap.servers were changed, or the topic was made anew: go back to what they"
        " were. If the query wrote to another sink until now, or has a new app.id for good, see"
        f" that the rows of batch {mine.batch_id} are not in their topic yet, and set the option"
        f" first.batch to {mine.batch_id}: it is published then, and those after it. {_NOTHING}"
    )


def _out_of_order(mine: BatchManifest, found: Found, options: SinkOptions) -> BatchOrderError:
    """Return the error for a batch if a later one was published."""
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
        f" {found.later_batch} was. {what_to_do}. {_NOTHING}"
    )


def _published(winner: BatchManifest, mine: BatchManifest) -> str:
    return (
        f"batch {mine.batch_id} of {mine.app_id} was published already, with {winner.row_count}"
        f" rows (hash {winner.content_hash[:8]}) by {winner.actor}, and now has {mine.row_count}"
        f" (hash {mine.content_hash[:8]})"
    )

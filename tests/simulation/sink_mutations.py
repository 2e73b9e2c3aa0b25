"""Planted defects of the Spark sink: its driver, its tasks, its manifests, its answers to checks.

They show in runs with a Spark query only, which every eighth seed has.

Three defects show in no run, for Spark's own files or the broker hide them; tests in
tests/spark and tests/unit/spark_jobs/sink hold them. A driver that does not decide the batch before
finds it decided, since the batch is run again until its commit has returned. Decisions without
rounds are one batch of one partition, which brokers store as a whole. A manifest that was believed
and is not stored is missed by the search behind the append; the test
`test_a_manifest_that_may_not_be_stored_is_in_doubt` of tests/spark/test_sink_brokers.py says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bridge.message import Resolution
from halfbridge.serde.manifest import ManifestAttempt, ManifestKind
from halfbridge.spark.checker import SinkChecker, StillOpenError
from halfbridge.spark_jobs.sink import batch
from halfbridge.spark_jobs.sink.attempt import AttemptReport, _Attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.checkpoint import NO_PLAN
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError
from halfbridge.spark_jobs.sink.manifest import Entry
from tests.simulation.choices import FEED_EVERY
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.serde.records import SinkContext
    from halfbridge.spark_jobs.sink.checkpoint import BatchPlan

# --- batch ---------------------------------------------------------------------------------

_record = BatchCommitter.record
_commit = BatchCommitter.commit


def _own_manifest_wins(
    self: BatchCommitter, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
) -> BatchManifest:
    _record(self, batch_id, reports, plan)
    return self._manifest(ManifestKind.COMMIT, batch_id, reports, plan)


def _reject_nothing(self: BatchCommitter, batch_id: int, reports: Sequence[AttemptReport]) -> None:
    self._roll_back([report.attempt for report in reports])


def _roll_back_in_doubt(
    self: BatchCommitter, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
) -> None:
    try:
        _commit(self, batch_id, reports, plan)
    except CommitInDoubtError:
        self._roll_back([report.attempt for report in reports])
        raise


def _refuse_nothing(*arguments: Any, **more: Any) -> None:
    pass


# --- attempts ------------------------------------------------------------------------------


def _report_at_once(self: _Attempt, query_id: str) -> AttemptReport:
    return AttemptReport(
        self._batch_id,
        ManifestAttempt(self._id, self._chunks.transactions()),
        self._row_count,
        self._content.sum(),
        self._chunks.first_append_timestamp(),
        query_id,
    )


# --- checks --------------------------------------------------------------------------------

_resolve = SinkChecker._resolve


def _roll_back_what_is_open(self: SinkChecker, context: SinkContext, *, age_ms: int) -> Resolution:
    try:
        return _resolve(self, context, age_ms=age_ms)
    except StillOpenError:
        return Resolution.ROLLBACK


def _mutation(name: str, *patches: tuple[Any, str, Any], begin: int = FEED_EVERY - 1) -> Mutation:
    return Mutation(name, 100, patches, begin=begin, every=FEED_EVERY)


SINK = (
    # Of the batch.
    _mutation("own manifest wins", (BatchCommitter, "record", _own_manifest_wins)),
    _mutation("abort without a REJECT", (BatchCommitter, "abort", _reject_nothing)),
    _mutation("batch rolled back in doubt", (BatchCommitter, "commit", _roll_back_in_doubt)),
    _mutation("plan written over", (batch, "refusal_of", _refuse_nothing), begin=719),
    # Of manifests.
    _mutation(
        "manifest that comes late", (Entry, "is_expired", property(lambda _: False)), begin=191
    ),
    # Of attempts.
    _mutation("attempt reported at once", (_Attempt, "finish", _report_at_once)),
    # Of checks.
    _mutation(
        "open batch rolled back", (SinkChecker, "_resolve", _roll_back_what_is_open), begin=375
    ),
)

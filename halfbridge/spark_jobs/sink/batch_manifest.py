"""The manifest that a driver writes for a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.manifest_records import BatchManifest, ManifestKind
from halfbridge.spark_jobs.sink.chunks import merge_timestamps
from halfbridge.spark_jobs.sink.manifest import without_transactions
from halfbridge.spark_jobs.sink.rows import ContentHash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.spark_jobs.sink.attempt import AttemptReport
    from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess


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

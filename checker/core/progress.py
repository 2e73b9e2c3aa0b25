"""Whether the logs still hold what the committed progress of a partition points at."""

from __future__ import annotations

from dataclasses import replace

from halfbridge.serde.progress import Progress, ProgressError


class BeyondEndError(ProgressError):
    """It points beyond the log's end, if whoever told where that is still leads the partition."""


def check_against_log(
    progress: Progress, half_range: tuple[int, int], op_range: tuple[int, int]
) -> Progress:
    """Make sure that the log still holds what `progress` points at, and return where to begin.

    Args:
        progress: What was committed.
        half_range: Log start and end (read_uncommitted) of half p.
        op_range: The same of op p.

    Returns:
        `progress`, with T raised to the log start where no half record needs those ops: then
        they would only tell late duplicates, and expire while a partition is idle.

    Raises:
        BeyondEndError: the topic was truncated or recreated, or an old leader has answered.
        ProgressError: records that a rebuild needs are gone.
    """
    if progress.half == progress.rebuild_to and progress.ops_from < op_range[0] <= progress.op:
        progress = replace(progress, ops_from=op_range[0])
    spans = (
        ("H", progress.half, *half_range, "half"),
        ("R", progress.rebuild_to, *half_range, "half"),
        ("T", progress.ops_from, *op_range, "op"),
        ("O", progress.op, *op_range, "op"),
    )
    for name, offset, start, end, topic in spans:
        if offset > end:
            raise BeyondEndError(
                f"{name}={offset} is beyond the end {end} of the {topic} partition: "
                "the topic was truncated or recreated"
            )
        if offset < start:
            raise ProgressError(
                f"{name}={offset} is below the log start {start} of the {topic} partition: "
                "records that are still needed were deleted"
            )
    return progress

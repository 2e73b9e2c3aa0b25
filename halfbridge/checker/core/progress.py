"""Checks that the logs still hold the records that a pair's committed progress refers to."""

from __future__ import annotations

from dataclasses import replace

from halfbridge.serde.progress import Progress, ProgressError


class BeyondEndError(ProgressError):
    """An offset is beyond the end of the log.

    The end may be wrong: a broker that no longer leads the partition answers with an old end. So
    the caller asks again for a while before it stops the pair.
    """


def check_against_log(
    progress: Progress, half_range: tuple[int, int], op_range: tuple[int, int]
) -> Progress:
    """Check that the log holds the records that `progress` refers to; return where to begin.

    Args:
        progress: The committed progress.
        half_range: Log start and log end (read_uncommitted) of half p.
        op_range: Log start and log end (read_uncommitted) of op p.

    Returns:
        `progress`. Where H = R, a T below the log start is raised to the log start: no half record
        needs the ops from T on. Those ops would only identify late duplicates, and they expire
        while the pair is idle.

    Raises:
        BeyondEndError: The topic was truncated or recreated, or a deposed leader has answered.
        ProgressError: Records that a rebuild needs were deleted.
    """
    is_spent = progress.half == progress.rebuild_to and not progress.deferred
    if is_spent and progress.ops_from < op_range[0] <= progress.op:
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

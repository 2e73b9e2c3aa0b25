"""Whether the logs hold what the committed progress points at."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.serde.progress import Progress, ProgressError

PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_a_log_that_holds_everything_is_fine() -> None:
    """Offsets between log start and end, both included, are there."""
    assert check_against_log(PROGRESS, (3, 8), (5, 9)) == PROGRESS


@pytest.mark.parametrize(
    ("half_range", "op_range", "complaint"),
    [
        ((4, 8), (0, 9), "H=3 is below the log start 4 of the half partition"),
        ((0, 2), (0, 9), "H=3 is beyond the end 2 of the half partition"),
        ((0, 7), (0, 9), "R=8 is beyond the end 7 of the half partition"),
        ((0, 8), (6, 9), "T=5 is below the log start 6 of the op partition"),
        ((0, 8), (0, 8), "O=9 is beyond the end 8 of the op partition"),
    ],
)
def test_a_log_that_lost_something_stops(
    half_range: tuple[int, int], op_range: tuple[int, int], complaint: str
) -> None:
    """A truncated or expired log is an error that names the offset and the partition."""
    with pytest.raises(ProgressError, match=complaint):
        check_against_log(PROGRESS, half_range, op_range)


def test_decisions_that_no_half_needs_may_have_expired() -> None:
    """With nothing to rebuild T only serves late duplicates: an idle partition never stops."""
    idle = Progress(half=8, op=9, rebuild_to=8, ops_from=5, position=8)
    begin = check_against_log(idle, (8, 8), (9, 9))
    assert begin == Progress(half=8, op=9, rebuild_to=8, ops_from=9, position=8)
    with pytest.raises(ProgressError, match="T=5 is below the log start"):
        check_against_log(idle, (0, 8), (10, 12))

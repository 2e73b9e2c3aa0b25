"""What is committed beside the offsets, and when it cannot be trusted."""

from __future__ import annotations

import pytest

from checker.core.progress import START, Progress, ProgressError, check_against_log, parse_progress

PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7, waits_full_ms=12)


def test_the_text_is_short_readable_ascii() -> None:
    """The metadata names version, H, R, T, P, W and a checksum."""
    assert PROGRESS.metadata() == "v1;3;8;5;7;12;29a8dfdd"
    assert START.metadata().startswith("v1;0;0;0;0;0;")
    largest = Progress(*[(1 << 63) - 1] * 6)
    assert largest.metadata().isascii()
    assert len(largest.metadata()) < 120


def test_what_was_committed_is_read_back() -> None:
    """Parsing returns the progress that was written."""
    assert parse_progress(3, 9, PROGRESS.metadata()) == PROGRESS
    assert parse_progress(0, 0, START.metadata()) == START


def test_what_was_committed_before_there_was_w_is_read() -> None:
    """A worker that is upgraded goes on, with nothing spent of its budget of waiting."""
    before = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)
    assert parse_progress(3, 9, "v1;3;8;5;7;fb35cda1") == before


@pytest.mark.parametrize(
    ("half", "op", "metadata", "complaint"),
    [
        (-1001, 9, PROGRESS.metadata(), "no committed offset"),
        (3, -1001, PROGRESS.metadata(), "no committed offset"),
        (3, 9, None, "without metadata"),
        (3, 9, "", "without metadata"),
        (3, 9, "v2;3;8;5;7;0", "unknown version 'v2'"),
        (3, 9, "v1;3;8;5;7;29a8dfdd", "damaged"),
        (3, 9, "v1;3;8;5;7;12;29a8dfd0", "damaged"),
        (3, 9, "v1;3;8;5;7;13;29a8dfdd", "damaged"),
        (3, 10, PROGRESS.metadata(), "not of this offset"),
        (4, 9, PROGRESS.metadata(), "differs from H=3"),
        (8, 9, Progress(8, 9, 7, 5, 7).metadata(), "contradicts itself"),
        (3, 9, Progress(3, 9, 6, 5, 7).metadata(), "contradicts itself"),
        (3, 9, Progress(3, 9, 8, 10, 7).metadata(), "contradicts itself"),
    ],
)
def test_what_cannot_be_trusted_stops(
    half: int, op: int, metadata: str | None, complaint: str
) -> None:
    """Missing, damaged, newer or contradictory progress is an error that says what is wrong."""
    with pytest.raises(ProgressError, match=complaint):
        parse_progress(half, op, metadata)


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

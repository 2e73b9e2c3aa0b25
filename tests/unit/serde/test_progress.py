"""What is committed beside the offsets, and when it cannot be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfbridge.serde.progress import START, Progress, ProgressError, parse_progress

PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_the_text_is_short_readable_ascii() -> None:
    """The metadata names version, H, R, T, P, an unused number and a checksum."""
    assert PROGRESS.metadata() == "v1;3;8;5;7;0;097b05fb"
    assert START.metadata().startswith("v1;0;0;0;0;0;")
    largest = Progress(*[(1 << 63) - 1] * 5, deferred=((1 << 63) - 2,))
    assert largest.metadata().isascii()
    assert len(largest.metadata()) < 160


def test_deferred_ops_are_named_by_their_differences() -> None:
    """The first offset is whole, so that a thousand of them fit into Kafka's limit."""
    deferring = replace(PROGRESS, op=1_300, ops_from=1_200, deferred=(1_200, 1_203, 1_220))
    text = deferring.metadata()
    assert text.startswith("v1;3;8;1200;7;0;1200,3,17;")
    assert parse_progress(3, 1_300, text) == deferring


def test_what_was_committed_is_read_back() -> None:
    """Parsing returns the progress that was written."""
    assert parse_progress(3, 9, PROGRESS.metadata()) == PROGRESS
    assert parse_progress(0, 0, START.metadata()) == START


@pytest.mark.parametrize("text", ["v1;3;8;5;7;fb35cda1", "v1;3;8;5;7;12;29a8dfdd"])
def test_what_earlier_releases_committed_is_read(text: str) -> None:
    """A worker that is upgraded goes on, whatever budget of waiting its predecessor had spent."""
    assert parse_progress(3, 9, text) == PROGRESS


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
        (3, 9, replace(PROGRESS, deferred=(4,)).metadata(), "contradicts itself"),
        (3, 9, replace(PROGRESS, deferred=(9,)).metadata(), "contradicts itself"),
        (3, 9, replace(PROGRESS, deferred=(6, 6)).metadata(), "contradicts itself"),
    ],
)
def test_what_cannot_be_trusted_stops(
    half: int, op: int, metadata: str | None, complaint: str
) -> None:
    """Missing, damaged, newer or contradictory progress is an error that says what is wrong."""
    with pytest.raises(ProgressError, match=complaint):
        parse_progress(half, op, metadata)

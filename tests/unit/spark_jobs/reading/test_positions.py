"""Where reads begin and end, as the command line says it and as Spark takes it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from halfbridge.spark_jobs.reading.offsets import EARLIEST, LATEST, Position, parse_position

NOON_MS = 1_762_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("1762000000000", Position(timestamp_ms=1_762_000_000_000)),
        ("2025-11-01T12:00:00Z", Position(timestamp_ms=NOON_MS)),
        ("2025-11-01T12:00:00", Position(timestamp_ms=NOON_MS)),
        ("2025-11-01T13:00:00+01:00", Position(timestamp_ms=NOON_MS)),
        ('{"b": {"0": 5}, "a": {"1": -2}}', Position('{"a": {"1": -2}, "b": {"0": 5}}')),
    ],
)
def test_positions(text: str, position: Position) -> None:
    """Words, times in any zone, milliseconds, offsets."""
    assert parse_position(text) == position


def test_so_long_ago() -> None:
    """A time before now, in seconds, minutes, hours or days."""
    now_ms = datetime.now(timezone.utc).timestamp() * 1000
    position = parse_position("-2h")
    assert position.timestamp_ms is not None
    assert now_ms - 7_200_000 <= position.timestamp_ms + 1
    assert parse_position("-1d").timestamp_ms < position.timestamp_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-1",
        "-24x",
        "-999999d",
        "{",
        "{}x",
        '{"a": 5}',
        '{"a": {"0": -3}}',
        '{"a": {"x": 1}}',
    ],
)
def test_what_is_no_position(text: str) -> None:
    """Refused before Spark is asked."""
    with pytest.raises(ValueError, match=r"position|not like|year"):
        parse_position(text)


def test_options_of_both_ends() -> None:
    """A start time that nothing is newer than means the end, not an error."""
    assert EARLIEST.starting() == {"startingOffsets": "earliest"}
    assert LATEST.ending() == {"endingOffsets": "latest"}
    at = Position(timestamp_ms=5)
    assert at.starting() == {
        "startingTimestamp": "5",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert at.ending() == {"endingTimestamp": "5"}

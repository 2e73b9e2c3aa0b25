"""Which clock records are stamped with."""

from __future__ import annotations

from halfbridge.checker.loop.publish import CLIENTS_CLOCK, TimestampSource

NOW_MS = 1_700_000_000_000
LATEST_MS = NOW_MS - 3_600_000


def test_partition_time_until_it_is_refused() -> None:
    """Each other clock has its turn, and stays while it is taken; then they begin again."""
    stamps = TimestampSource()
    seen = []
    for _ in range(4):
        seen += [stamps.ms(NOW_MS, LATEST_MS), stamps.ms(NOW_MS, LATEST_MS)]
        stamps.refused(stamps.turn)

    assert seen[::2] == seen[1::2] == [NOW_MS, CLIENTS_CLOCK, LATEST_MS, NOW_MS]


def test_old_news_changes_nothing() -> None:
    """Many records with one clock's timestamps are refused, one after the other: one turn ends."""
    stamps = TimestampSource()
    first = stamps.turn
    for _ in range(3):
        stamps.refused(first)

    assert stamps.ms(NOW_MS, LATEST_MS) == CLIENTS_CLOCK

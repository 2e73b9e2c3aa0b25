"""Times on the command line, and as people read them."""

from __future__ import annotations

from datetime import datetime, timezone

import click
import pytest

from halfbridge.checker.admin.words import shown_time
from halfbridge.cli.options import moment_ms, span_ms


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_spans_have_a_unit(text: str, wanted: int) -> None:
    """A number and one unit."""
    assert span_ms(text) == wanted


@pytest.mark.parametrize("text", ["", "7", "7 d", "-7d", "1h30m", "1e3s", "٣s", "9" * 20 + "s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """The error shows what is allowed."""
    with pytest.raises(click.BadParameter, match="allowed: 90s, 15m, 2h, 7d"):
        span_ms(text)


def test_moments_are_spans_before_now_or_times() -> None:
    """A time without a zone is UTC."""
    now_ms = datetime.now(timezone.utc).timestamp() * 1000
    assert abs(moment_ms("2h") - (now_ms - 7_200_000)) < 60_000
    assert moment_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert moment_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert moment_ms("2023-11-14 22:13:20") == 1_700_000_000_000
    with pytest.raises(click.BadParameter, match="UTC without a zone"):
        moment_ms("yesterday")


def test_times_are_shown_in_utc() -> None:
    """Whatever number a stranger wrote."""
    assert shown_time(1_700_000_000_123) == "2023-11-14 22:13:20Z"
    assert [shown_time(each) for each in (0, -1, 1 << 62)] == ["-", "-", "-"]

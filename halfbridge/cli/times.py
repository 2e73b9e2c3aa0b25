"""Times on the command line: a span such as `90s`, `15m`, `2h` or `7d`, and a time."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import click

from halfbridge.serde.units import MS_PER_S

_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")


def span_ms(text: str) -> int:
    """Return a span as milliseconds; a type of options."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no span; allowed: 90s, 15m, 2h, 7d")
    return int(found[1]) * _MS[found[2]]


def moment_ms(text: str) -> int:
    """Return a span before now, or an ISO 8601 time, as ms since 1970; a type of options."""
    if _SPAN.fullmatch(text):
        return int(datetime.now(timezone.utc).timestamp() * MS_PER_S) - span_ms(text)
    try:  # Python 3.10 knows no Z
        time = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; allowed: 2h, 7d, 2026-11-23T21:30:00Z (UTC without a zone)"
        ) from None
    zoned = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return int(zoned.timestamp() * MS_PER_S)

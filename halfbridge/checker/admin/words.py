"""Words of sentences that operators read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence


def listed(names: Sequence[object], most: int) -> str:
    """Return the first `most` names with commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 message` and `2 messages`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shown_time(at_ms: int) -> str:
    """Return a time, ms since 1970, in UTC as people read it; `-` where there is none."""
    if at_ms <= 0:
        return "-"
    try:
        time = datetime.fromtimestamp(at_ms / MS_PER_S, timezone.utc)
    except (OverflowError, ValueError, OSError):  # a stranger wrote the record
        return "-"
    return time.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + "Z"

"""How long to wait after failures in a row. Pure."""

from __future__ import annotations

_DOUBLINGS_MAX = 16  # every delay has reached its longest by then


def delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the delay after `failures` (from 1) in a row: doubled for each, up to `longest_s`."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest_s)

"""Waiting for what must come: every wait has a deadline and says what it waited for."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# How long anything may take on a machine that does other things too; far above what is usual.
SETTLED_S = 40.0
# A call to the broker.
CALL_S = 20.0
POLL_S = 0.01


def until(what: str, condition: Callable[[], Any], *, within_s: float = SETTLED_S) -> Any:
    """Return the first true value of `condition`; fail with `what` when the time is over."""
    deadline = monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert monotonic() < deadline, f"{what}: not within {within_s:g} s"
        sleep(POLL_S)

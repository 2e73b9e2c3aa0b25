"""Waiting for what must come: every wait has a deadline and says what it waited for."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

# How long anything may take on a machine that does other things too; far above what is usual. It
# is also the bound of docs/evidence/faults.md: after a fault is healed, all is delivered by then.
SETTLED_S = 60.0
# A call to the broker.
CALL_S = 20.0
POLL_S = 0.01


def until(
    what: str,
    condition: Callable[[], Any],
    *,
    within_s: float = SETTLED_S,
    every_s: float = POLL_S,
    explain: Callable[[], object] = str,
) -> Any:
    """Return the first true value of `condition`; fail when the time is over.

    Args:
        what: What is waited for; the failure names it.
        condition: Called again and again, at least once.
        within_s: Seconds until the failure.
        every_s: Seconds between two calls: more where a call costs the broker something.
        explain: What the failure says besides.
    """
    deadline = monotonic() + within_s
    while not (value := condition()):
        assert monotonic() < deadline, f"{what}: not within {within_s:g} s {explain()}"
        sleep(every_s)  # between two looks
    return value

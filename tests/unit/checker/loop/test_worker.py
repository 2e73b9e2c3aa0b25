"""How long the loop waits for records."""

from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.checker.loop.worker import DUE_S, IDLE_S, idle_s

NOW = 100.0
NEVER = float("inf")


def _pair(
    *, due_in_ms: int | None = None, has_work: bool = False, waits: bool = False, held: Any = None
) -> Any:
    due_ms = None if due_in_ms is None else 5_000 + due_in_ms
    ledger = SimpleNamespace(waits_for_half=waits, next_due_ms=lambda: due_ms)
    return SimpleNamespace(has_work=has_work, held=held, ledger=ledger, now_ms=lambda _now: 5_000)


@pytest.mark.parametrize(
    ("pair", "wanted_s"),
    [
        (_pair(), IDLE_S),
        (_pair(has_work=True), 0.0),
        (_pair(has_work=True, held="plan"), IDLE_S),
        (_pair(due_in_ms=20), 0.02),
        (_pair(due_in_ms=5_000), IDLE_S),
        (_pair(due_in_ms=-1), DUE_S),
        (_pair(waits=True), DUE_S),
    ],
)
def test_the_wait_ends_when_something_is_due(pair: Any, wanted_s: float) -> None:
    """What is overdue waits for something else: the loop does not turn without a pause for it."""
    assert idle_s([_pair(), pair], NOW, NEVER) == wanted_s


def test_a_look_that_is_due_ends_the_wait() -> None:
    """And one that is overdue has no wait at all."""
    assert idle_s([], NOW, NOW + 0.05) == pytest.approx(0.05)
    assert idle_s([], NOW, NOW - 1) == 0.0

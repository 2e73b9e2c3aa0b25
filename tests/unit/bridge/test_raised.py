"""Which errors of checkers are logged with their traceback."""

from __future__ import annotations

from halfbridge.bridge.check_pool import KINDS_MAX, Tracebacks
from halfbridge.kafka.error_log import LOG_AGAIN_S
from halfbridge.kafka.errors import NoAnswerError
from tests.fake_ports import Clock


def test_each_kind_is_chosen_once_in_a_while() -> None:
    """A database that is down for an hour fills no disk."""
    clock = Clock()
    tracebacks = Tracebacks(clock)
    down, bug = OSError("down"), KeyError("row")
    assert tracebacks.chosen(down) is down
    assert tracebacks.chosen(bug) is bug
    assert tracebacks.chosen(OSError("down again")) is None
    clock.now += LOG_AGAIN_S
    assert tracebacks.chosen(down) is down


def test_what_a_checker_says_on_purpose_has_no_traceback() -> None:
    """NoAnswerError says that it cannot tell now; an overdue checker has raised nothing."""
    tracebacks = Tracebacks(Clock())
    assert tracebacks.chosen(NoAnswerError("asked a replica")) is None
    assert tracebacks.chosen(None) is None


def test_kinds_are_limited() -> None:
    """Classes that are made while a service runs cost no memory."""
    tracebacks = Tracebacks(Clock())
    kinds = [type(f"Error{number}", (Exception,), {}) for number in range(KINDS_MAX + 1)]
    chosen = [tracebacks.chosen(kind()) for kind in kinds]
    assert [each is not None for each in chosen] == [True] * KINDS_MAX + [False]

"""One test, run once for each step at which its client may die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.testkit.memory.crash import CrashNotReachedError
from halfbridge.testkit.memory.stack import MemoryStack
from halfbridge.testkit.memory.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Virtual: an undecided transaction is given up after 72 h (transaction_age_ms_max).
_SETTLED_S_MAX = 80 * 3_600.0

Said = tuple[object, object]


class DisagreementError(AssertionError):
    """After a crash the database and the topic do not say the same."""


def every_crash(
    test: Callable[[MemoryStack, Step | None], Callable[[], Said]],
    *,
    steps: Iterable[Step] = tuple(Step),
    **settings: Any,
) -> None:
    """Run `test` without a crash, then once for each step; assert that database and topic agree.

    Each run has a new installation, and should have a new database. After the crash a new client is
    started, and time passes until every transaction is decided.

    Args:
        test: Called with the installation and the step. `test` runs the code that is to die in
            `with stack.crash_at(step)`, and returns a function. That function is called once all
            is settled, and returns what the database says and what the topic says.
        steps: Those that the code comes to.
        settings: As MemoryStack takes them.

    Raises:
        DisagreementError: they do not say the same; or, without a crash, the database says nothing,
            so that no run would show anything.
        CrashNotReachedError: the code never comes to a step.
    """
    for step in (None, *steps):
        name = "no crash" if step is None else step.name
        with MemoryStack(**settings) as stack:
            says = test(stack, step)
            if step is not None and not stack.deaths:
                raise CrashNotReachedError(f"the test runs nothing in stack.crash_at({step})")
            if stack.has_crashed:
                stack.restart()
            stack.wait_until_decided(_SETTLED_S_MAX)
            database, topic = says()
        if database != topic:
            raise DisagreementError(f"{name}: the database says {database!r}, the topic {topic!r}")
        if step is None and not database:
            raise DisagreementError(f"{name}: the database says {database!r}: nothing is tested")

"""Which errors of checkers are logged with their traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.errors import NoAnswerError
from halfbridge.kafka.trouble import SAME_AGAIN_S

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Clock

# While a database is down each check of each undecided transaction raises: a line for each, and a
# traceback of some 3 KB for each kind now and then. Kinds beyond these have lines alone.
KINDS_MAX = 100


class Tracebacks:
    """Chooses the errors of checkers that are logged with their traceback.

    Each kind of error, which is a class, is chosen once in SAME_AGAIN_S. A NoAnswerError is never
    chosen: the checker says by it that it cannot tell now, and why. For one thread.

    Args:
        clock: Tells when it is time for the same kind again.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._told: dict[str, float] = {}

    def chosen(self, error: BaseException | None) -> BaseException | None:
        """Return `error` where its traceback is to be logged now, else None."""
        if error is None or isinstance(error, NoAnswerError):
            return None
        kind, now = f"{type(error).__module__}.{type(error).__qualname__}", self._now()
        if now - self._told.get(kind, float("-inf")) < SAME_AGAIN_S:
            return None
        if kind not in self._told and len(self._told) >= KINDS_MAX:
            return None
        self._told[kind] = now
        return error

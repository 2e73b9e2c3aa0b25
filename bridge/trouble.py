"""Troubles, as they are logged: never by raising, and not over and over while brokers are away."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import Code
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.threads import SystemClock

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from halfbridge.bridge.ports import Clock

# The same kind of trouble is told again after this time.
SAME_AGAIN_S = 30.0
# For every client. librdkafka 2.16 asks the bootstrap servers anew after each round of failures
# (KIP-1102), which makes it forget its back-off: with the default of 100 ms each client would
# connect, and log a line of its own, 20 times a second. Its lines say what the error callback says.
RECONNECTING = {"reconnect.backoff.ms": 250, "log_level": 2}
# A call fails with one of these when no broker answers, whatever the reason.
_SILENT = frozenset((Code.TRANSPORT, Code.TIMED_OUT))
_SYSTEM_CLOCK = SystemClock()


def tell(log: Callable[..., object], *said: object) -> None:
    """Log, in a thread or callback that must go on whatever the user's handlers and filters do."""
    with suppress(BaseException):
        log(*said)


def shown(value: object) -> str:
    """Return a value's repr, which is the user's code as much as its checker is."""
    try:
        return repr(value)
    except BaseException as error:  # noqa: BLE001  (others are to be told of, too)
        return f"a {type(value).__name__}, whose repr raised {type(error).__name__}"


class Reasons:
    """Remembers why connections failed: the calls that suffer from it do not say."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, error: Any) -> None:
        """Take what the client reports (`error_cb`)."""
        failure = failure_of(error)
        # ALL_BROKERS_DOWN follows each report of a single broker, and says less.
        if failure.code != Code.ALL_BROKERS_DOWN:
            self._last = failure.text

    def explain(self, error: Any) -> str:
        """Return what a call failed with, and why, where that was reported."""
        failure = failure_of(error)
        is_silent = failure.code in _SILENT and self._last
        return f"{failure.text} ({self._last})" if is_silent else failure.text


class Troubles:
    """Logs what one Kafka client reports, each kind of error once in a while.

    Thread-safe enough: two threads at the same moment may both tell.

    Args:
        log: Where to.
        clock: Tells when it is time to log the same kind again.
    """

    def __init__(self, log: logging.Logger, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._log = log
        self._now = clock.monotonic
        self._told: dict[int, tuple[float, int]] = {}

    def note(self, error: Any) -> None:
        """Take what the client reports; what fails for good fails its own call: this only warns."""
        failure, now = failure_of(error), self._now()
        told_at, kept_back = self._told.get(failure.code, (float("-inf"), 0))
        if now - told_at < SAME_AGAIN_S:
            self._told[failure.code] = told_at, kept_back + 1
            return
        self._told[failure.code] = now, 0
        again = f" (and {kept_back} times since the last report)" if kept_back else ""
        # A log handler is the user's. What it raised would come out of the client's poll() or
        # consume(), and the records that these had taken would be gone.
        tell(self._log.warning, "Kafka: %s%s", failure.text, again)

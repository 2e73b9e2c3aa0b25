"""Logs errors of Kafka clients: never raises, and logs the same kind once in 30 s."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.kafka.threads import SystemClock

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from halfbridge.kafka.ports import ClientError, Clock

# The same kind of error is logged again after this time. A client repeats it with each attempt to
# connect; two lines a minute show that it lasts.
LOG_AGAIN_S = 30.0
# For every client. librdkafka 2.16 asks the bootstrap servers again after each round of failures
# (KIP-1102), and then forgets its back-off. With the default of 100 ms each client would connect,
# and log a line, 20 times a second. These lines repeat what the error callback reports.
RECONNECTING = {"reconnect.backoff.ms": 250, "log_level": 2}
# A call fails with one of these codes when no broker answers, for whatever reason.
SILENT = frozenset((Code.TRANSPORT, Code.TIMED_OUT))
_SYSTEM_CLOCK = SystemClock()


def log_safely(log: Callable[..., object], *arguments: object) -> None:
    """Log in a thread or callback that must continue: exceptions of log handlers are dropped."""
    with suppress(BaseException):
        log(*arguments)


def safe_repr(value: object) -> str:
    """Return a value's repr; the repr is the user's code, and what it raises is caught."""
    try:
        return repr(value)
    except BaseException as error:  # noqa: BLE001  (BaseException included: it must not end the caller)
        return f"a {type(value).__name__}, whose repr raised {type(error).__name__}"


class Reasons:
    """Remembers why connections failed, because the errors of failed calls do not say it."""

    def __init__(self) -> None:
        self.last = ""

    def note(self, error: ClientError) -> None:
        """Record an error that the client reports (`error_cb`)."""
        failure = failure_of(error)
        # ALL_BROKERS_DOWN follows each report of a single broker, and says less.
        if failure.code != Code.ALL_BROKERS_DOWN:
            self.last = failure.text

    def explain(self, error: Any) -> str:
        """Return the text of a call's error, with the reported reason if there is one."""
        failure = failure_of(error)
        is_silent = failure.code in SILENT and self.last
        return f"{failure.text} ({self.last})" if is_silent else failure.text


class OncePerName:
    """Says when a line about a name is due: once in `period_s`, for at most `names_max` names.

    The names come from clients, who may invent them. For one thread.
    """

    def __init__(self, period_s: float, names_max: int) -> None:
        self._period_s = period_s
        self._names_max = names_max
        self._logged_at: dict[str, float] = {}

    def is_due(self, name: str, now: float) -> bool:
        """Return whether a line about `name` is due, and if so note it as logged."""
        if now - self._logged_at.get(name, float("-inf")) < self._period_s:
            return False
        if name not in self._logged_at and len(self._logged_at) >= self._names_max:
            return False
        self._logged_at[name] = now
        return True


class ErrorLog:
    """Logs the errors that one Kafka client reports, each kind once in LOG_AGAIN_S."""

    def __init__(self, log: logging.Logger, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._log = log
        self._now = clock.monotonic
        self._logged: dict[int, tuple[float, int]] = {}

    def note(self, error: ClientError) -> None:
        """Log an error that the client reports, as a warning; a fatal one also fails its call."""
        failure = failure_of(error)
        self.warn(failure.code, f"Kafka: {failure.text}")

    def warn(self, kind: int, text: str, *, suppressed_as: str = "times") -> None:
        """Log a warning of a kind, with the number of those that were suppressed since the last."""
        now = self._now()
        logged_at, suppressed = self._logged.get(kind, (float("-inf"), 0))
        if now - logged_at < LOG_AGAIN_S:
            self._logged[kind] = logged_at, suppressed + 1
            return
        self._logged[kind] = now, 0
        again = f" (and {suppressed} {suppressed_as} since the last report)" if suppressed else ""
        # A log handler is the user's code. Its exception would come out of the client's poll() or
        # consume(), and the records taken by that call would be lost.
        log_safely(self._log.warning, "%s%s", text, again)

"""How every relay runs: its work, pauses after failures, other threads, health, metrics, end.

The relay of a local message table (`sql`) and that of Debezium's changes (`changes`) may not import
each other, so what both do in the same way is here. The service that answers checks from databases
(`sql.responder`) runs in the same way. Touches threads and the clock.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

from halfbridge.checker.loop.failures import delay_s
from halfbridge.checker.metrics import build_info
from halfbridge.checker.status import Health
from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Waits after a failure of the database or of Kafka; they double. The first one is short, since most
# failures pass at once.
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 5.0  # how late a relay resumes once the database or Kafka is back
# Without a success for this time the relay is unhealthy. It covers two waits for an answer of the
# database (Bounds.answer_s), or one for half messages, one for COMMITs and one for the database;
# and two time-outs of a kafka_txn.
ROUND_S_MAX = 60.0
# How long `run` waits for work under way after `stop`: longer than a wait for half messages
# (BridgeConfig.send_timeout_ms, 10 s).
DRAIN_S_MAX = 15.0
_ROUNDS = "rounds"


class DrainError(BridgeError):
    """A relay was stopped, and its work did not end in time. Nothing is lost.

    The caller must end the process, because threads of the relay may still wait.

    Attributes:
        unfinished: The parts of the relay that did not end, such as `rounds`.
        drain_s: How long they were waited for, in seconds.
        step: The last step of the rounds; empty: they ended, or it is not known.
    """

    def __init__(self, unfinished: Sequence[str], drain_s: float, *, step: str = "") -> None:
        super().__init__(f"{', '.join(unfinished)} did not end in {drain_s:g} s{_step_text(step)}")
        self.unfinished, self.drain_s, self.step = tuple(unfinished), drain_s, step


class ServiceMetrics:
    """The metrics that every relay has, on a registry of its own. Thread-safe.

    Their names begin with `halfbridge_<service>_`.
    """

    def __init__(self, *, service: str = "relay") -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"halfbridge_{service}_"
        build_info(self.registry)
        self.troubles = Counter(
            f"{self._prefix}troubles",
            f"Failures after which the {service} tried again, by the part that failed.",
            ["what"],
            registry=self.registry,
        )
        self.round_age_s = self._gauge(
            "round_age_seconds", "Time since the last successful round, or since the start."
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{self._prefix}{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{self._prefix}{name}", text, registry=self.registry)


class RelayRunner(ABC):
    """Runs a relay until `stop`. `run` is called once. A subclass says what the relay does.

    After `retried` errors of `_work` the relay tries again, except for `fatal` ones, which end
    `run`. It is healthy for `round_s_max` seconds without a success.
    """

    def __init__(
        self,
        metrics: ServiceMetrics,
        logger: logging.Logger,
        *,
        retried: tuple[type[Exception], ...],
        fatal: tuple[type[Exception], ...] = (),
        round_s_max: float = ROUND_S_MAX,
    ) -> None:
        self.metrics = metrics
        self._logger = logger
        self._retried, self._fatal = retried, fatal
        self._round_s_max = round_s_max
        self._stopping = Event()
        self._lock = Lock()
        self._failing: dict[str, str] = {}  # part -> its last error, of the parts that fail
        self._is_ready = False
        self._attempts_failed = 0  # in a row
        self._succeeded_at: float | None = None  # the start counts
        self._failure: BaseException | None = None
        metrics.round_age_s.set_function(self.round_age_s)

    # --- what a relay does ---------------------------------------------------------------------

    @abstractmethod
    def _work(self) -> None:
        """Work for a while, call `succeeded` after each success, and return early at `stop`."""

    @abstractmethod
    def _close(self) -> None:
        """Release what the work holds; called once, after the last `_work`, in its thread."""

    def _other_work(self) -> Mapping[str, Callable[[], None]]:
        """Return work for threads of its own, by name; each call returns soon after `stop`."""
        return {}

    def _last_step(self) -> str:
        """Return the last step of `_work`, for the report that it hangs; empty: not known."""
        return ""

    # --- for users -----------------------------------------------------------------------------

    def health(self) -> Health:
        """Return the present health."""
        with self._lock:
            failing = dict(self._failing)
        age_s = self.round_age_s()
        if age_s > self._round_s_max:
            failing[_ROUNDS] = f"no success for {age_s:.0f} s{_step_text(self._last_step())}"
        reason = "; ".join(f"{what}: {text}" for what, text in sorted(failing.items()))
        return Health(self._is_ready, not failing, reason or ("" if self._is_ready else "starting"))

    def round_age_s(self) -> float:
        """Return the time since the last success or the start; 0 before the start."""
        succeeded_at = self._succeeded_at
        return 0.0 if succeeded_at is None else monotonic() - succeeded_at

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or the work has ended."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Make `run` return after the work that was begun. Thread-safe."""
        self._stopping.set()

    def run(self, *, drain_s: float | None = DRAIN_S_MAX) -> None:
        """Relay until `stop`; then finish the work that was begun, and release what it holds.

        The latter may take `drain_s` (None: no limit). A DrainError says that work continues in
        threads that end with the process. Nothing is lost: leases expire, and checks decide sent
        transactions.
        """
        threads = {
            name: Thread(target=work, name=f"halfbridge-{name.replace(' ', '-')}", daemon=True)
            for name, work in {_ROUNDS: self._run_rounds, **self._other_work()}.items()
        }
        self._succeeded_at = monotonic()
        for thread in threads.values():
            thread.start()
        try:
            self._stopping.wait()
        finally:
            self.stop()
            unfinished = _join(threads, drain_s)
        if self._failure is not None:
            raise self._failure
        if unfinished and drain_s is not None:  # without a limit, all have ended
            raise self._not_drained(unfinished, drain_s)

    # --- for the work --------------------------------------------------------------------------

    def succeeded(self) -> None:
        """Record that the relay works: it is ready, and the next pause is the shortest again."""
        self._attempts_failed = 0
        self._succeeded_at = monotonic()
        self._is_ready = True
        self.recovered("relay")

    def failed(self, what: str, error: Exception | str) -> None:
        """Record that a part of the relay failed: a warning if the error is a new one."""
        text = " ".join(str(error).split()) or type(error).__name__
        with self._lock:
            is_new = self._failing.get(what) != text
            self._failing[what] = text
        self.metrics.troubles.labels(what).inc()
        self._logger.log(
            logging.WARNING if is_new else logging.DEBUG, "%s failed; trying again: %s", what, text
        )

    def recovered(self, what: str) -> None:
        """Record that a part of the relay works again."""
        with self._lock:
            self._failing.pop(what, None)

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """Record a failure or success of the block as that of part `what`, and continue.

        Other threads are joined only at the end, so an exception that ended one would stay unseen.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  (logged, and in health)
            self.failed(what, error)
        else:
            self.recovered(what)

    # --- parts ---------------------------------------------------------------------------------

    def _run_rounds(self) -> None:
        """Work until `stop` or an unexpected error; then stop the other work, and release all."""
        try:
            while not self.is_stopping:
                self._try_to_work()
        except BaseException as error:  # noqa: BLE001  (raised by `run`)
            self._failure = error
        self.stop()  # first: `run` bounds its wait for what follows
        try:
            self._close()
        except BaseException as error:  # noqa: BLE001  (raised by `run`)
            self._failure = self._failure or error

    def _try_to_work(self) -> None:
        try:
            self._work()
        except self._fatal:
            raise
        except self._retried as error:
            self.failed("relay", error)
            self._attempts_failed += 1
            self._stopping.wait(delay_s(self._attempts_failed, _PAUSE_S_MIN, _PAUSE_S_MAX))

    def _not_drained(self, unfinished: list[str], drain_s: float) -> DrainError:
        if _ROUNDS in unfinished:
            error = DrainError(unfinished, drain_s, step=self._last_step())
            text = "relay stopped without releasing its leases; they expire: %s"
        else:
            error = DrainError(unfinished, drain_s)
            text = "relay stopped; the process ends work that is left: %s"
        self._logger.error(text, error)
        return error


def _step_text(step: str) -> str:
    return f"; last step: {step}" if step else ""


def _join(threads: Mapping[str, Thread], seconds: float | None) -> list[str]:
    """Wait for all threads, `seconds` in all; return the names of those that have not ended."""
    deadline = None if seconds is None else monotonic() + seconds
    for thread in threads.values():
        thread.join(None if deadline is None else max(0.0, deadline - monotonic()))
    return [name for name, thread in threads.items() if thread.is_alive()]

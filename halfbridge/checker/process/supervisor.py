"""`--workers N`: runs N worker processes, and restarts each on its slot.

Workers are processes, because a worker spends its time in Python, and new interpreters, because a
Kafka client does not survive a fork. Each holds the reading end of a pipe: when the supervisor
dies, even by SIGKILL, the pipe closes and the workers end.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, EXIT_OPERATOR
from halfbridge.checker.process import slots
from halfbridge.checker.process.http import FleetCollector, WorkerView, fleet_health, serve
from halfbridge.checker.process.tracing import span_exporter
from halfbridge.checker.process.worker_process import (
    DEBUG_OFF,
    DEBUG_ON,
    configure_logging,
    encode_order,
    run_in_place,
)
from halfbridge.logs import LevelSwitch
from halfbridge.signals import LEVEL_SIGNAL, STOP_SIGNALS, on_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig

# The daemon promises to end within 10 s of SIGTERM; a worker ends itself after 8 s.
DRAIN_S = 9.0
# A worker that ran for this time had started well: the count of its early ends is reset. Ten
# times a start. Shorter starts a worker without a pause that fails soon after each start; longer
# makes a worker wait for failures of the past.
STABLE_S = 10.0
FIRST_BACKOFF_S = 0.1  # a tenth of a start
# After a signal from outside (SIGKILL, out of memory) deliveries must continue within 3 s, and a
# start takes about 1 s. A worker that ended by an error of its own may wait longer.
KILLED_BACKOFF_S_MAX = 0.5
FAILED_BACKOFF_S_MAX = 10.0  # an error that stays is logged six times a minute
_DOUBLINGS_MAX = 16  # of the first back-off: far past the longest, and no large number
GIVE_UP_ON = frozenset((EXIT_CONFIG, EXIT_OPERATOR))
WORKER_COMMAND = (sys.executable, "-m", "halfbridge.checker.process.worker_process")

_log = logging.getLogger("halfbridge.supervisor")


def run(config: CheckerConfig, *, environ: Mapping[str, str]) -> int:
    """Run the daemon until a signal stops it; return the exit status.

    One worker runs in this process; several run under a supervisor. Raises CheckerError: no slot or
    no port is free; the operator acts.
    """
    with ExitStack() as stack:
        if config.slot:
            base = slots.sanitise(config.slot)
            # By giving a slot, the operator promises that no other worker has the slot.
            names = [f"{base}-{n}" for n in range(config.workers)] if config.workers > 1 else [base]
        else:
            claims = slots.claim_many(
                config.state_dir or slots.default_state_dir(environ),
                config.workers,
                installation=slots.installation_key(config.topic_prefix),
            )
            for held in claims:
                stack.enter_context(held)
            names = [held.name for held in claims]
        if config.workers == 1:
            return run_in_place(config, slot=names[0], exporter=span_exporter(environ))
        configure_logging(config, "supervisor")
        return Supervisor(config, names).run()


def restart_delay_s(exit_status: int, early_ends: int) -> float:
    """Return the pause before a restart, seconds; `early_ends` are in a row, before `STABLE_S`."""
    if early_ends <= 1:
        return 0.0
    most = KILLED_BACKOFF_S_MAX if exit_status < 0 else FAILED_BACKOFF_S_MAX
    return float(min(FIRST_BACKOFF_S * 2 ** min(early_ends - 2, _DOUBLINGS_MAX), most))


class Supervisor:
    """Keeps one worker process per slot alive until a signal, then drains the workers."""

    def __init__(
        self,
        config: CheckerConfig,
        names: Sequence[str],
        *,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._config = config
        self._level = LevelSwitch(config.log_level)
        self._stopping = threading.Event()
        self._keepers = [
            _Keeper(config, name, command=command, stopping=self._stopping) for name in names
        ]

    def run(self) -> int:
        """Run in the main thread until a signal, or no worker is left; return the exit status."""
        with ExitStack() as stack:
            stack.enter_context(on_signals(self._on_signal, signals=(*STOP_SIGNALS, LEVEL_SIGNAL)))
            if self._config.metrics_port:
                registry = CollectorRegistry()
                registry.register(FleetCollector(self.view))
                server = serve(
                    registry,
                    lambda: fleet_health(self.view()),
                    host=self._config.metrics_host,
                    port=self._config.metrics_port,
                )
                stack.callback(server.close)
            for keeper in self._keepers:
                keeper.start()
            for keeper in self._keepers:
                keeper.join()
        if self._stopping.is_set():
            return EXIT_OK
        return max(keeper.exit_status for keeper in self._keepers)

    def view(self) -> list[WorkerView]:
        """Return the present state of each worker."""
        return [keeper.view() for keeper in self._keepers]

    def _on_signal(self, number: int) -> None:
        if number == LEVEL_SIGNAL:
            self._level.toggle()
            for keeper in self._keepers:
                keeper.set_level(is_debug=self._level.is_debug)
            return
        if self._stopping.is_set():
            for keeper in self._keepers:
                keeper.signal(signal.SIGKILL)
            return
        _log.info("%s: draining the workers", signal.Signals(number).name)
        self._stopping.set()
        for keeper in self._keepers:
            keeper.signal(signal.SIGTERM)
        cut_off = threading.Timer(DRAIN_S, self._cut_off)
        cut_off.daemon = True
        cut_off.start()

    def _cut_off(self) -> None:
        for keeper in self._keepers:
            keeper.signal(signal.SIGKILL)


class _Keeper(threading.Thread):
    """Starts the worker of one slot, waits for its end, and restarts it."""

    def __init__(
        self,
        config: CheckerConfig,
        slot: str,
        *,
        command: Sequence[str],
        stopping: threading.Event,
    ) -> None:
        super().__init__(name=f"halfbridge-keeper-{slot}", daemon=True)
        self._config = config
        self._slot = slot
        self._command = command
        self._stopping = stopping
        self._lock = threading.Lock()
        self._level = b""  # the last change of the log's level; sent at each start too
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._given_up = ""
        self.exit_status = EXIT_OK
        self._listener = _listen() if config.metrics_port else None

    def view(self) -> WorkerView:
        port = self._listener.getsockname()[1] if self._listener else 0
        with self._lock:
            return WorkerView(
                self._slot,
                port=port,
                alive=self._process is not None,
                restarts=max(0, self._starts - 1),
                given_up=self._given_up,
            )

    def signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def set_level(self, *, is_debug: bool) -> None:
        with self._lock:
            self._level = DEBUG_ON if is_debug else DEBUG_OFF
            if self._process is not None:
                _send(self._process, self._level)

    def run(self) -> None:
        early_ends = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = self._live()
            if self._stopping.is_set():
                return
            if status in GIVE_UP_ON:
                self._give_up(status)
                return
            early_ends = early_ends + 1 if time.monotonic() - began < STABLE_S else 1
            delay = restart_delay_s(status, early_ends)
            _log.warning(
                "worker %s ended (%s): starting it again in %.1f s",
                self._slot,
                _describe(status),
                delay,
            )
            self._stopping.wait(delay)

    def _live(self) -> int:
        """Run the worker once; return its exit status, negative for a signal."""
        fds = () if self._listener is None else (self._listener.fileno(),)
        order = encode_order(self._config, slot=self._slot, listener_fd=fds[0] if fds else None)
        with self._lock:
            # Checked under the lock: otherwise a worker could start after the signal.
            if self._stopping.is_set():
                return EXIT_OK
            try:
                process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                    self._command, stdin=subprocess.PIPE, pass_fds=fds
                )
            except OSError as error:  # no memory or no process ids at the moment
                _log.error("worker %s cannot be started: %s", self._slot, error)
                return EXIT_ERROR
            self._process = process
            self._starts += 1
            _send(process, order + self._level)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._process = None
            _close(process)

    def _give_up(self, status: int) -> None:
        self.exit_status = status
        with self._lock:
            self._given_up = f"ended with status {status}: an operator must act, see its log"
        _log.error("worker %s is not started again: it %s", self._slot, self._given_up)


def _send(process: subprocess.Popen[bytes], order: bytes) -> None:
    if process.stdin is None:
        raise AssertionError("started with a pipe")
    with suppress(BrokenPipeError):  # the process died at once; wait() returns its status
        process.stdin.write(order)
        process.stdin.flush()  # left open: the worker takes its end for the supervisor's death


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _listen() -> socket.socket:
    # Not inheritable: pass_fds hands the socket over to its own worker only.
    return socket.create_server(("127.0.0.1", 0))


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-status}"

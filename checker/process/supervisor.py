"""`--workers N`: N worker processes, each kept alive on its slot.

Processes, not threads: a worker spends its time in Python. They are started as fresh
interpreters, since a Kafka client does not survive a fork. Each worker holds the reading end of
a pipe; when the supervisor dies, even by SIGKILL, the pipe closes and the workers end.
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
from halfbridge.checker.process.aggregate import FleetCollector, WorkerView, fleet_health
from halfbridge.checker.process.http import serve
from halfbridge.checker.process.signals import on_signals
from halfbridge.checker.process.worker_process import configure_logging, encode_order, run_in_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig

# The promise is 10 s from SIGTERM to the end; a worker cuts itself off after 8.
DRAIN_S = 9.0
# A worker that lived so long had started well; its end is a first one again.
STABLE_S = 10.0
FIRST_BACKOFF_S = 0.1
# After a signal from outside (SIGKILL, out of memory) deliveries must go on within 3 s, of which
# a start takes about one; an error of its own can wait longer.
KILLED_BACKOFF_S_MAX = 0.5
FAILED_BACKOFF_S_MAX = 10.0
GIVE_UP_ON = frozenset((EXIT_CONFIG, EXIT_OPERATOR))
WORKER_COMMAND = (sys.executable, "-m", "halfbridge.checker.process.worker_process")

_log = logging.getLogger("halfbridge.supervisor")


def run(config: CheckerConfig, *, environ: Mapping[str, str]) -> int:
    """Run the daemon as `config` says until a signal stops it; return the exit status.

    One worker runs in this process; more of them under a supervisor.

    Raises:
        CheckerError: no slot or no port can be had; the operator must act.
    """
    with ExitStack() as stack:
        if config.slot:
            base = slots.sanitise(config.slot)
            # A given slot is the operator's promise that nobody else has it.
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
            return run_in_place(config, slot=names[0])
        configure_logging(config, "supervisor")
        return Supervisor(config, names).run()


def restart_delay_s(exit_status: int, early_ends: int) -> float:
    """Return how long to wait before a worker starts again.

    Args:
        exit_status: As subprocess gives it: negative for a signal.
        early_ends: How often in a row it ended before `STABLE_S`; 0 after a stable life.
    """
    if early_ends <= 1:
        return 0.0
    most = KILLED_BACKOFF_S_MAX if exit_status < 0 else FAILED_BACKOFF_S_MAX
    return float(min(FIRST_BACKOFF_S * 2 ** min(early_ends - 2, 16), most))


class Supervisor:
    """Keeps one worker process a slot alive until a signal, then drains them.

    Args:
        config: Given to every worker, apart from the metrics port.
        names: The slots.
        command: What to start; it gets its order on standard input.
    """

    def __init__(
        self,
        config: CheckerConfig,
        names: Sequence[str],
        *,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._config = config
        self._stopping = threading.Event()
        self._keepers = [
            _Keeper(config, name, command=command, stopping=self._stopping) for name in names
        ]

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until no worker is left to keep; return the status.

        Call it in the main thread.
        """
        with ExitStack() as stack:
            stack.enter_context(on_signals(self._on_signal))
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
        """Return what is known of each worker now."""
        return [keeper.view() for keeper in self._keepers]

    def _on_signal(self, number: int) -> None:
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
    """Starts one slot's worker, waits for its end, starts it again."""

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
            # Under the lock, and asked again: else a worker could start behind the signal.
            if self._stopping.is_set():
                return EXIT_OK
            try:
                process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                    self._command, stdin=subprocess.PIPE, pass_fds=fds
                )
            except OSError as error:  # no memory, no process numbers: for now
                _log.error("worker %s cannot be started: %s", self._slot, error)
                return EXIT_ERROR
            self._process = process
            self._starts += 1
        try:
            _tell(process, order)
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


def _tell(process: subprocess.Popen[bytes], order: bytes) -> None:
    if process.stdin is None:
        raise AssertionError("started with a pipe")
    with suppress(BrokenPipeError):  # it died at once; wait() says how
        process.stdin.write(order)
        process.stdin.flush()  # and left open: its end means that the supervisor is gone


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _listen() -> socket.socket:
    # Not inheritable by itself: pass_fds hands it over, to its own worker only.
    return socket.create_server(("127.0.0.1", 0))


def _describe(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

"""One worker as a process: started by the supervisor, or run in place by `--workers 1`.

The supervisor writes to the worker's standard input one line of JSON, because settings may hold
passwords, and then one byte for each change of the log's level. At the end of standard input the
supervisor is gone: the worker drains and ends.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from prometheus_client import GCCollector, ProcessCollector

from halfbridge import environment
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK
from halfbridge.checker.process.http import serve
from halfbridge.checker.process.tracing import span_exporter
from halfbridge.checker.status import Status
from halfbridge.kafka.errors import BridgeError
from halfbridge.logs import LevelSwitch, log_to_stderr
from halfbridge.serde.settings import load, to_plain
from halfbridge.signals import LEVEL_SIGNAL, STOP_SIGNALS, end_process, on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The daemon promises to end within 10 s of SIGTERM. A kafka_txn that takes longer is cut off, which
# loses nothing: the next worker on this slot aborts it.
DRAIN_S = 8.0
# For a process in which no Python code runs any more, and so no timer either: some calls of the
# Kafka client wait for its threads and keep the interpreter's lock, and a client that closes may
# never answer them. Later than DRAIN_S, and earlier than the supervisor's SIGKILL.
HUNG_S = 8.5
LINE_BYTES_MAX = 1024 * 1024  # settings as JSON; `kafka` may hold certificates
# Bytes that the supervisor writes after the order: the level of the log from then on.
DEBUG_ON, DEBUG_OFF = b"+", b"-"

_log = logging.getLogger("halfbridge.checker")


def run_in_place(config: CheckerConfig, *, slot: str, exporter: str) -> int:
    """Run one worker in this process until a signal stops it; return its exit status.

    `exporter` is OpenTelemetry's name of where spans go.
    """
    configure_logging(config, slot)
    level = LevelSwitch(config.log_level)
    with _stopped_by((*STOP_SIGNALS, LEVEL_SIGNAL), level=level) as stop:
        return _run(config, slot=slot, stop=stop.event, listener=None, exporter=exporter)


def encode_order(config: CheckerConfig, *, slot: str, listener_fd: int | None) -> bytes:
    """Return the order of a worker process: one line of JSON."""
    order: _Order = {"config": to_plain(config), "slot": slot, "listener_fd": listener_fd}
    return json.dumps(order).encode() + b"\n"


class _Order(TypedDict):
    """What a worker receives, as JSON in a line."""

    config: dict[str, object]
    slot: str
    listener_fd: int | None


def main() -> int:
    """Read the order from standard input and run the worker; return its exit status."""
    order: _Order = json.loads(sys.stdin.buffer.readline(LINE_BYTES_MAX))
    config = load(CheckerConfig, flags=order["config"])
    exporter = span_exporter(environment.variables())
    fd = order["listener_fd"]
    listener = None if fd is None else socket.socket(fileno=fd)
    configure_logging(config, order["slot"])
    # Ctrl-C reaches the whole process group; the supervisor alone handles it, and sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker may get SIGTERM twice: from the service manager, and from the supervisor. So a second
    # SIGTERM does not mean a hard stop; the supervisor uses SIGKILL for that. The signal for the
    # level comes by the supervisor's pipe, which loses no signal while this process starts.
    signal.signal(LEVEL_SIGNAL, signal.SIG_IGN)
    with _stopped_by((signal.SIGTERM,), second_insists=False) as stop:
        watch = partial(_watch_supervisor, stop, LevelSwitch(config.log_level))
        threading.Thread(target=watch, daemon=True).start()
        return _run(
            config, slot=order["slot"], stop=stop.event, listener=listener, exporter=exporter
        )


def configure_logging(config: CheckerConfig, slot: str) -> None:
    """Log to standard error, with the slot in each line."""
    log_to_stderr(config.log_level, config.log_format, worker=slot)


class Stop:
    """Ends a worker: by draining, or hard after `DRAIN_S` or at a second signal.

    If not `second_insists`, a second signal has no effect. LEVEL_SIGNAL switches `level`, if there
    is one. `on_request` is called when the drain begins.
    """

    def __init__(
        self,
        hard_exit: Callable[[int], object] = os._exit,
        *,
        second_insists: bool = True,
        level: LevelSwitch | None = None,
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.event = threading.Event()
        self._hard_exit = hard_exit
        self._second_insists = second_insists
        self._level = level
        self._on_request = on_request
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def request(self, reason: str) -> None:
        """Begin to drain; the process ends within `DRAIN_S`. Thread-safe."""
        with self._lock:
            if self._timer is not None:
                return
            self._timer = threading.Timer(DRAIN_S, self._give_up)
            self._timer.daemon = True
            self._timer.start()
        self._on_request()
        _log.info("stopping: %s", reason)
        self.event.set()

    def on_signal(self, number: int) -> None:
        """React to a signal: of those that stop, the first drains, the second ends at once."""
        if number == LEVEL_SIGNAL:
            if self._level is not None:
                self._level.toggle()
            return
        if self.event.is_set() and self._second_insists:
            self._hard_exit(EXIT_ERROR)
        self.request(signal.Signals(number).name)

    def cancel(self) -> None:
        """Cancel the hard end, because the worker has ended by itself."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _give_up(self) -> None:
        _log.warning("not drained within %.0f s: exiting; the next worker continues", DRAIN_S)
        self._hard_exit(EXIT_OK)


@contextmanager
def _stopped_by(
    signals: Sequence[signal.Signals],
    *,
    second_insists: bool = True,
    level: LevelSwitch | None = None,
) -> Iterator[Stop]:
    stop = Stop(second_insists=second_insists, level=level, on_request=_end_when_hung)
    try:
        with on_signals(stop.on_signal, signals=signals):
            yield stop
    finally:
        stop.cancel()
        faulthandler.cancel_dump_traceback_later()


def _end_when_hung() -> None:
    """End this process after `HUNG_S`, without the interpreter's lock; shows threads' stacks."""
    faulthandler.dump_traceback_later(HUNG_S, file=2, exit=True)


def _run(
    config: CheckerConfig,
    *,
    slot: str,
    stop: threading.Event,
    listener: socket.socket | None,
    exporter: str,
) -> int:
    # Imported late: the module imports the Kafka client, which a supervisor never needs.
    from halfbridge.checker.process.service import run_worker, tame_memory  # noqa: PLC0415

    tame_memory()
    status = Status()
    ProcessCollector(registry=status.metrics.registry)
    GCCollector(registry=status.metrics.registry)
    with ExitStack() as stack:
        if listener is not None or config.metrics_port:
            server = serve(
                status.metrics.registry,
                status.snapshot,
                host=config.metrics_host,
                port=config.metrics_port,
                listener=listener,
            )
            stack.callback(server.close)
        exit_status: int = run_worker(
            config, slot=slot, stop=stop, status=status, exporter=exporter
        )
        return exit_status


def _watch_supervisor(stop: Stop, level: LevelSwitch) -> None:
    # Through the buffer, which may hold bytes that came right after the order.
    while said := sys.stdin.buffer.read(1):
        level.set(is_debug=said == DEBUG_ON)
    stop.request("the supervisor is gone")


def _main() -> None:
    try:
        status = main()
    except BridgeError as error:
        _log.error("the worker ends: %s", error)
        status = getattr(error, "exit_code", EXIT_CONFIG)
    except Exception:  # noqa: BLE001 (the process's last resort, logged)
        _log.exception("the worker failed")
        status = EXIT_ERROR
    # The normal end of the interpreter would also fail on the lock of standard input, which the
    # reading thread holds.
    end_process(status)


if __name__ == "__main__":
    _main()

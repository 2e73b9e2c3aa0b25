"""One worker as a process: started by the supervisor, or run in place by `--workers 1`.

The supervisor writes one line of JSON to the worker's standard input, because settings may hold
passwords and must not stand on the command line. The end of standard input means that the
supervisor is gone: the worker then drains and ends too.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import GCCollector, ProcessCollector

from halfbridge.bridge.errors import BridgeError
from halfbridge.checker.config import CheckerConfig, to_plain
from halfbridge.checker.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK
from halfbridge.checker.process.http import serve
from halfbridge.checker.process.process_end import end_process
from halfbridge.checker.process.signals import STOP_SIGNALS, on_signals
from halfbridge.checker.status import Status
from halfbridge.serde.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The daemon promises to end within 10 s of SIGTERM. A kafka_txn that takes longer is cut off, which
# loses nothing: the next worker on this slot aborts it.
DRAIN_S = 8.0
LINE_BYTES_MAX = 1024 * 1024

_log = logging.getLogger("halfbridge.checker")


def run_in_place(config: CheckerConfig, *, slot: str) -> int:
    """Run one worker in this process until a signal stops it; return its exit status."""
    configure_logging(config, slot)
    with _stopped_by(STOP_SIGNALS) as stop:
        return _run(config, slot=slot, stop=stop.event, listener=None)


def encode_order(config: CheckerConfig, *, slot: str, listener_fd: int | None) -> bytes:
    """Return the order of a worker process: one line of JSON."""
    order = {"config": to_plain(config), "slot": slot, "listener_fd": listener_fd}
    return json.dumps(order).encode() + b"\n"


def main() -> int:
    """Read the order from standard input and run the worker; return its exit status."""
    order: dict[str, Any] = json.loads(sys.stdin.buffer.readline(LINE_BYTES_MAX))
    config = load(CheckerConfig, flags=order["config"])
    fd = order["listener_fd"]
    listener = None if fd is None else socket.socket(fileno=fd)
    configure_logging(config, order["slot"])
    # Ctrl-C reaches the whole process group; the supervisor alone handles it, and sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker may get SIGTERM twice: from the service manager, and from the supervisor. So a second
    # SIGTERM does not mean a hard stop; the supervisor uses SIGKILL for that.
    with _stopped_by((signal.SIGTERM,), second_insists=False) as stop:
        threading.Thread(target=_watch_supervisor, args=(stop,), daemon=True).start()
        return _run(config, slot=order["slot"], stop=stop.event, listener=listener)


def configure_logging(config: CheckerConfig, slot: str) -> None:
    """Log to standard error, with the slot in each line."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s [{slot}] %(name)s: %(message)s",
        stream=sys.stderr,
    )


class Stop:
    """Ends a worker: by draining, or hard after `DRAIN_S` or at a second signal.

    Args:
        hard_exit: Ends the process at once with a status.
        second_insists: Whether a second signal ends the process hard; False: it has no effect.
    """

    def __init__(
        self, hard_exit: Callable[[int], Any] = os._exit, *, second_insists: bool = True
    ) -> None:
        self.event = threading.Event()
        self._hard_exit = hard_exit
        self._second_insists = second_insists
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
        _log.info("stopping: %s", reason)
        self.event.set()

    def on_signal(self, number: int) -> None:
        """React to a signal: the first one drains, the second one ends the process at once."""
        if self.event.is_set() and self._second_insists:
            self._hard_exit(EXIT_ERROR)
        self.request(signal.Signals(number).name)

    def cancel(self) -> None:
        """Cancel the hard end, because the worker has ended by itself."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _give_up(self) -> None:
        _log.warning("not drained within %.0f s: cut off, the next worker goes on", DRAIN_S)
        self._hard_exit(EXIT_OK)


@contextmanager
def _stopped_by(
    signals: Sequence[signal.Signals], *, second_insists: bool = True
) -> Iterator[Stop]:
    stop = Stop(second_insists=second_insists)
    try:
        with on_signals(stop.on_signal, signals=signals):
            yield stop
    finally:
        stop.cancel()


def _run(
    config: CheckerConfig,
    *,
    slot: str,
    stop: threading.Event,
    listener: socket.socket | None,
) -> int:
    # Imported late: the module imports the Kafka client, which a supervisor never needs.
    from halfbridge.checker.process.service import run_worker  # noqa: PLC0415

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
        exit_status: int = run_worker(config, slot=slot, stop=stop, status=status)
        return exit_status


def _watch_supervisor(stop: Stop) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop.request("the supervisor is gone")


def _main() -> None:
    try:
        status = main()
    except BridgeError as error:
        _log.error("%s", error)
        status = getattr(error, "exit_code", EXIT_CONFIG)
    except Exception:  # noqa: BLE001 (the process's last resort, logged)
        _log.exception("the worker failed")
        status = EXIT_ERROR
    # The normal end of the interpreter would also fail on the lock of standard input, which the
    # reading thread holds.
    end_process(status)


if __name__ == "__main__":
    _main()

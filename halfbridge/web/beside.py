"""The server beside a daemon: a process of its own, which lives as long as the daemon.

The daemon's process sends it one line of JSON (settings may hold passwords, so they are not on the
command line), then nothing. The end of standard input means that the daemon is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_OK
from halfbridge.kafka.errors import BridgeError
from halfbridge.logs import log_to_stderr
from halfbridge.serde.settings import load, to_plain
from halfbridge.web.config import WebConfig, beside
from halfbridge.web.server import listen, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.config import CheckerConfig

COMMAND = (sys.executable, "-m", "halfbridge.web.beside")
LINE_BYTES_MAX = 1024 * 1024  # settings as JSON; `kafka` may hold certificates
# After a death; the daemon delivers in the meantime.
AGAIN_S = 5.0
END_S = 5.0
# The server yields to the daemon where both want the processor.
NICENESS = 10

_log = logging.getLogger("halfbridge.web")


@contextmanager
def server_beside(config: CheckerConfig) -> Iterator[None]:
    """Run the server in a process of its own while the block runs; nothing without a port.

    Raises:
        ConfigError: settings, port, token file or certificate cannot be used; the operator
            corrects it.
    """
    if not config.admin_port:
        yield
        return
    settings = beside(config)
    listen(settings).close()  # an error now, and in one line, instead of in a process that ends
    keeper = _Keeper(settings)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()


class _Keeper(threading.Thread):
    """Starts the server's process, waits for its end, and starts it again."""

    def __init__(self, config: WebConfig) -> None:
        super().__init__(name="halfbridge-web-keeper", daemon=True)
        self._order = json.dumps(to_plain(config)).encode() + b"\n"
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        while not self._stopping.is_set():
            process = self._begin()
            if process is None:
                return
            exit_status = process.wait()
            if self._stopping.is_set():
                return
            if exit_status == EXIT_CONFIG:
                _log.error("the admin port's process is not started again: see its log")
                return
            _log.warning(
                "the admin port's process ended (%d): again in %.0f s", exit_status, AGAIN_S
            )
            self._stopping.wait(AGAIN_S)

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._stopping.set()
            process = self._process
        if process is None:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def _begin(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the daemon, which ends this one
            )
            self._process = process
        with suppress(BrokenPipeError):  # it died at once; wait() says how
            if process.stdin is not None:
                process.stdin.write(self._order)
                process.stdin.flush()
        return process


def main() -> int:
    """Serve what standard input describes; return the exit status."""
    config = load(WebConfig, flags=json.loads(sys.stdin.buffer.readline(LINE_BYTES_MAX)))
    log_to_stderr("info", config.log_format, worker="web")
    os.nice(NICENESS)
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    try:
        serve(config, on_ready=lambda url: _log.info("the admin port answers on %s", url))
    except BridgeError as error:
        _log.error("%s", error)
        return EXIT_CONFIG
    return EXIT_OK


def _end_with_the_daemon() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    # Not by the interpreter's own end, which would wait for threads that wait for Kafka.
    status = main()
    logging.shutdown()
    os._exit(status)

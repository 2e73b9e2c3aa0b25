"""The server's process: a socket, TLS, time limits, and its end.

`server_beside` runs one for a daemon, as long as the daemon lives. The daemon's process sends it
one line of JSON (settings may hold passwords, so they are not on the command line), then nothing.
The end of standard input means that the daemon is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_OK
from halfbridge.kafka.errors import BridgeError, ConfigError
from halfbridge.logs import log_to_stderr
from halfbridge.serde.settings import load, to_plain
from halfbridge.web.app import make_app
from halfbridge.web.config import WebConfig, beside
from halfbridge.web.services import Services

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from halfbridge.checker.config import CheckerConfig

# Connections at once, those that say nothing included. Browsers open up to six, so thirty operators
# are served; each connection costs a file and memory.
CONNECTIONS_MAX = 200
# How long a client may take for the lines of a request, and to say anything at all. Lines come
# together, so slower clients only hold one of CONNECTIONS_MAX.
HEAD_S_MAX = 10.0
KEEP_ALIVE_S = 15  # more than the time between two readings (watch.SAMPLE_S)
HEAD_BYTES_MAX = 16 * 1024  # as Node.js
# How long calls that are under way at SIGTERM may take to end: most take less than a second, and
# the daemon promises to end within 10 s.
DRAIN_S = 3
_BACKLOG = 128  # Linux's own limit before 5.4
_log = logging.getLogger("halfbridge.web")


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not come within `HEAD_S_MAX`.

    uvicorn itself waits for ever for the first request of a connection.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _last_seen: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's is looser
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._check_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _check_head(self) -> None:
        """Close the connection where no request has come since the last check."""
        cycle: Any = self.cycle  # the last request, which uvicorn says is never None
        if cycle is self._last_seen and (cycle is None or cycle.response_complete):
            self.transport.close()
            return
        self._last_seen = cycle
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._check_head)


def serve(config: WebConfig, *, on_ready: Callable[[str], object] = print) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` gets the address once the server answers."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    services = Services(config)
    server = make_server(config, make_app(services))
    listener = listen(config)
    scheme = "https" if config.admin_cert else "http"
    host = f"[{config.admin_host}]" if ":" in config.admin_host else config.admin_host

    def end(_number: int, _frame: object) -> None:
        server.should_exit = True

    # uvicorn handles signals only from its start on, so an earlier one would be lost. It raises the
    # one that ended it once more, for its caller.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    on_ready(f"{scheme}://{host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])


def make_server(config: WebConfig, app: ASGIApp) -> uvicorn.Server:
    """Return a server of `app`.

    Raises ConfigError: certificate or key cannot be used; the operator corrects them.
    """
    settings = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        ssl_certfile=config.admin_cert,
        ssl_keyfile=config.admin_key,
    )
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            field="admin_cert",
            value=str(config.admin_cert),
            origin=f"--admin-cert and --admin-key ({error})",
            allowed="a PEM certificate chain and its private key without a password",
        ) from error
    return uvicorn.Server(settings)


def listen(config: WebConfig) -> socket.socket:
    """Return the listening socket.

    Raises ConfigError: the port cannot be had; the operator gives another one.
    """
    try:
        family = socket.AF_INET6 if ":" in config.admin_host else socket.AF_INET
        return socket.create_server(
            (config.admin_host.strip("[]"), config.admin_port), family=family, backlog=_BACKLOG
        )
    except OSError as error:
        raise ConfigError(
            field="admin_port",
            value=f"{config.admin_host}:{config.admin_port}",
            origin=f"--admin-host and --admin-port ({error.strerror})",
            allowed="an address of this machine with a free port",
        ) from error


COMMAND = (sys.executable, "-m", "halfbridge.web.server")
LINE_BYTES_MAX = 1024 * 1024  # settings as JSON; `kafka` may hold certificates
# After a death; the daemon delivers in the meantime. A server that ends at once logs twelve lines a
# minute, and takes little of the processor.
AGAIN_S = 5.0
END_S = 5.0  # more than DRAIN_S
# The server yields to the daemon where both want the processor.
NICENESS = 10


@contextmanager
def server_beside(config: CheckerConfig) -> Iterator[None]:
    """Run the server in a process of its own while the block runs; nothing without a port."""
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
        _log.error("the admin port cannot be served: %s", error)
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

"""The server's process: a socket, TLS, time limits, and its end."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from halfbridge.kafka.errors import ConfigError
from halfbridge.web.app import make_app
from halfbridge.web.services import Services

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from halfbridge.web.config import WebConfig

# Connections at once, those that say nothing included.
CONNECTIONS_MAX = 200
# How long a client may take for the lines of a request, and to say anything at all.
HEAD_S_MAX = 10.0
KEEP_ALIVE_S = 15
HEAD_BYTES_MAX = 16 * 1024
# What is under way at SIGTERM has so long to end.
DRAIN_S = 3
_BACKLOG = 128

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
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._look_again)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        """Close the connection where no request has come since the last look."""
        cycle: Any = self.cycle  # the last request, which uvicorn says is never None
        if cycle is self._last_seen and (cycle is None or cycle.response_complete):
            self.transport.close()
            return
        self._last_seen = cycle
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._look_again)


def serve(config: WebConfig, *, on_ready: Callable[[str], Any] = print) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        config: Of the server.
        on_ready: Called with the address once the server answers.

    Raises:
        ConfigError: the port, the token file or the certificate cannot be used; the operator
            corrects it.
    """
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

    Raises:
        ConfigError: the certificate or its key cannot be used; the operator corrects it.
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

    Raises:
        ConfigError: the port cannot be had; the operator gives another one.
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

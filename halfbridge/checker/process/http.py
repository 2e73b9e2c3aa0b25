"""The HTTP port for metrics and health.

| Path | Answer |
|---|---|
| /metrics | Prometheus text |
| /healthz | 200 while nothing needs an operator, else 503 (partition stopped, ...) |
| /readyz | 200 while the process works |
| /livez | 200 while the process answers |

Use /livez for a liveness probe: no restart repairs a stopped partition.
"""

from __future__ import annotations

import json
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from halfbridge.checker.errors import MetricsPortError
from halfbridge.checker.status import health_body

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client.registry import Collector, CollectorRegistry

    from halfbridge.checker.status import Health

# A scraper that sends nothing must not hold a thread for ever.
REQUEST_TIMEOUT_S = 10
_CLOSE_POLL_S = 0.05


class HttpServer:
    """Serves metrics and health in daemon threads until `close`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.port: int = server.server_address[1]
        self._thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": _CLOSE_POLL_S},
            name="halfbridge-http",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(
    registry: CollectorRegistry | Collector,
    health: Callable[[], Health],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    listener: socket.socket | None = None,
) -> HttpServer:
    """Start serving and return the server; its `port` is the port in use.

    Args:
        registry: Collected at each request to /metrics.
        health: Called at each request to /healthz and /readyz.
        host: Address to listen on.
        port: 0: any free port.
        listener: A listening socket to take over instead of `host` and `port`.

    Raises:
        MetricsPortError: the port cannot be opened; the operator gives another one.
    """
    app = make_app(registry, health)
    if listener is not None:
        server: WSGIServer = _adopt(listener)
        server.set_app(app)
        return HttpServer(server)
    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        raise MetricsPortError(
            f"cannot serve metrics on {host}:{port} ({error}): give another --metrics-port"
        ) from error
    return HttpServer(server)


def make_app(
    registry: CollectorRegistry | Collector, health: Callable[[], Health]
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """Return the WSGI application: prometheus-client's, with the health routes added."""
    metrics: Any = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in ("/", "/metrics"):
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        if path == "/livez":
            return _answer(start_response, ok=True, body={"live": True})
        if path in ("/healthz", "/readyz"):
            now = health()
            ok = now.ready if path == "/readyz" else now.all_well
            return _answer(start_response, ok=ok, body=health_body(now))
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"known paths: /metrics /healthz /readyz /livez\n"]

    return app


def _answer(start_response: StartResponse, *, ok: bool, body: dict[str, Any]) -> Iterable[bytes]:
    start_response(
        "200 OK" if ok else "503 Service Unavailable", [("Content-Type", "application/json")]
    )
    return [json.dumps(body).encode() + b"\n"]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # close() must not wait for a scraper that hangs.
    block_on_close = False


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log no requests, because metrics are scraped every few seconds."""


def _adopt(listener: socket.socket) -> _Server:
    host, port = listener.getsockname()[:2]
    server = _Server((host, port), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = (host, port)
    server.server_name, server.server_port = host, port
    server.setup_environ()
    return server

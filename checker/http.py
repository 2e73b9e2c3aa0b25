"""Health of a process, and the port on which it shows metrics and health.

| Path | Says |
|---|---|
| /metrics | Prometheus text |
| /healthz | 200 while all is well, 503 when an operator should look (partition stopped, ...) |
| /readyz | 200 once the process does its work |
| /livez | 200 while the process answers |

/livez is the one for a liveness probe: no restart mends a stopped partition.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from halfbridge.checker.errors import MetricsPortError
from halfbridge.checker.metrics import Metrics

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client.registry import Collector, CollectorRegistry

# A scraper that sends nothing must not hold a thread for ever.
REQUEST_TIMEOUT_S = 10
_CLOSE_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Health:
    """What a process says of itself at one moment.

    Attributes:
        ready: It does its work (or would, if there was any).
        healthy: Nothing needs an operator, apart from `partition_errors`.
        reason: Why it is not ready or not healthy; empty otherwise.
        partition_errors: What stopped a partition, or has kept it waiting for long, by partition.
    """

    ready: bool = False
    healthy: bool = True
    reason: str = "starting"
    partition_errors: dict[int, str] = field(default_factory=dict)

    @property
    def all_well(self) -> bool:
        """Tell whether nothing needs an operator."""
        return self.healthy and not self.partition_errors


class Status:
    """What a process shows: its health record, and its metrics.

    Thread-safe: one thread writes, the HTTP threads read.
    """

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.metrics = Metrics() if metrics is None else metrics
        self._lock = threading.Lock()
        self._ready, self._not_ready_reason = False, "starting"
        self._ills: dict[str, str] = {}
        self._partition_errors: dict[int, str] = {}

    def set_ready(self, *, ready: bool, reason: str = "") -> None:
        """Say whether the process does its work; `reason` tells why not."""
        with self._lock:
            self._ready, self._not_ready_reason = ready, reason

    def set_ill(self, what: str, reason: str) -> None:
        """Say why an operator should look at `what`; an empty reason: it is well (again)."""
        with self._lock:
            self._ills.pop(what, None)
            if reason:
                self._ills[what] = reason

    def stop_partition(self, partition: int, error: str) -> None:
        """Record that `partition` stopped, or waits for too long, and why."""
        with self._lock:
            self._partition_errors[partition] = error

    def keep_partitions(self, partitions: Iterable[int]) -> None:
        """Forget what stopped others than `partitions`: they were taken away."""
        with self._lock:
            kept = self._partition_errors.keys() & set(partitions)
            self._partition_errors = {each: self._partition_errors[each] for each in kept}

    def clear_partition(self, partition: int) -> None:
        """Forget what stopped `partition`: it was set anew, or is there again."""
        with self._lock:
            self._partition_errors.pop(partition, None)

    def snapshot(self) -> Health:
        """Return the health of this moment."""
        with self._lock:
            reason = "; ".join(self._ills.values()) or self._not_ready_reason
            return Health(self._ready, not self._ills, reason, dict(self._partition_errors))


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
    """Start serving and return the server; its `port` is the real one.

    Args:
        registry: Collected at each request to /metrics.
        health: Called at each request to /healthz and /readyz.
        host: Address to listen on.
        port: 0 picks a free one.
        listener: A listening socket to take over instead of `host` and `port`.

    Raises:
        MetricsPortError: the port cannot be had; the operator must give another one.
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
    """Return the WSGI application: prometheus-client's, and the health routes."""
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


def health_body(health: Health) -> dict[str, Any]:
    """Return `health` as the JSON object of /healthz and /readyz."""
    errors = {str(key): text for key, text in sorted(health.partition_errors.items())}
    return {
        "ready": health.ready,
        "healthy": health.all_well,
        "reason": health.reason,
        "partition_errors": errors,
    }


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
        """Log no requests: a scrape every few seconds is not news."""


def _adopt(listener: socket.socket) -> _Server:
    host, port = listener.getsockname()[:2]
    server = _Server((host, port), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = (host, port)
    server.server_name, server.server_port = host, port
    server.setup_environ()
    return server

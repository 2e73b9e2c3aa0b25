"""The HTTP port for metrics and health, of one worker or of all workers of a supervisor.

| Path | Answer |
|---|---|
| /metrics | Prometheus text |
| /healthz | 200 while nothing needs an operator, else 503 (partition stopped, ...) |
| /readyz | 200 while the process works |
| /livez | 200 while the process answers |

Use /livez for a liveness probe: no restart repairs a stopped partition.

Under a supervisor, each worker serves its metrics on a loopback socket, which the supervisor opens
before it starts the worker, so that the port stays the same over restarts. The supervisor's port
shows the metrics and the health of all.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from halfbridge.checker.errors import MetricsPortError
from halfbridge.checker.status import Health, health_body

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client.registry import CollectorRegistry

    from halfbridge.checker.status import HealthBody

# A scraper that sends nothing must not hold a thread for ever. As Prometheus, which gives up a
# scrape after 10 s (scrape_timeout).
REQUEST_TIMEOUT_S = 10
_CLOSE_POLL_S = 0.05  # how late `close` is noticed


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
    """Start serving on `listener`, or host and port. MetricsPortError: give another port."""
    app = make_app(registry, health)
    if listener is not None:
        server: WSGIServer = _adopt(listener)
        server.set_app(app)
        return HttpServer(server)
    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        raise MetricsPortError(
            f"cannot serve metrics on {host}:{port} ({error}): give another --metrics-port",
            port=port,
        ) from error
    return HttpServer(server)


def make_app(
    registry: CollectorRegistry | Collector, health: Callable[[], Health]
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """Return the WSGI application: prometheus-client's, with the health routes added."""
    metrics = make_wsgi_app(registry)

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


def _answer(
    start_response: StartResponse, *, ok: bool, body: Mapping[str, object]
) -> Iterable[bytes]:
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

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
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


# A worker that does not answer in this time is shown as down; scrapers give up after 10 s.
FETCH_TIMEOUT_S = 2.0
# They wait for workers; more workers are asked as threads become free. So 80 workers that do not
# answer (FETCH_TIMEOUT_S each) still fit into a scraper's 10 s.
_THREADS_MAX = 16


class WorkerView:
    """What the supervisor knows of one worker at one moment.

    Attributes:
        slot: The worker's name, its `worker` label.
        given_up: Why the worker is not restarted any more; empty otherwise.
    """

    __slots__ = ("alive", "given_up", "port", "restarts", "slot")

    def __init__(
        self, slot: str, *, port: int, alive: bool, restarts: int, given_up: str = ""
    ) -> None:
        self.slot = slot
        self.port = port
        self.alive = alive
        self.restarts = restarts
        self.given_up = given_up


class FleetCollector(Collector):
    """Collects the metrics of every live worker with a `worker` label, and the supervisor's own."""

    def __init__(self, view: Callable[[], Sequence[WorkerView]]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all workers, each family once."""
        workers = self._view()
        up = GaugeMetricFamily(
            "halfbridge_worker_up", "1 while the worker answers.", labels=["worker"]
        )
        restarts = CounterMetricFamily(
            "halfbridge_worker_restarts", "Starts after the first.", labels=["worker"]
        )
        families: dict[str, Metric] = {}
        for worker, text in zip(workers, _fetch_all(workers, "/metrics"), strict=True):
            up.add_metric([worker.slot], float(text is not None))
            restarts.add_metric([worker.slot], float(worker.restarts))
            if text is not None:
                _merge(families, text, worker=worker.slot)
        yield up
        yield restarts
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registration must not ask workers that do not run yet."""
        return ()


def fleet_health(workers: Sequence[WorkerView]) -> Health:
    """Return the health of all workers: ready if all are ready, healthy if all are healthy."""
    ready, healthy = True, True
    reasons: list[str] = []
    errors: dict[int, str] = {}
    modes: set[str] = set()
    for worker, text in zip(workers, _fetch_all(workers, "/readyz"), strict=True):
        if text is None:
            ready = False
            healthy = healthy and not worker.given_up
            reasons.append(f"{worker.slot}: {worker.given_up or 'not running'}")
            continue
        body: HealthBody = json.loads(text)
        ready = ready and body["ready"]
        modes.update(filter(None, (body.get("delivery"),)))
        errors.update({int(key): text for key, text in body["partition_errors"].items()})
        # A worker's `healthy` includes its partitions, which are reported separately here.
        healthy = healthy and (body["healthy"] or bool(body["partition_errors"]))
        if body["reason"]:
            reasons.append(f"{worker.slot}: {body['reason']}")
    return Health(ready, healthy, "; ".join(reasons), errors, ", ".join(sorted(modes)))


def _merge(families: dict[str, Metric], text: str, *, worker: str) -> None:
    for family in text_string_to_metric_families(text):
        merged = families.get(family.name)
        if merged is None:
            merged = families[family.name] = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            labels = {**sample.labels, "worker": worker}
            merged.add_sample(sample.name, labels, sample.value)


def _fetch_all(workers: Sequence[WorkerView], path: str) -> list[str | None]:
    with ThreadPoolExecutor(min(_THREADS_MAX, max(1, len(workers)))) as pool:
        return list(pool.map(lambda worker: _fetch(worker, path), workers))


def _fetch(worker: WorkerView, path: str) -> str | None:
    if not worker.alive:
        return None
    connection = HTTPConnection("127.0.0.1", worker.port, timeout=FETCH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()

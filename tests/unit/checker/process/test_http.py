"""The HTTP port for metrics and health."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.checker.errors import MetricsPortError
from halfbridge.checker.process.http import HttpServer, serve
from halfbridge.checker.status import Status
from tests.kit.http import answer_of

pytestmark = pytest.mark.process


@pytest.fixture
def status() -> Status:
    """The status at the start of a process."""
    return Status()


@pytest.fixture
def server(status: Status) -> Iterator[HttpServer]:
    """A server on a free port that shows `status`."""
    running = serve(status.metrics.registry, status.snapshot)
    yield running
    running.close()


def _get(port: int, path: str) -> tuple[int, str]:
    return answer_of(f"http://127.0.0.1:{port}{path}")


def _get_json(port: int, path: str) -> tuple[int, dict[str, Any]]:
    code, body = _get(port, path)
    return code, json.loads(body)


def test_metrics_are_served(server: HttpServer, status: Status) -> None:
    """/metrics has the value of a counter."""
    status.metrics.conflicts(2)

    code, body = _get(server.port, "/metrics")

    assert code == 200
    assert "halfbridge_conflicts_total 2.0" in body


def test_readiness_follows_the_status(server: HttpServer, status: Status) -> None:
    """/readyz is 503 until set_ready(True), and 503 with the reason after set_ready(False)."""
    assert _get_json(server.port, "/readyz")[0] == 503

    status.set_ready(ready=True)
    assert _get_json(server.port, "/readyz") == (
        200,
        {"ready": True, "healthy": True, "reason": "", "partition_errors": {}},
    )

    status.set_ready(ready=False, reason="rebalance")
    code, body = _get_json(server.port, "/readyz")
    assert (code, body["reason"]) == (503, "rebalance")


def test_the_mode_of_delivery_is_shown(server: HttpServer, status: Status) -> None:
    """/healthz and the metrics show the delivery mode."""
    status.set_delivery("at-least-once")
    assert _get_json(server.port, "/healthz")[1]["delivery"] == "at-least-once"
    _, shown = _get(server.port, "/metrics")
    assert 'halfbridge_delivery_mode{delivery="at-least-once"} 1.0' in shown


def test_stopped_partition_turns_health_red_until_it_is_cleared(
    server: HttpServer, status: Status
) -> None:
    """/healthz names the partition and its error; /livez stays green: no restart would help."""
    status.stop_partition(3, "offset metadata missing")

    code, body = _get_json(server.port, "/healthz")
    assert (code, body["partition_errors"]) == (503, {"3": "offset metadata missing"})
    assert _get(server.port, "/livez")[0] == 200

    status.clear_partition(3)
    assert _get_json(server.port, "/healthz")[0] == 200


def test_lost_rights_turn_health_red(server: HttpServer, status: Status) -> None:
    """A problem of the worker makes /healthz 503 with its reason."""
    status.set_problem("work", "no WRITE on the op topic")

    code, body = _get_json(server.port, "/healthz")

    assert (code, body["reason"]) == (503, "no WRITE on the op topic")


def test_readiness_does_not_hide_why_health_is_red(status: Status) -> None:
    """set_ready does not clear the reason of a problem."""
    status.set_problem("work", "no quorum")
    status.set_ready(ready=True)

    assert status.snapshot().reason == "no quorum"


def test_one_trouble_that_ends_does_not_hide_another(status: Status) -> None:
    """Health shows each problem until all problems are cleared."""
    status.set_problem("work", "no quorum")
    status.set_problem("dead letters", "no such topic")
    status.set_problem("work", "")
    assert (status.snapshot().healthy, status.snapshot().reason) == (False, "no such topic")
    status.set_problem("dead letters", "")
    assert status.snapshot().healthy


def test_errors_of_partitions_go_with_them(status: Status) -> None:
    """keep_partitions removes the errors of partitions that the worker no longer serves."""
    for number in (1, 2):
        status.stop_partition(number, "offset metadata missing")
    status.keep_partitions([2, 3])
    assert status.snapshot().partition_errors.keys() == {2}


def test_unknown_path_names_the_known_ones(server: HttpServer) -> None:
    """An unknown path is a 404 with the list of known paths."""
    code, body = _get(server.port, "/nothing")

    assert code == 404
    assert "/healthz" in body


def test_taken_port_is_a_clear_error(server: HttpServer, status: Status) -> None:
    """The error names the port and the flag."""
    with pytest.raises(MetricsPortError, match=f"{server.port}.*--metrics-port") as caught:
        serve(status.metrics.registry, status.snapshot, port=server.port)
    assert caught.value.port == server.port


def test_listener_is_taken_over(status: Status) -> None:
    """A socket that the supervisor opened is used as the listener."""
    listener = socket.create_server(("127.0.0.1", 0))

    running = serve(status.metrics.registry, status.snapshot, listener=listener)

    assert running.port == listener.getsockname()[1]
    assert _get(running.port, "/livez")[0] == 200
    running.close()

"""Settings that do not fit together are refused before anything listens."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.settings import load, to_plain
from halfbridge.testkit.ports import free_ports
from halfbridge.web.config import WebConfig, beside, is_loopback
from halfbridge.web.server import COMMAND


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"admin_host": "0.0.0.0"}, "admin_tokens"),
        ({"admin_host": "example.org"}, "admin_tokens"),
        ({"allow_changes": True}, "admin_tokens"),
        ({"admin_cert": Path("a")}, "admin_key"),
        ({"admin_key": Path("a")}, "admin_cert"),
        ({"admin_port": 0}, "admin_port"),
        ({"metrics_urls": ("localhost:9464",)}, "metrics_urls"),
        ({"metrics_urls": ("file:///etc/passwd",)}, "metrics_urls"),
        ({"metrics_urls": ("http://a/metrics",)}, "metrics_urls"),
        ({"metrics_urls": ("http://a",) * 65}, "metrics_urls"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], field: str) -> None:
    """Without tokens nothing but a loopback address is served, and nothing is changed."""
    with pytest.raises(ConfigError) as caught:
        WebConfig(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True)],
        *[("localhost", True), ("LOCALHOST", True), ("localhost.example.org", False)],
        *[("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False)],
    ],
)
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    """A name that only begins like a loopback address is none."""
    assert is_loopback(host) is expected


def test_a_daemon_hands_its_settings_on() -> None:
    """The server beside a daemon reads that daemon's metrics, and survives the way through JSON."""
    daemon = CheckerConfig(
        topic_prefix="a-",
        kafka={"sasl.password": "secret"},
        admin_port=9465,
        admin_tokens=Path("/tokens"),
        metrics_port=9464,
        metrics_host="0.0.0.0",
        allow_changes=True,
    )
    made = beside(daemon)
    assert made.metrics_urls == ("http://127.0.0.1:9464",)
    assert (made.topic_prefix, made.admin_port, made.allow_changes) == ("a-", 9465, True)
    assert load(WebConfig, flags=to_plain(made)) == made


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"metrics_port": 9464}, "admin_tokens"),
        ({"admin_tokens": Path("/tokens")}, "metrics_port"),
    ],
)
def test_a_daemons_admin_port_needs_tokens_and_metrics(
    settings: dict[str, Any], field: str
) -> None:
    """The error names what is missing."""
    with pytest.raises(ConfigError) as caught:
        beside(CheckerConfig(admin_port=9465, **settings))
    assert caught.value.field == field


# --- the log of the server's process -------------------------------------------------------

_END_S_MAX = 30.0


def test_every_line_is_json_where_the_daemon_logs_json() -> None:
    """Lines of the server and of uvicorn; each names the process."""
    (port,) = free_ports(1)
    config = WebConfig(bootstrap_servers="127.0.0.1:1", admin_port=port, log_format="json")
    server = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stderr is not None
    try:
        server.stdin.write(json.dumps(to_plain(config)).encode() + b"\n")
        server.stdin.flush()
        first = server.stderr.readline()
        server.stdin.close()  # the daemon is gone
        lines = [json.loads(line) for line in (first, *server.stderr)]
    finally:
        with suppress(subprocess.TimeoutExpired):
            server.wait(_END_S_MAX)
        server.kill()
        server.wait()
        server.stderr.close()
    assert any("the admin port answers" in line["message"] for line in lines)
    assert {line["worker"] for line in lines} == {"web"}

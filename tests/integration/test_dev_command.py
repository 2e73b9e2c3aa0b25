"""`halfbridge dev` as a user runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.ports import free_ports

pytestmark = pytest.mark.broker
_END_S_MAX = 60.0


def _start(directory: Path, ports: list[int], *words: str) -> subprocess.Popen[str]:
    kafka, web, metrics = map(str, ports)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "halfbridge", "dev", "--dir", str(directory), "--port", kafka),
            *("--web-port", web, "--metrics-port", metrics, *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_TOPIC")},
    )


def _topics(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).topics)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.feature
def test_one_command_runs_everything_and_ends_it(tmp_path: Path) -> None:
    """Broker, topics, daemon and page answer; Ctrl-C ends all; data is kept, or deleted first."""
    ports = list(free_ports(3))
    words = ("--topic", "orders", "--producer-group", "order-service", "--json")
    for more, expected in ((words, True), (("--json",), True), (("--json", "--fresh"), False)):
        running = _start(tmp_path, ports, *more)
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert line, running.communicate()[1]
            said = json.loads(line)
            topics = _topics(said["bootstrap_servers"])
            assert ("orders" in topics) == expected
            for url in (f"{said['page']}/livez", f"{said['metrics']}/readyz"):
                with urllib.request.urlopen(url, timeout=20) as answer:
                    assert answer.status == 200
            running.send_signal(signal.SIGINT)
            _, log = running.communicate(timeout=_END_S_MAX)
            assert running.returncode == 0, log
            assert "Traceback" not in log
        finally:
            running.kill()
            running.communicate()
        assert all(map(_is_free, ports))


@pytest.mark.parametrize("option", ["--port", "--web-port", "--metrics-port"])
def test_a_taken_port_is_one_clear_line(tmp_path: Path, option: str) -> None:
    """Each port is looked at before anything starts; the line names the option."""
    ports = dict(zip(("--port", "--web-port", "--metrics-port"), free_ports(3), strict=True))
    with socket.create_server(("127.0.0.1", ports[option])):
        running = _start(tmp_path, list(ports.values()))
        _, said = running.communicate(timeout=_END_S_MAX)
    assert running.returncode == 1
    assert said.count("\n") == 1
    assert f"port {ports[option]}" in said
    assert said.endswith(f"give another {option}\n")

"""The HTTP server with a daemon, on a real broker: its process, and full pages."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.adapter import system_ports
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.stack import DaemonProcess
from tests.integration.installation import GROUP, Installation
from tests.kit.http import answer_of
from tests.kit.processes import children_of
from tests.kit.waiting import until
from tests.kit.web import READ_TOKEN, WebStage, stage, token_file

pytestmark = pytest.mark.broker


def _stage(installation: Installation, directory: Path, **more: Any) -> WebStage:
    return stage(
        directory,
        bootstrap_servers=installation.servers,
        topic_prefix=installation.names.prefix,
        **more,
    )


def _ask(port: int, path: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        body: dict[str, Any] = json.loads(answer.read())
    return body


@pytest.mark.feature
def test_a_daemon_has_the_server_beside_it(installation: Installation, tmp_path: Path) -> None:
    """It reads the daemon's metrics, comes again when it dies, and ends with a killed daemon."""
    installation.make(groups=(GROUP,))
    metrics, admin = free_ports(2)
    daemon = DaemonProcess(
        CheckerConfig(
            bootstrap_servers=installation.servers,
            topic_prefix=installation.names.prefix,
            metrics_port=metrics,
            admin_port=admin,
            admin_tokens=token_file(tmp_path),
            state_dir=tmp_path,
        )
    )
    live = f"http://127.0.0.1:{admin}/livez"
    try:
        daemon.start()
        until("the server answers", lambda: answer_of(live)[0] == 200)
        until("a reading", lambda: _ask(admin, "/api/v1/overview")["read"], every_s=0.5)
        until(
            "its health", lambda: _ask(admin, "/api/v1/workers")["daemons"][0]["ready"], every_s=0.5
        )
        assert answer_of(f"http://127.0.0.1:{admin}/api/v1/overview")[0] == 401
        assert answer_of(f"http://127.0.0.1:{metrics}/healthz")[0] == 200
        process = daemon._process
        assert process is not None
        (server,) = children_of(process.pid)
        os.kill(server, signal.SIGKILL)
        until("the server is gone", lambda: server not in children_of(process.pid))
        until("another server answers", lambda: answer_of(live)[0] == 200)
        daemon.kill()
        until("the server ends with the daemon", lambda: answer_of(live)[0] == 0)
    finally:
        daemon.stop()


def test_topics_are_shown_with_what_is_wrong(installation: Installation, tmp_path: Path) -> None:
    """As `topics check` says it: well at first, then with the command that mends it."""
    installation.make(groups=(GROUP,))
    web = _stage(installation, tmp_path)
    with web.client(READ_TOKEN) as client:
        body = client.get("/api/v1/topics").json()
        assert body["ok"], body
    installation.alter(installation.names.half, cleanup_policy="compact")
    web = _stage(installation, tmp_path)
    with web.browser(READ_TOKEN) as browser:
        page = until("the report", lambda: _full(browser.get("/topics").text), every_s=0.5)
    assert "compact" in page


@pytest.mark.feature
def test_transactions_are_shown_from_their_begin_to_their_end(
    installation: Installation, tmp_path: Path
) -> None:
    """Listed while undecided, drawn with all events, and explained; strangers' text stays text."""
    installation.make(groups=(GROUP,))
    topic = installation.topic("orders")
    one, other = (system_ports().transaction_id() for _ in range(2))
    installation.pass_through(topic)
    installation.half(topic, one, producer_group="<b>group</b>")
    web = _stage(installation, tmp_path)
    with web.client(READ_TOKEN) as client:
        body = client.get("/api/v1/transactions").json()
        assert [each["id"] for each in body["transactions"]] == [one]
        assert (body["total"], body["next_offset"]) == (1, None)
        assert client.get("/api/v1/transactions?offset=1").json()["transactions"] == []
        assert client.get("/api/v1/transactions?group=none").json()["total"] == 0
        life = client.get(f"/api/v1/transactions/{one}").json()
        assert (life["state"], life["events"][0]["kind"]) == ("PREPARED", "half")
        reported = client.get(f"/api/v1/transactions/{one}/explain").json()
        assert reported["sentences"]
        missing = client.get(f"/api/v1/transactions/{other}")
        assert missing.status_code == 404
        assert client.get("/api/v1/transactions/no-time").status_code == 400
    web = _stage(installation, tmp_path)
    with web.browser(READ_TOKEN) as browser:
        page = until("the list", lambda: _full(browser.get("/transactions").text), every_s=0.5)
        assert f'href="/transactions/{one}"' in page
        assert "&lt;b&gt;group&lt;/b&gt;" in page
        assert "<b>" not in page
        found = browser.get(f"/transactions?id={one}")
        assert found.headers["location"] == f"/transactions/{one}"
        address = f"/transactions/{one}"
        page = until("the life", lambda: _full(browser.get(address).text), every_s=0.5)
        assert '<circle class="mark half"' in page
        assert reported["sentences"][0].split("<")[0] in page
        assert "<form" not in page.split("<main")[1]  # read-only


def test_the_doctor_says_what_is_wrong(installation: Installation, tmp_path: Path) -> None:
    """No worker runs: an error with the command that starts one, on the page and by the API."""
    installation.make(groups=(GROUP,))
    web = _stage(installation, tmp_path)
    with web.client(READ_TOKEN) as client:
        body = client.get("/api/v1/doctor").json()
        assert not body["ok"]
        assert "no-worker" in {each["code"] for each in body["findings"]}
    web = _stage(installation, tmp_path)
    with web.browser(READ_TOKEN) as browser:
        page = until("the findings", lambda: _full(browser.get("/doctor").text), every_s=0.5)
    assert "There are errors" in page
    assert "no-worker" in page


def _full(page: str) -> str:
    """Return a page that does not say that it is still being read; else nothing."""
    return "" if "Reading from Kafka" in page else page

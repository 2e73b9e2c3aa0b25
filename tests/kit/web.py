"""The HTTP server in a test: its application without a socket, tokens, and a clock to set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from halfbridge.web.app import make_app
from halfbridge.web.config import WebConfig
from halfbridge.web.services import Services

if TYPE_CHECKING:
    from pathlib import Path

    from httpx2 import Response

READ_TOKEN = "read-token-of-the-tests"
OPERATE_TOKEN = "operate-token-of-the-tests"
# A port on which nobody listens: a Kafka that does not answer.
NO_KAFKA = "127.0.0.1:1"


class ManualClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def token_file(directory: Path) -> Path:
    """Return a file with a token of each role."""
    path = directory / "tokens"
    path.write_text(f"read {READ_TOKEN} grafana\noperate {OPERATE_TOKEN} alice\n", "utf-8")
    path.chmod(0o600)
    return path


class WebStage:
    """A server's application, and clients of it.

    Args:
        config: Of the server.
        more: Further arguments of Services.
    """

    def __init__(self, config: WebConfig, **more: Any) -> None:
        self.clock = ManualClock()
        self.services = Services(config, monotonic=self.clock, **more)
        self.app = make_app(self.services)

    def client(self, token: str | None = None) -> TestClient:
        """Return a client that sends `token`, if any, and follows no redirects."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return TestClient(
            self.app,
            base_url="http://127.0.0.1",
            headers=headers,
            follow_redirects=False,
            raise_server_exceptions=False,
        )

    def browser(self, token: str) -> TestClient:
        """Return a client that has signed in with `token`."""
        browser = self.client()
        answer = post(browser, "/sign-in", token=token)
        assert answer.status_code == 303, answer.text
        return browser


def stage(directory: Path, **settings: Any) -> WebStage:
    """Return a server with the token file of the tests."""
    given = {"bootstrap_servers": NO_KAFKA, "admin_tokens": token_file(directory), **settings}
    return WebStage(WebConfig(**given))


def post(browser: TestClient, path: str, **fields: str) -> Response:
    """Send a form, as a browser does from a page of the server."""
    return browser.post(path, data=fields, headers={"Origin": "http://127.0.0.1"})


def csrf_of(page: str) -> str:
    """Return the CSRF token in a page's first form that has one."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, "the page has no form that changes anything"
    return found.group(1)

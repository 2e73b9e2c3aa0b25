"""The HTTP server in a test: its application without a socket, tokens, and a clock to set."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from httpx2 import ASGITransport, AsyncClient, Response
from starlette.testclient import TestClient

from halfbridge.testkit.memory import MemoryStack
from halfbridge.web.app import make_app
from halfbridge.web.config import WebConfig
from halfbridge.web.pages import page
from halfbridge.web.services import Services

READ_TOKEN = "read-token-of-the-tests"
OPERATE_TOKEN = "operate-token-of-the-tests"
READ_S_MAX = 60.0
# A port on which nobody listens: a Kafka that does not answer.
NO_KAFKA = "127.0.0.1:1"


class ManualClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
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
            self.app, base_url="http://127.0.0.1", headers=headers, follow_redirects=False
        )

    def browser(self, token: str) -> TestClient:
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


class Here(Executor):
    """Runs what is submitted at once, in the caller's thread: the broker in memory has only one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (handed on)
            future.set_exception(error)
        return future


class MemoryWeb:
    """A server of an installation in memory, and one browser or program that uses it.

    Args:
        stack: The installation.
        directory: For the token file.
        token: Who uses it; signed in on the page, and sent with each request to the API.
        settings: More of WebConfig.
    """

    def __init__(
        self, stack: MemoryStack, directory: Path, *, token: str = OPERATE_TOKEN, **settings: Any
    ) -> None:
        self.stack = stack
        machine = stack.machine
        prefix = stack.config.topic_prefix
        config = WebConfig(admin_tokens=token_file(directory), topic_prefix=prefix, **settings)
        ports = machine.ports(machine.process("the web server"))
        self.web = WebStage(config, ports=ports, pool=Here())
        self._cookies: dict[str, str] = {}
        self._token = token
        answer = self.post("/sign-in", token=token)
        assert answer.status_code == 303, answer.text
        self._cookies = dict(answer.cookies)

    def get(self, path: str) -> Response:
        """Ask for a page, or for something of the API."""
        return self._ask("GET", path)

    def post(self, path: str, **fields: Any) -> Response:
        """Send a form."""
        return self._ask("POST", path, data=fields, headers={"Origin": "http://127.0.0.1"})

    def call(self, path: str, **body: Any) -> Response:
        """Send JSON to the API."""
        return self._ask("POST", path, json=body)

    def csrf(self) -> str:
        """Return the CSRF token of the session."""
        session = self.web.services.gate.sessions.find(self._cookies["halfbridge_session"])
        assert session is not None
        return session.csrf

    def _ask(self, method: str, path: str, **more: Any) -> Response:
        self.web.clock.now_s += 1  # time for the next request
        if path.startswith("/api/"):
            more.setdefault("headers", {})["Authorization"] = f"Bearer {self._token}"

        async def ask() -> Response:
            transport = ASGITransport(self.web.app)
            async with AsyncClient(
                transport=transport, base_url="http://127.0.0.1", cookies=self._cookies
            ) as client:
                return await client.request(method, path, **more)

        # What is read in the caller's thread is never late, however slow the machine is.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page, "WAIT_S", READ_S_MAX)
            return asyncio.run(ask())

"""The overview is what daemons' metrics ports say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from halfbridge.checker.process.http import HttpServer, serve
from halfbridge.checker.status import Status
from halfbridge.web.config import WebConfig
from halfbridge.web.watch import READINGS_MAX, health_of
from tests.kit.web import NO_KAFKA, WebStage

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def status() -> Status:
    """Return what a daemon says of itself."""
    made = Status()
    made.set_ready(ready=True)
    return made


@pytest.fixture
def daemon(status: Status) -> Iterator[HttpServer]:
    """Return a daemon's metrics port."""
    server = serve(status.metrics.registry, status.snapshot)
    yield server
    server.close()


def _web(daemon: HttpServer, *more: str) -> WebStage:
    urls = (f"http://127.0.0.1:{daemon.port}", *more)
    return WebStage(WebConfig(bootstrap_servers=NO_KAFKA, metrics_urls=urls))


def test_the_page_shows_rates_and_health(daemon: HttpServer, status: Status) -> None:
    """Two readings ten seconds apart make a rate; the API says the same as the page."""
    web = _web(daemon)
    asyncio.run(web.services.watch.read())
    status.metrics.committed({"orders": 20_000})
    status.metrics.lag(3, "O", records=17)
    web.clock.now_s += 10
    asyncio.run(web.services.watch.read())
    page = web.client().get("/").text
    assert "2,000<small>/s" in page
    assert "Healthy" in page
    assert '<td>3</td><td class="n">17</td><td class="n">-</td>' in page
    body = web.client().get("/api/v1/overview").json()
    assert body["per_second"]["delivered"] == 2000
    assert body["retention_left_s"] is None
    assert body["lag"] == [{"partition": 3, "offset": "O", "records": 17}]
    workers = web.client().get("/api/v1/workers").json()
    assert [each["up"] for each in workers["workers"]] == [True]


def test_a_stopped_partition_and_a_silent_daemon_are_shown(
    daemon: HttpServer, status: Status
) -> None:
    """With the reason; what a stranger can have put into the reason is text."""
    status.stop_partition(2, "<b>offsets</b> are missing\u202e")
    web = _web(daemon, NOBODY)
    asyncio.run(web.services.watch.read())
    page = web.client().get("/").text
    assert "Partition 2: &lt;b&gt;offsets&lt;/b&gt; are missing\\u202e" in page
    assert "No answer" in page
    assert NOBODY in page


def test_the_first_reading_is_waited_for_without_a_page_that_hangs(daemon: HttpServer) -> None:
    """Before the first reading the page says so."""
    web = _web(daemon)
    assert "first reading" in web.client().get("/").text
    assert web.client().get("/api/v1/overview").json() == {"read": False, "daemons": []}


def test_a_server_without_daemons_says_how_to_name_them() -> None:
    """The overview needs a metrics port."""
    web = WebStage(WebConfig(bootstrap_servers=NO_KAFKA))
    assert "--metrics-urls" in web.client().get("/").text


def test_readings_are_bounded(daemon: HttpServer) -> None:
    """The page holds a quarter of an hour, whatever time it has run."""
    web = _web(daemon)

    async def read() -> None:
        for _ in range(READINGS_MAX + 3):
            await web.services.watch.read()

    asyncio.run(read())
    assert len(web.services.watch._readings) == READINGS_MAX


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"partition_errors": 5}', "<html>"])
def test_what_is_no_daemon_is_told(text: str) -> None:
    """Another program on the port shows as one."""
    found = health_of(NOBODY, text)
    assert found.healthy is None
    assert "not a daemon" in found.reason

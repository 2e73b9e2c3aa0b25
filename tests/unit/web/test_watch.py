"""Rates and latencies between readings."""

import asyncio
import math
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from halfbridge.checker.metrics import Metrics
from halfbridge.checker.process.http import HttpServer, serve
from halfbridge.checker.status import Status
from halfbridge.web.config import WebConfig
from halfbridge.web.watch import (
    RATE_S,
    READINGS_MAX,
    Reading,
    health_of,
    overview_of,
    quantile,
    reading_of,
)
from tests.kit.web import NO_KAFKA, WebStage


def _reading(at_s: float, delivered: float, **more: object) -> Reading:
    return Reading(at_s=at_s, counters={"delivered": delivered}, **more)


def test_one_reading_has_no_rate() -> None:
    """A daemon's total since its start is no rate."""
    found = overview_of([_reading(0, 5000)])
    assert found.rates["delivered"] is None
    assert found.history["delivered"] == ()


def test_a_rate_is_taken_over_the_last_minute() -> None:
    """Readings older than `RATE_S` are in the picture, and not in the number."""
    readings = [_reading(0, 0), _reading(10, 1000), _reading(RATE_S + 10, 1600)]
    found = overview_of(readings)
    assert found.rates["delivered"] == 10.0
    assert found.history["delivered"] == (100.0, 10.0)
    assert found.span_s == RATE_S + 10


def test_a_counter_that_fell_began_anew() -> None:
    """After a restart of the daemon no rate is negative."""
    found = overview_of([_reading(0, 1_000_000), _reading(10, 50)])
    assert found.rates["delivered"] == 5.0


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    """90 of 100 at most 10 ms, all at most 20 ms."""
    first = Reading(at_s=0, buckets={0.01: 10.0, 0.02: 10.0, math.inf: 10.0})
    last = Reading(at_s=1, buckets={0.01: 100.0, 0.02: 110.0, math.inf: 110.0})
    assert quantile(first, last, 0.5) == 0.01
    assert quantile(first, last, 0.99) == 0.02
    assert quantile(last, last, 0.5) is None
    assert quantile(last, first, 0.5) == 0.01  # the daemon restarted
    beyond = Reading(at_s=1, buckets={0.01: 10.0, math.inf: 20.0})
    assert quantile(Reading(at_s=0), beyond, 0.99) == math.inf
    assert quantile(Reading(at_s=0), Reading(at_s=1), 0.99) is None


# --- what the page takes from the text of /metrics -----------------------------------------

FLEET = """\
# TYPE halfbridge_worker_up gauge
halfbridge_worker_up{worker="a-0"} 1.0
halfbridge_worker_up{worker="a-1"} 0.0
"""


def _text() -> str:
    """Return a worker's own metrics, as the daemon writes them."""
    metrics = Metrics()
    metrics.committed({"orders": 3, "bills": 2})
    metrics.rolled_back({"orders": 1})
    metrics.half_messages({"orders": 7})
    metrics.finish_latencies_s([0.003, 0.004, 0.3])
    metrics.oldest_undecided_age_s(12.5)
    metrics.lag(0, "O", records=4)
    metrics.retention_left_s(0, 3600.0)
    metrics.retention_left_s(1, math.inf)
    metrics.dead_letters({"AGE": 2})
    metrics.partitions_stopped(1)
    return generate_latest(metrics.registry).decode()


def test_the_daemons_own_names_are_understood() -> None:
    """A metric that is renamed in the daemon fails here, and shows no 0 to an operator."""
    reading = reading_of([("http://a", _text())], at_s=5.0)
    assert reading.counters["delivered"] == 5
    assert reading.counters["rolled back"] == 1
    assert reading.counters["dead letters"] == 2
    assert reading.totals["undecided"] == 7
    assert reading.totals["stopped"] == 1
    assert reading.buckets[0.005] == 2
    assert reading.buckets[math.inf] == 3
    assert reading.oldest_s == 12.5
    assert reading.retention_s == 3600.0
    assert reading.lags == {(0, "O"): 4}
    assert reading.workers == {"http://a": True}


def test_daemons_add_up_and_a_silent_one_adds_nothing() -> None:
    """Counters are sums, the oldest is the oldest of all."""
    texts = [("http://a", _text()), ("http://b", _text() + FLEET), ("http://c", None)]
    reading = reading_of(texts, at_s=5.0)
    assert reading.counters["delivered"] == 10
    assert reading.oldest_s == 12.5
    assert reading.workers == {"http://a": True, "a-0": True, "a-1": False}


def test_another_programs_answer_is_refused() -> None:
    """An address that is no metrics port gives an error, and no numbers."""
    with pytest.raises(ValueError, match=r"html|float"):
        reading_of([("http://a", "<html>hello</html> {")], at_s=5.0)


# --- the overview is what daemons' metrics ports say ---------------------------------------

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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
def test_the_first_reading_is_waited_for_without_a_page_that_hangs(daemon: HttpServer) -> None:
    """Before the first reading the page shows that there is none."""
    web = _web(daemon)
    assert "first reading" in web.client().get("/").text
    assert web.client().get("/api/v1/overview").json() == {"read": False, "daemons": []}


def test_a_server_without_daemons_says_how_to_name_them() -> None:
    """The overview needs a metrics port."""
    web = WebStage(WebConfig(bootstrap_servers=NO_KAFKA))
    assert "--metrics-urls" in web.client().get("/").text


@pytest.mark.process
def test_readings_are_bounded(daemon: HttpServer) -> None:
    """The page holds a quarter of an hour, whatever time it has run."""
    web = _web(daemon)

    async def read() -> None:
        for _ in range(READINGS_MAX + 3):
            await web.services.watch.read()

    asyncio.run(read())
    assert len(web.services.watch._readings) == READINGS_MAX


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"partition_errors": 5}', "<html>"])
def test_what_is_no_daemon_is_reported(text: str) -> None:
    """Another program on the port shows as one."""
    found = health_of(NOBODY, text)
    assert found.healthy is None
    assert "not a daemon" in found.reason

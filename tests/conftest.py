"""What all tests share: marks that no test has to be given by hand, lanes, and a working Ctrl-C."""

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

# Fixtures that meet the Kafka that was chosen; the second takes the first when it is set up.
_KAFKA = {"kafka_bootstrap_servers", "halfbridge_stack"}
# Where tests need no service, unless a mark says so: `make test-fast` runs them.
_WITHOUT_SERVICE = re.compile(
    r"tests/(unit|property|conformance|simulation|ports|benchmarks)/|tests/test_"
)
_SERVICES = {"broker", "docker", "spark"}
# A guard against tests that hang, not of their speed: 200 kills take 10 minutes, or 20 another day.
_LONG_S_MAX = 3_600
# How files begin whose tests share more than a file: a Spark session, the ports of a compose file.
# The first that fits counts. Spark's tests have two lanes, so two sessions: in one lane they took
# 1,614 of the 1,628 s of `make test` (2 cores, 2026-11-27), and the other lanes ended 258 s before.
_LANES = ("tests/spark/test_sink", "tests/spark/", "tests/docker/")


def pytest_configure() -> None:
    """Have SIGINT end the processes that tests start, wherever the tests themselves run.

    A shell lets what it puts into the background ignore the signal, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `on_kafka` what meets the Kafka that was chosen, and no broker of its own.

    Mark `more` each test that uses a service and is not marked `feature`. So a new one does not
    make `make test` longer, unless its author wants that. Give each `long` test an hour, unless it
    has a time-out of its own.
    """
    for item in items:
        if _KAFKA & {*getattr(item, "fixturenames", ())}:
            item.add_marker("on_kafka")
        marks = {mark.name for mark in item.iter_markers()}
        needs_service = _SERVICES & marks or not _WITHOUT_SERVICE.match(item.nodeid)
        if needs_service and "feature" not in marks:
            item.add_marker("more")
        if "long" in marks and "timeout" not in marks:
            item.add_marker(pytest.mark.timeout(_LONG_S_MAX))


def lane_of(nodeid: str) -> str:
    """Return what the tests of one lane have in common: their file, for its brokers' sake."""
    file, _, _ = nodeid.partition("::")
    return next((lane for lane in _LANES if file.startswith(lane)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadgroup tests run in lanes, those of the most tests first: Spark's.

    xdist's own groups do nothing under pytest 9.2: xdist 3.8 writes them where pytest no longer
    looks (Node._nodeid), and splits each file over all lanes.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  (not there without lanes)

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lane_of
    return scheduler


@pytest.fixture
def installation(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Any]:
    """An installation without topics; whatever a test makes in it is gone afterwards."""
    from tests.integration.installation import Installation  # noqa: PLC0415  (unit tests need none)

    with closing(Installation(kafka_bootstrap_servers, topic_prefix)) as made:
        yield made

"""What all tests share: marks that no test has to be given by hand, and a working Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.integration.installation import Installation

# Directories whose tests share more than a file's: a Spark session, the ports of a compose file.
_SPARK = Path(__file__).with_name("spark")
_LANES = (_SPARK, Path(__file__).with_name("docker"))


# No test asserts on absolute time: on a busy machine an example takes as long as it takes.
settings.register_profile("halfbridge", deadline=None)
settings.load_profile("halfbridge")


def pytest_configure() -> None:
    """Have SIGINT end the processes that tests start, wherever the tests themselves run.

    A shell lets what it puts into the background ignore the signal, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `on_kafka` what meets the Kafka that was chosen, and no broker of its own.

    Where tests run in lanes, those of a file share one, for their brokers' sake. Spark's come
    first: they are the longest lane, and must not begin when the others end.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(_SPARK))  # stable
    for item in items:
        lane = next((each for each in _LANES if item.path.is_relative_to(each)), item.path)
        item.add_marker(pytest.mark.xdist_group(str(lane)))
        if "kafka_bootstrap_servers" in getattr(item, "fixturenames", ()):
            item.add_marker("on_kafka")


@pytest.fixture
def installation(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Installation]:
    """An installation without topics; whatever a test makes in it is gone afterwards."""
    from tests.integration.installation import Installation  # noqa: PLC0415  (unit tests need none)

    with closing(Installation(kafka_bootstrap_servers, topic_prefix)) as made:
        yield made

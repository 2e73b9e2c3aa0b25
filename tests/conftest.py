"""What all tests share: a mark that no test has to be given by hand, and a working Ctrl-C."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Have SIGINT end the processes that tests start, wherever the tests themselves run.

    A shell lets what it puts into the background ignore the signal, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `on_kafka` what meets the Kafka that was chosen, and no broker of its own."""
    for item in items:
        if "kafka_bootstrap_servers" in getattr(item, "fixturenames", ()):
            item.add_marker("on_kafka")

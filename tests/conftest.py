"""What all tests share: a mark that no test has to be given by hand."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `on_kafka` what meets the Kafka that was chosen, and no broker of its own."""
    for item in items:
        if "kafka_bootstrap_servers" in getattr(item, "fixturenames", ()):
            item.add_marker("on_kafka")

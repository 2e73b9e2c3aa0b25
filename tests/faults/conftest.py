"""Fixtures of the fault tests: a stage on the session's Kafka, or on a broker of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.children import Children, Interrupts
from tests.faults.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halfbridge.testkit.broker import EmbeddedBroker


@contextmanager
def _staged(servers: str, prefix: str, directory: Path) -> Iterator[Stage]:
    with Children(directory, interrupts=Interrupts(), keep_directory=True) as children:
        stage = Stage(servers, prefix, directory, children)
        yield stage
    stage.close()


@pytest.fixture
def stage(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """Yield a stage without topics; its processes have ended and its topics are gone afterwards."""
    with _staged(kafka_bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker of the test's own, which it may stop, restart and kill."""
    from halfbridge.testkit.broker import EmbeddedBroker  # noqa: PLC0415 (needs Java)

    with EmbeddedBroker() as started:
        yield started


@pytest.fixture
def own_stage(broker: EmbeddedBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """Yield a stage on `broker`."""
    with _staged(broker.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made

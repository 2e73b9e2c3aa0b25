"""Fixtures that several integration tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.daemon import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def installation(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Installation]:
    """An installation without topics; whatever a test makes in it is gone afterwards."""
    made = Installation(kafka_bootstrap_servers, topic_prefix)
    try:
        yield made
    finally:
        made.close()

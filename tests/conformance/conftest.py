"""The installation that cases on a real broker use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.installation import GROUP, Installation

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def installation(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Installation]:
    """Yield an installation with two pairs, the group's check topic and a real topic `orders`."""
    made = Installation(kafka_bootstrap_servers, topic_prefix)
    try:
        made.make(partitions=2, groups=(GROUP,))
        made.topic("orders", partitions=2)
        yield made
    finally:
        made.close()

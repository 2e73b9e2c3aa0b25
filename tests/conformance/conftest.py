"""The installation that cases on a real broker use."""

import pytest

from tests.integration.installation import GROUP, Installation


@pytest.fixture
def installation(installation: Installation) -> Installation:
    """Two pairs, the group's check topic and a real topic `orders`."""
    installation.make(partitions=2, groups=(GROUP,))
    installation.topic("orders", partitions=2)
    return installation

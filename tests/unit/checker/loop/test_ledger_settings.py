"""What the daemon knows of topics' limits before it has tried them."""

from __future__ import annotations

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.assignment import known_limits


@pytest.mark.parametrize(
    ("kafka", "known"),
    [
        ({}, 100),
        ({"compression.type": "none"}, 100),
        ({"compression.type": "zstd"}, None),
        ({"compression.codec": "lz4"}, None),
    ],
)
def test_sizes_are_tried_where_the_daemon_compresses(
    kafka: dict[str, str], known: int | None
) -> None:
    """A record of 3 MB may well fit into a topic that takes 1 MB."""
    limits = known_limits(CheckerConfig(kafka=kafka), lambda _topic: 100)
    assert limits("orders") == known

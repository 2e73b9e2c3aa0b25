"""Names of topics and groups, and which of them can never be a real topic."""

from __future__ import annotations

import pytest

from serde.topics import TopicNames


def test_names_are_rocketmqs() -> None:
    """Without a prefix operators find the names they know."""
    names = TopicNames()
    assert names.half == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert names.op == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    assert names.dead == "TRANS_CHECK_MAX_TIME_TOPIC"
    assert names.manifest == "RMQ_SYS_TRANS_MANIFEST_TOPIC"
    assert names.daemon_group == "CID_RMQ_SYS_TRANS"
    assert names.check("orders") == "RMQ_SYS_TRANS_CHECK_orders"
    assert names.check_group("orders") == "CID_orders"


def test_a_prefix_keeps_installations_apart() -> None:
    """Every name begins with it."""
    names = TopicNames("eu.")
    every = (names.half, names.op, names.dead, names.manifest, names.daemon_group)
    assert all(
        name.startswith("eu.") for name in (*every, names.check("g"), names.check_group("g"))
    )


@pytest.mark.parametrize("prefix", ["", "eu.", "orders"])
@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("RMQ_SYS_TRANS_CHECK_orders", True),
        ("RMQ_SYS_TRANS_MANIFEST_TOPIC", True),
        ("RMQ_SYS_whatever", True),
        ("TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("__consumer_offsets", True),
        ("orders", False),
        ("TRANS_CHECK_MAX_TIME_TOPIC_2", False),
        ("_schemas", False),
    ],
)
def test_internal_topics_are_known(prefix: str, topic: str, *, internal: bool) -> None:
    """Ours with or without the prefix, and the cluster's own, are never delivered to."""
    names = TopicNames(prefix)
    assert names.is_internal(topic) is internal
    if topic != "orders":
        assert names.is_internal(prefix + topic) is internal

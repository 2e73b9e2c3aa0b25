"""Names of topics and groups, and which of them can never be a real topic."""

import pytest

from halfbridge.serde.topics import TopicNames, holds_internal_name


def test_names_are_rocketmqs() -> None:
    """Without a prefix operators find the names they know."""
    names = TopicNames()
    assert names.half == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert names.op == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    assert names.dead == "TRANS_CHECK_MAX_TIME_TOPIC"
    assert names.manifest == "RMQ_SYS_TRANS_MANIFEST_TOPIC"
    assert names.settings == "RMQ_SYS_TRANS_SETTINGS_TOPIC"
    assert names.audit == "RMQ_SYS_TRANS_AUDIT"
    assert names.daemon_group == "CID_RMQ_SYS_TRANS"
    assert names.check("orders") == "RMQ_SYS_TRANS_CHECK_orders"
    assert names.check_group("orders") == "CID_orders"


def test_a_prefix_keeps_installations_apart() -> None:
    """Every name begins with it."""
    names = TopicNames("eu.")
    every = (names.half, names.op, names.dead, names.manifest, names.settings, names.audit)
    groups = (names.daemon_group, names.check_group("g"))
    assert all(name.startswith("eu.") for name in (*every, names.check("g"), *groups))


def test_installations_are_found_by_their_half_topics() -> None:
    """Op topics, whose name ends alike, are none; neither is a topic that only begins so."""
    every = [TopicNames(), TopicNames("eu.")]
    topics = [each.half for each in every] + [each.op for each in every]
    assert TopicNames.found_in([*topics, "orders", "RMQ_SYS_TRANS_HALF_TOPIC_2"]) == every


@pytest.mark.parametrize("prefix", ["", "eu.", "orders"])
@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("RMQ_SYS_TRANS_CHECK_orders", True),
        ("RMQ_SYS_TRANS_MANIFEST_TOPIC", True),
        ("RMQ_SYS_TRANS_SETTINGS_TOPIC", True),
        ("RMQ_SYS_TRANS_AUDIT", True),
        ("RMQ_SYS_whatever", True),
        ("TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("__consumer_offsets", True),
        ("staging.RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("staging.RMQ_SYS_TRANS_CHECK_orders", True),
        ("staging.TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("orders", False),
        ("TRANS_CHECK_MAX_TIME_TOPIC_2", False),
        ("_schemas", False),
    ],
)
def test_internal_topics_are_known(prefix: str, topic: str, *, internal: bool) -> None:
    """Those of any installation, whatever its prefix, and the cluster's own."""
    names = TopicNames(prefix)
    assert names.is_internal(topic) is internal
    if topic != "orders":
        assert names.is_internal(prefix + topic) is internal


@pytest.mark.parametrize("prefix", ["", "eu.", "CID_"])
@pytest.mark.parametrize("group", ["RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS", "x-RMQ_SYS_TRANS"])
def test_no_producer_group_is_asked_in_a_daemons_group(prefix: str, group: str) -> None:
    """Of this installation or another one: names that could make such a group are known."""
    assert TopicNames("").check_group("RMQ_SYS_TRANS") == TopicNames("").daemon_group
    assert TopicNames(prefix).check_group(group).endswith(TopicNames("").daemon_group[4:])
    assert holds_internal_name(group)
    assert not holds_internal_name("orders-service")

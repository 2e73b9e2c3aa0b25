"""Names of topics and groups, and which of them can never be a real topic."""

import pytest

from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.settings_topic import (
    REASON_BYTES_MAX,
    SWITCH_BYTES_MAX,
    TYPE_BYTES_MAX,
    TopicType,
    TopicTypeRecord,
    TransactionsSwitch,
    decode_switch,
    decode_type,
    encode_switch,
    encode_type,
    topic_of,
    type_key,
)
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


# --- types of real topics: golden bytes, keys, and what a reader refuses -------------------

TYPE_V1 = TopicTypeRecord(type=TopicType.PLAIN, at_ms=1_700_000_000_123, who="ada@host-7")

# Never changed: what was written once must be readable for ever.
GOLDEN = "c3015d4766804a736e8802f6a1abfef9621461646140686f73742d37"


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_type(TYPE_V1).hex() == GOLDEN
    assert decode_type(bytes.fromhex(GOLDEN)) == TYPE_V1


def test_keys_name_their_topic() -> None:
    """Other keys of the settings topic name none, and neither do names that no topic has."""
    assert topic_of(type_key("orders")) == "orders"
    for key in (None, b"daemon", b"transactions", b"topic", type_key("x" * 250)):
        assert topic_of(key) is None


def test_what_is_not_a_type_is_refused() -> None:
    """Cut off anywhere, or too long."""
    whole = bytes.fromhex(GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_type(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_type(whole + bytes(TYPE_BYTES_MAX))


# --- the operators' switch: golden bytes, bounded texts, and what a reader refuses ---------

SWITCH_V1 = TransactionsSwitch(
    is_rejecting=True, at_ms=1_700_000_000_123, who="ada@host-7", reason="the database moves"
)

# Never changed: what was written once must be readable for ever.
SWITCH_GOLDEN = (
    "c301a2981e5349f0e05001f6a1abfef9621461646140686f73742d3724746865206461746162617365206d6f766573"
)


def test_the_bytes_of_the_switch_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_switch(SWITCH_V1).hex() == SWITCH_GOLDEN
    assert decode_switch(bytes.fromhex(SWITCH_GOLDEN)) == SWITCH_V1


def test_texts_are_bounded() -> None:
    """A long reason is cut, and says so; the record fits."""
    data = encode_switch(SWITCH_V1._replace(who="\udcff" * 9_000, reason="ä" * 9_000))
    assert len(data) <= SWITCH_BYTES_MAX
    assert len(decode_switch(data).reason.encode()) <= REASON_BYTES_MAX
    assert decode_switch(data).reason.endswith("(cut)")


def test_what_is_not_a_switch_is_refused() -> None:
    """Cut off anywhere, too long or of a newer schema."""
    whole = bytes.fromhex(SWITCH_GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_switch(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_switch(whole + bytes(SWITCH_BYTES_MAX))
    with pytest.raises(UnknownSchemaError):
        decode_switch(whole[:2] + bytes(8) + whole[10:])

"""The allow-list: which group may deliver to which real topic."""

from pathlib import Path

import pytest

from halfbridge.checker.policy import Policy, load_policy
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.partitioner import Partitioner
from halfbridge.serde.settings_topic import TopicType
from halfbridge.serde.topics import TopicNames

NAMES = TopicNames("eu.")


def _policy(directory: Path, text: str) -> Policy:
    path = directory / "policy.toml"
    path.write_text(text)
    return load_policy(path, names=NAMES)


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "eu.RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "eu.RMQ_SYS_anything",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "eu.TRANS_CHECK_MAX_TIME_TOPIC",
        "__consumer_offsets",
    ],
)
def test_internal_topics_are_always_refused(tmp_path: Path, topic: str) -> None:
    """No file can open an internal topic."""
    assert not load_policy(None, names=NAMES).allows("g", topic)
    assert not _policy(tmp_path, 'default = "allow"\n[groups]\ng = ["*"]').allows("g", topic)


def test_without_a_file_all_other_topics_are_allowed() -> None:
    """No policy file: any group may deliver to any topic that is not internal."""
    assert load_policy(None, names=NAMES).allows("any", "orders")


def test_listed_group_may_deliver_to_its_topics_only(tmp_path: Path) -> None:
    """Names match as a whole; `*` matches any characters; a dot matches a dot."""
    policy = _policy(tmp_path, '[groups]\n"orders-service" = ["orders", "invoices-*", "a.b"]')

    assert policy.allows("orders-service", "orders")
    assert policy.allows("orders-service", "invoices-")
    assert policy.allows("orders-service", "invoices-2026")
    assert policy.allows("orders-service", "a.b")
    assert not policy.allows("orders-service", "a-b")
    assert not policy.allows("orders-service", "orders2")
    assert not policy.allows("orders-service", "my-invoices-1")


def test_group_that_is_not_listed_follows_the_default(tmp_path: Path) -> None:
    """The default is deny unless the file sets another."""
    assert not _policy(tmp_path, "[groups]").allows("other", "orders")
    assert not _policy(tmp_path, 'default = "deny"').allows("other", "orders")
    assert _policy(tmp_path, 'default = "allow"').allows("other", "orders")


def test_default_does_not_widen_a_listed_group(tmp_path: Path) -> None:
    """A listed group may deliver only to the topics of its list, with an empty list to none."""
    policy = _policy(tmp_path, 'default = "allow"\n[groups]\na = ["orders"]\nb = []')

    assert not policy.allows("a", "other")
    assert not policy.allows("b", "orders")
    assert not policy.allows("b", "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("group = {}", "groups"),
        ('default = "maybe"', "maybe"),
        ("default = true", "True"),
        ('groups = ["a"]', "groups"),
        ('[groups]\na = "orders"', "list"),
        ('[groups]\na = ["or ders"]', "or ders"),
        ('[groups]\na = [""]', "''"),
        ("[groups", "TOML"),
    ],
)
def test_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, named: str) -> None:
    """The error names the file and the part to correct."""
    with pytest.raises(ConfigError, match=named) as caught:
        _policy(tmp_path, text)

    assert "policy" in str(caught.value)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """A missing policy file is an error, and does not allow everything."""
    with pytest.raises(ConfigError, match="policy_file"):
        load_policy(tmp_path / "absent.toml", names=NAMES)


def test_keys_are_placed_by_murmur2_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """Topics match as a whole; of several patterns the first one in the file applies."""
    policy = _policy(
        tmp_path,
        """
        default = "allow"
        [partitioners]
        "legacy-new" = "murmur2"
        "legacy-*" = "consistent_random"
        "orders" = "consistent_random"
        """,
    )

    assert policy.partitioner("legacy-") is Partitioner.CONSISTENT_RANDOM
    assert policy.partitioner("legacy-orders") is Partitioner.CONSISTENT_RANDOM
    assert policy.partitioner("orders") is Partitioner.CONSISTENT_RANDOM
    assert policy.partitioner("legacy-new") is Partitioner.MURMUR2
    assert policy.partitioner("orders-2") is Partitioner.MURMUR2
    assert policy.partitioner("my-legacy-1") is Partitioner.MURMUR2
    assert policy.allows("any", "orders")
    assert load_policy(None, names=NAMES).partitioner("orders") is Partitioner.MURMUR2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[groups]\n[partitioners]\norders = "crc32"', "orders = 'crc32'"),
        ("[groups]\n[partitioners]\norders = 1", "orders = 1"),
        ('[groups]\n[partitioners]\n"a b" = "murmur2"', "partitioners: 'a b'"),
        ('partitioners = "murmur2"\n[groups]', "partitioners = 'murmur2'"),
    ],
)
def test_a_wrong_partitioner_is_named(tmp_path: Path, text: str, named: str) -> None:
    """The error names the wrong value or topic."""
    with pytest.raises(ConfigError) as raised:
        _policy(tmp_path, text)
    assert named in str(raised.value)


def test_partitioners_alone_do_not_refuse_all_deliveries(tmp_path: Path) -> None:
    """A file with partitioners but neither `default` nor groups is an error."""
    text = '[partitioners]\norders = "consistent_random"'
    with pytest.raises(ConfigError, match='default = "allow" or "deny"'):
        _policy(tmp_path, text)
    assert _policy(tmp_path, f'default = "allow"\n{text}').allows("any", "orders")


def test_a_plain_topic_takes_no_transaction(tmp_path: Path) -> None:
    """Plain topics are denied to all groups; untyped ones are not; the first pattern applies."""
    policy = _policy(
        tmp_path,
        'default = "allow"\n[groups]\ng = ["*"]\n[topics]\n"orders" = "transaction"\n'
        '"clicks-eu" = "transaction"\n"clicks-*" = "plain"',
    )
    for group in ("g", "other"):
        allowed = [
            each
            for each in ("orders", "clicks-eu", "clicks-us", "rest")
            if policy.allows(group, each)
        ]
        assert allowed == ["orders", "clicks-eu", "rest"]
    assert policy.type_of("orders") is TopicType.TRANSACTION
    assert policy.type_of("rest") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[topics]\n"a" = "plain"', 'default = "allow" or "deny" beside them'),
        ('default = "allow"\n[topics]\n"a" = "mixed"', "'transaction' or 'plain'"),
        ('default = "allow"\n[topics]\n"a b" = "plain"', "topic names of letters"),
        ('default = "allow"\ntopics = 1', r"a table, \[topics\], of types"),
    ],
)
def test_wrong_types_are_refused(tmp_path: Path, text: str, wanted: str) -> None:
    """An invalid table of types is an error that says what is allowed."""
    with pytest.raises(ConfigError, match=wanted):
        _policy(tmp_path, text)

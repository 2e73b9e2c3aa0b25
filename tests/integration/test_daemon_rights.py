"""Rights that the daemon lacks: on a real topic, on its group, on its own topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from halfbridge.serde.records import DeadReason
from tests.integration.daemon import Daemon
from tests.integration.installation import GROUP, Installation
from tests.integration.refusals import around, expect
from tests.kit.waiting import CALL_S, until

pytestmark = pytest.mark.broker
EVERYBODY = "User:ANONYMOUS"
TOPIC_GONE_MS = 5_000


@pytest.fixture
def guarded(guarded_servers: str, topic_prefix: str) -> Iterator[Installation]:
    """An installation on the broker that checks rights."""
    made = Installation(guarded_servers, topic_prefix)
    try:
        yield made
    finally:
        _allow_all(made)
        made.close()


def _allow_all(installation: Installation) -> None:
    everything = AclBindingFilter(
        ResourceType.ANY,
        *(None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY),
    )
    installation.admin.delete_acls([everything])[everything].result()


def _deny(
    installation: Installation, kind: ResourceType, name: str, operation: AclOperation
) -> None:
    """Take one right on a resource away and leave all others."""

    def binding(what: AclOperation, permission: AclPermissionType) -> AclBinding:
        literal = ResourcePatternType.LITERAL
        return AclBinding(kind, name, literal, EVERYBODY, "*", what, permission)

    acls = [
        binding(AclOperation.ALL, AclPermissionType.ALLOW),
        binding(operation, AclPermissionType.DENY),
    ]
    for future in installation.admin.create_acls(acls).values():
        future.result()


def test_no_right_on_the_real_topic(guarded: Installation) -> None:
    """Transactions for that topic wait, and are dead-lettered then; no others are."""
    guarded.make()
    orders, forbidden = guarded.topic("orders"), guarded.topic("forbidden")
    _deny(guarded, ResourceType.TOPIC, forbidden, AclOperation.WRITE)
    bad = [guarded.half(forbidden) for _ in range(3)]
    good = around(guarded, orders, bad)

    daemon = guarded.start(topic_gone_ms=TOPIC_GONE_MS)
    until("it is named", lambda: "may not be written" in str(daemon.healthz()[1]))
    assert f"topic {forbidden}" in str(daemon.healthz()[1])
    expect(guarded, orders, good=good, bad=bad)
    until("health is green", lambda: daemon.healthz()[0] == 200)
    # Rights are asked for: a kafka_txn that fails has all pairs of its worker read again.
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0


def test_a_right_that_comes_in_time(guarded: Installation) -> None:
    """What waits for it is delivered, in order, and nothing is dead-lettered."""
    guarded.make()
    orders, closed = guarded.topic("orders"), guarded.topic("closed")
    _deny(guarded, ResourceType.TOPIC, closed, AclOperation.WRITE)
    waiting = [guarded.pass_through(closed) for _ in range(3)]
    guarded.start()
    half = guarded.pass_through(orders)
    assert [each.transaction_id for each in guarded.tail(orders).until(1)] == [half.transaction_id]
    _allow_all(guarded)
    found = [each.transaction_id for each in guarded.tail(closed).until(3)]
    assert found == [each.transaction_id for each in waiting]
    assert guarded.dead_letters() == []


def test_no_right_on_the_group_is_reported(guarded: Installation) -> None:
    """The client says so among the records only; once the right is back, all is well again."""
    guarded.make()
    orders = guarded.topic("orders")
    group = guarded.names.daemon_group
    _deny(guarded, ResourceType.GROUP, group, AclOperation.READ)
    daemon = guarded.launch()
    until("health is red", lambda: daemon.healthz()[0] == 503)
    assert "group" in str(daemon.healthz()[1]).lower()
    _allow_all(guarded)
    half = guarded.pass_through(orders)
    assert [each.transaction_id for each in guarded.tail(orders).until(1)] == [half.transaction_id]
    until("health is green", lambda: daemon.healthz()[0] == 200)


def test_settings_that_cannot_be_read_stop_nothing(
    guarded: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """One line is logged; wrong settings of these topics are not noticed."""
    guarded.make()
    orders, names = guarded.topic("orders"), guarded.names
    guarded.alter(names.half, retention_ms="1000000")
    for topic in (names.half, names.op, names.dead):
        _deny(guarded, ResourceType.TOPIC, topic, AclOperation.DESCRIBE_CONFIGS)
    daemon = guarded.start()
    half = guarded.pass_through(orders)
    assert [each.transaction_id for each in guarded.tail(orders).until(1)] == [half.transaction_id]
    assert daemon.healthz()[0] == 200
    (line,) = (text for each in caplog.records if "cannot be read" in (text := each.getMessage()))
    assert all(topic in line for topic in (names.half, names.op, names.dead))


@pytest.mark.parametrize(
    "operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE]
)
def test_no_right_on_the_settings_topic(
    guarded: Installation, operation: AclOperation, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon says once what is missing, and delivers; nothing needs an operator."""
    guarded.make()
    orders, settings = guarded.topic("orders"), guarded.names.settings
    _deny(guarded, ResourceType.TOPIC, settings, operation)
    daemon = guarded.start()
    guarded.pass_through(orders)
    guarded.tail(orders).until(1)

    def reported() -> list[str]:
        lines = [each.getMessage() for each in list(caplog.records)]
        return [line for line in lines if line.startswith("settings record: ")]

    until("it is reported", reported)
    assert "TOPIC_AUTHORIZATION_FAILED" in reported()[0]
    assert daemon.healthz()[0] == 200


@pytest.mark.parametrize(
    ("kind", "resource", "operation"),
    [
        (ResourceType.TOPIC, "half", AclOperation.READ),
        (ResourceType.TOPIC, "op", AclOperation.READ),
        (ResourceType.TOPIC, "dead", AclOperation.WRITE),
        (ResourceType.GROUP, "daemon_group", AclOperation.READ),
    ],
)
def test_lost_rights_of_its_own_lose_nothing(
    guarded: Installation, kind: ResourceType, resource: str, operation: AclOperation
) -> None:
    """The daemon backs off and turns red; when the right is back, it continues where it stopped."""
    guarded.make()
    orders = guarded.topic("orders")
    daemon = guarded.start()
    before = guarded.pass_through(orders)
    guarded.tail(orders).until(1)
    _deny(guarded, kind, getattr(guarded.names, resource), operation)
    guarded.write(guarded.names.half, b"junk")
    behind = guarded.pass_through(orders)
    until("health is red", lambda: _red(daemon))

    _allow_all(guarded)
    records = guarded.tail(orders).until(2)

    assert [each.transaction_id for each in records] == [
        before.transaction_id,
        behind.transaction_id,
    ]
    guarded.await_marker()
    assert [each.value for each in guarded.dead_letters()] == [b"junk"]
    until("health is green", lambda: not _red(daemon))


def _red(daemon: Daemon) -> bool:
    return daemon.healthz()[0] == 503


# --- who may deliver where: a commit that may not be applied becomes a dead letter (rule 6)

PARTITIONS = 6
KEYS = [f"customer-{number}".encode() for number in range(100)]
EMPTY = 20  # that all of them go to one partition by chance: 6 ** -19


@pytest.mark.feature
def test_the_policy_file_is_enforced(installation: Installation, tmp_path: Path) -> None:
    """A group's commit to a topic that it may not write to is never delivered, never lost."""
    installation.make()
    orders, secret = installation.topic("orders"), installation.topic("secret")
    fence = installation.real("fence")
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[groups]\n"{GROUP}" = ["{orders}", "{fence}"]\n', "utf-8")
    daemon = installation.start(policy_file=policy)
    allowed = installation.pass_through(orders)
    refused = installation.pass_through(secret, value=b"\x00", headers=[("h", None)])
    stranger = installation.half(orders, producer_group="stranger")
    installation.commit(stranger, producer_group="stranger")
    mixed = installation.half(orders)
    last = installation.half(secret, mixed.transaction_id, message_index=1)
    installation.commit(last, message_count=2)

    installation.await_marker()
    letters = installation.dead(4)

    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [allowed.transaction_id]
    assert installation.tail(secret).to_end() == []
    assert {each.dead.reason for each in letters} == {DeadReason.NOT_ALLOWED}
    assert [each.half.transaction_id for each in letters] == [
        refused.transaction_id,
        stranger.transaction_id,
        mixed.transaction_id,
        mixed.transaction_id,
    ]
    assert (letters[0].value, letters[0].headers[0]) == (b"\x00", ("h", None))
    assert secret in letters[0].dead.detail
    daemon.counts("halfbridge_dead_letters_total", 4, reason="NOT_ALLOWED")


def test_internal_topics_are_never_real(installation: Installation) -> None:
    """No half of a forged kind reaches the daemon's topics or the cluster's own."""
    installation.make()
    names = installation.names
    forged = [
        names.half,
        names.op,
        names.dead,
        names.check(GROUP),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "__consumer_offsets",
        "__transaction_state",
        f"{names.prefix}__mine",
    ]
    installation.start()
    for topic in forged:
        installation.pass_through(topic)

    installation.await_marker()
    letters = installation.dead(len(forged))

    assert [each.half.real_topic for each in letters] == forged
    assert {each.dead.reason for each in letters} == {DeadReason.NOT_ALLOWED}
    # The forged ones and the fence, and nothing that the daemon added.
    assert len(installation.tail(names.half).to_end()) == len(forged) + 1
    assert len(installation.tail(names.op).to_end()) == len(forged) + 1


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2"])
def test_keys_go_where_other_producers_put_them(
    installation: Installation, tmp_path: Path, partitioner: str
) -> None:
    """A key has the same partition as with a plain producer, of librdkafka's default or Java's.

    Keys for which librdkafka draws a random partition are spread.
    """
    installation.make()
    theirs = installation.topic("theirs", partitions=PARTITIONS)
    ours = installation.topic("ours", partitions=PARTITIONS)
    policy = tmp_path / "policy.toml"
    policy.write_text(f'default = "allow"\n[partitioners]\n"{ours}" = "{partitioner}"\n', "utf-8")
    plain = {} if partitioner == "consistent_random" else {"partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": installation.servers, **plain})
    for key in KEYS:
        producer.produce(theirs, b"value", key)
    assert producer.flush(CALL_S) == 0

    installation.start(policy_file=policy)
    for key in (*KEYS, *[None] * EMPTY, *[b""] * EMPTY):
        installation.pass_through(ours, key=key)
    records = installation.tail(ours).until(len(KEYS) + 2 * EMPTY)

    placed = {each.key: each.partition for each in installation.tail(theirs).until(len(KEYS))}
    assert len(set(placed.values())) == PARTITIONS
    assert {each.key: each.partition for each in records if each.key} == placed
    anywhere = {each.partition for each in records if each.key == b""}
    assert (len(anywhere) > 1) == (partitioner == "consistent_random")
    assert sum(each.key is None for each in records) == EMPTY

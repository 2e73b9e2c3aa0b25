"""Who may deliver where: a commit that may not be applied becomes a dead letter (rule 6)."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from halfbridge.serde.records import DeadReason
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import CALL_S

pytestmark = pytest.mark.broker

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

    installation.fence()
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

    installation.fence()
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
    """A plain confluent-kafka producer, or one told to do as Java does: the same key, the same
    partition; what librdkafka draws lots for is spread.
    """  # noqa: D205
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

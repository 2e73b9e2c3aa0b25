"""Generations of the group: what one of them may not do any more, or not yet, and many of them."""

import random
import threading
import time
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import Layout
from halfbridge.checker.admin.topics import create_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.process.slots import slot_ids
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.ports import Committed
from tests.faults.stage import Stage, seed_of_run
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_STEP_S = 0.05
_JOIN_S = 60.0
_NO_GENERATION = -1
# librdkafka's text of group metadata: a mark, the generation, then group, member and instance.
_MARK = b"CGMDv2:"
_GENERATION_BYTES = 4
_ROUNDS = 12
# The guest leaves within the rebalance, or after it.
_STAYS_S = (0.0, 1.5)


@pytest.fixture
def config(kafka_bootstrap_servers: str, topic_prefix: str) -> CheckerConfig:
    """Return the settings of a daemon whose topics are there."""
    config = CheckerConfig(
        bootstrap_servers=kafka_bootstrap_servers,
        topic_prefix=topic_prefix,
        session_timeout_ms=6000,
    )
    layout = Layout(partitions=2, replication_factor=1, producer_groups=())
    create_topics(Cluster(kafka_bootstrap_servers), config.names, layout)
    return config


def _reader(config: CheckerConfig, slot: str) -> Input:
    return Input(config, slot_ids(slot, topic_prefix=config.topic_prefix), system_ports())


def generation(metadata: bytes) -> int:
    """Return the generation in group metadata."""
    assert metadata.startswith(_MARK)
    text = metadata[len(_MARK) :][:_GENERATION_BYTES]
    return int.from_bytes(text, "little", signed=True)


def _commit(config: CheckerConfig, metadata: Any) -> None:
    """Commit an offset of the op topic in a kafka_txn of its own."""
    transactor = Transactor(config, f"{config.topic_prefix}id", ports=system_ports())
    transactor.start()
    try:
        transactor.write([])
        transactor.commit([(config.names.op, 0, 7, "")], metadata)
    finally:
        transactor.close()


def test_case_11_metadata_of_no_or_another_generation(config: CheckerConfig) -> None:
    """Before the join there is none to commit with; after a rebalance the old one is refused.

    The client would hand over metadata without a generation, with which brokers commit whatever
    is asked: so it counts that ours is never taken before the assignment.
    """
    place = (config.names.op, 0)
    first = _reader(config, "first")
    assert first.membership is None
    with pytest.raises(TypeError):
        _commit(config, first.membership)
    alone: Any = Consumer({"bootstrap.servers": config.bootstrap_servers, "group.id": "alone"})
    assert generation(alone.consumer_group_metadata()) == _NO_GENERATION
    alone.close()

    def joined() -> bool:
        first.fetch(_STEP_S)
        # From the first moment on, a member with partitions has their generation.
        has = first.membership is not None
        assert has == bool(first.assigned)
        assert not has or generation(first.membership) > 0
        return has

    until("one joins", joined, within_s=_JOIN_S)
    planted = first.membership
    second = _reader(config, "second")

    def shared() -> bool:
        first.fetch(_STEP_S)
        second.fetch(_STEP_S)
        return bool(second.assigned) and len(first.assigned) == len(second.assigned)

    until("both share the partitions", shared, within_s=_JOIN_S)
    assert generation(first.membership) > generation(planted)
    before = first.committed([place])[place]
    with pytest.raises(KafkaTxnFailedError):
        _commit(config, planted)
    assert first.committed([place])[place] == before != Committed(7, "")

    _commit(config, first.membership)
    assert first.committed([place])[place] == Committed(7, "")
    for reader in (first, second):
        reader.close(leave=True)


def test_a_member_whose_partitions_a_rebalance_took_leaves_too(config: CheckerConfig) -> None:
    """A worker that stops during a rebalance leaves its group, as at any other moment.

    The rebalance lasts while the third member is not polled: the second one has no partitions.
    """
    readers = first, second, third = [_reader(config, name) for name in ("1st", "2nd", "3rd")]

    def joined() -> bool:
        for reader in readers:
            reader.fetch(_STEP_S)
        return all(reader.is_member for reader in readers)

    until("all three are members", joined, within_s=_JOIN_S)
    first.close(leave=True)

    def revoked() -> bool:
        second.fetch(_STEP_S)
        return not second.is_member

    until("the second one's partitions are taken", revoked, within_s=_JOIN_S)
    leaving = threading.Thread(target=partial(second.close, leave=True))
    leaving.start()
    leaving.join(_STEP_S)

    def left() -> bool:
        third.fetch(_STEP_S)
        return not leaving.is_alive()

    until("the second one has closed", left, within_s=_JOIN_S)
    admin = system_ports().kafka.admin({"bootstrap.servers": config.bootstrap_servers})
    (member,) = admin.ask_members(config.names.daemon_group, _JOIN_S).result()
    assert "3rd" in member
    third.close(leave=True)


@pytest.mark.long
def test_case_12_partitions_move_every_few_seconds(stage: Stage) -> None:
    """A guest joins the group under load, takes partitions away for a moment and leaves, 12 times.

    24 rebalances, each of which hits both workers wherever they are.
    """
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.make()
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=150, blocking=50)
    stage.await_members(2)
    for _ in range(_ROUNDS):
        stage.await_more(draw.randrange(1, 60))
        _visit(stage, draw.uniform(*_STAYS_S))
        stage.injected["a guest takes partitions away and gives them back"] += 1
    stage.await_members(2, within_s=_JOIN_S)
    stage.await_more(100)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


def _visit(stage: Stage, stays_s: float) -> None:
    """Join the daemon's group until it has given us partitions, and leave."""
    guest: Any = Consumer(
        {
            "bootstrap.servers": stage.servers,
            "group.id": stage.names.daemon_group,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": 6000,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
    )
    taken: list[Any] = []
    guest.subscribe(
        [stage.names.half, stage.names.op], on_assign=lambda _, places: taken.extend(places)
    )

    def has_partitions() -> bool:
        guest.poll(_STEP_S)
        return bool(taken)

    try:
        until("the guest has partitions", has_partitions, within_s=_JOIN_S)
        leaves_at = time.monotonic() + stays_s
        while time.monotonic() < leaves_at:
            guest.poll(_STEP_S)
    finally:
        guest.close()

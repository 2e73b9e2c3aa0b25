"""The broker in memory does what Kafka does: one suite of checks, met by both through the ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.kafka.adapter import system_ports
from halfbridge.testkit.memory.machine import Machine
from tests.ports import asking, kafka_txns, members, reading, writing
from tests.ports.world import LIMIT_S, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.kafka.ports import TopicPartition

CHECKS = (
    *reading.CHECKS,
    *writing.CHECKS,
    *kafka_txns.CHECKS,
    *members.CHECKS,
    *asking.CHECKS,
)


@pytest.fixture
def memory() -> Iterator[World]:
    """Yield a broker in memory."""
    with Machine() as machine:
        ports = machine.ports(machine.process("client"))
        yield World(ports, {}, "", machine.broker.delete_records)


@pytest.fixture
def kafka(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    """Yield topics and groups of their own on a real broker."""
    # What no port has need of.
    from confluent_kafka import TopicPartition as ClientTopicPartition  # noqa: PLC0415  (see above)
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 (as above)

    common = {"bootstrap.servers": kafka_bootstrap_servers}

    def delete_before(place: TopicPartition, offset: int) -> None:
        client = AdminClient(common)
        for future in client.delete_records([ClientTopicPartition(*place, offset)]).values():
            future.result(LIMIT_S)

    world = World(system_ports(), common, topic_prefix, delete_before)
    yield world
    world.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_memory(check: Callable[[World], None], memory: World) -> None:
    """The broker in memory does it."""
    check(memory)


@pytest.mark.feature
@pytest.mark.broker
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_kafka(check: Callable[[World], None], kafka: World) -> None:
    """So does a real broker."""
    check(kafka)

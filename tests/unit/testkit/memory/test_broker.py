"""What brokers in memory do by themselves, and what they do not allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory.broker import Rights
from halfbridge.testkit.memory.machine import Machine

_PLACE = ("topic", 0)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers with one topic, which keeps records for an hour."""
    with Machine() as made:
        made.broker.create_topic(NewTopic("topic", 1, 1, {"retention.ms": "3600000"}))
        yield made


def _told(writer: Any, value: bytes = b"v") -> Any:
    told: list[Any] = []
    writer.produce("topic", value, None, 0, lambda error, record: told.append(error or record))
    writer.flush(60.0)
    return told[0]


def test_a_dead_clients_kafka_txn_times_out(machine: Machine) -> None:
    """What a killed process has open stays open for its time-out, and is aborted then."""
    process, other = machine.process("p"), machine.process("other")
    writer = machine.ports(process).kafka.transactional_writer(
        {"transactional.id": "a", "transaction.timeout.ms": 10_000}
    )
    writer.init(5.0)
    writer.begin()
    _told(writer)
    machine.scheduler.kill(process)
    partition = machine.broker.partition(_PLACE)
    machine.run(other, 9.9)
    assert (partition.lso, partition.end) == (0, 1)
    machine.run(other, 0.2)
    assert (partition.lso, partition.end) == (2, 2)
    assert partition.read(0, 10)[0] == []


def test_a_dead_member_is_out_after_its_session(machine: Machine) -> None:
    """Its heartbeats end when its process is killed."""
    process, other = machine.process("p"), machine.process("other")
    member = machine.ports(process).kafka.member(
        {"group.id": "g", "group.instance.id": "one", "session.timeout.ms": 6_000}
    )
    member.join_and_read(["topic"])
    member.poll(0.1)
    machine.run(other, 60.0)
    assert len(machine.broker.group("g").seats) == 1
    machine.scheduler.kill(process)
    machine.run(other, 5.9)
    assert len(machine.broker.group("g").seats) == 1
    machine.run(other, 0.2)
    assert not machine.broker.group("g").seats


def test_old_records_are_deleted(machine: Machine) -> None:
    """Those older than retention.ms; younger ones, and what stands behind them, stay."""
    process = machine.process("p")
    writer = machine.ports(process).kafka.writer({})
    _told(writer)
    machine.run(process, 3_000.0)
    _told(writer)
    machine.run(process, 1_000.0)
    assert machine.broker.partition(_PLACE).start == 1
    machine.run(process, 3_600.0)
    assert machine.broker.partition(_PLACE).start == 2


def test_rights_are_those_of_a_process(machine: Machine) -> None:
    """Who may not write is refused, who may not read is told, who may not see sees nothing."""
    kafka = machine.ports(machine.process("p")).kafka
    free = machine.ports(machine.process("free")).kafka
    rights = machine.broker.rights["p"] = Rights(unread={"topic"}, unwritten={"topic"})
    assert _told(kafka.writer({})).code == Code.TOPIC_AUTHORIZATION_FAILED
    assert _told(free.writer({})).offset() == 0
    assert kafka.admin({}).ask_rights(["topic"], 1.0)["topic"].result() is False
    reader = kafka.reader({"group.id": "g"})
    assert reader.topic_failure("topic", 1.0).code == Code.TOPIC_AUTHORIZATION_FAILED
    reader.read_from({_PLACE: 0})
    assert reader.poll(1.0).error().code == Code.TOPIC_AUTHORIZATION_FAILED
    rights.unseen.add("topic")
    assert kafka.admin({}).topics(1.0) == {}


def test_a_topic_that_is_made_anew_is_empty(machine: Machine) -> None:
    """Deleting a topic deletes what groups committed of it; open kafka_txns end in nothing."""
    kafka = machine.ports(machine.process("p")).kafka
    writer = kafka.transactional_writer({"transactional.id": "a"})
    writer.init(5.0)
    writer.begin()
    _told(writer)
    reader = kafka.reader({"group.id": "g"})
    reader.commit({_PLACE: (1, "")})
    machine.broker.delete_topic("topic")
    with pytest.raises(KafkaFailure):
        machine.broker.partition(_PLACE)
    machine.broker.create_topic(NewTopic("topic", 1, 1, {}))
    writer.commit(5.0)
    assert machine.broker.partition(_PLACE).end == 0
    assert reader.committed([_PLACE], 1.0)[_PLACE].offset < 0


def test_a_rebalance_does_not_wait_for_ever(machine: Machine) -> None:
    """A static member that does not rejoin keeps its place, and its generation is over."""
    quick = {"group.id": "g", "max.poll.interval.ms": 10_000, "enable.auto.commit": False}
    process = machine.process("p")
    kafka = machine.ports(process).kafka
    silent = kafka.member({**quick, "group.instance.id": "one"})
    silent.join_and_read(["topic"])
    silent.poll(0.1)
    before = silent.membership()
    other = kafka.member({**quick, "group.instance.id": "two"})
    other.join_and_read(["topic"])
    for _ in range(120):
        other.poll(0.1)
    assert not machine.broker.group("g").is_rebalancing
    assert len(machine.broker.group("g").seats) == 2
    with pytest.raises(KafkaFailure) as refused:
        machine.broker.group("g").check(before, in_kafka_txn=True)
    assert refused.value.code == Code.ILLEGAL_GENERATION

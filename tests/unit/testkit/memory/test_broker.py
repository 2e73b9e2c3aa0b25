"""What brokers in memory do by themselves, and what they do not allow."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory.broker import Rights
from halfbridge.testkit.memory.log import BatchNumber, OutOfRangeError, Partition, Row
from halfbridge.testkit.memory.machine import Machine, Passing

_PLACE = ("topic", 0)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers with one topic, which keeps records for an hour."""
    with Machine() as made:
        made.broker.create_topic(NewTopic("topic", 1, 1, {"retention.ms": "3600000"}))
        yield made


def _reported(writer: Any, value: bytes = b"v") -> Any:
    reported: list[Any] = []
    writer.produce("topic", value, None, 0, lambda error, record: reported.append(error or record))
    writer.flush(60.0)
    return reported[0]


def test_a_dead_clients_kafka_txn_times_out(machine: Machine) -> None:
    """What a killed process has open stays open for its time-out, and is aborted then."""
    process, other = machine.process("p"), machine.process("other")
    writer = machine.ports(process).kafka.transactional_writer(
        {"transactional.id": "a", "transaction.timeout.ms": 10_000}
    )
    writer.init(5.0)
    writer.begin()
    _reported(writer)
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
    assert len(machine.broker.group("g").slots) == 1
    machine.scheduler.kill(process)
    machine.run(other, 5.9)
    assert len(machine.broker.group("g").slots) == 1
    machine.run(other, 0.2)
    assert not machine.broker.group("g").slots


def test_old_records_are_deleted(machine: Machine) -> None:
    """Those older than retention.ms; younger ones, and all that follow them, stay."""
    process = machine.process("p")
    writer = machine.ports(process).kafka.writer({})
    _reported(writer)
    machine.run(process, 3_000.0)
    _reported(writer)
    machine.run(process, 1_000.0)
    assert machine.broker.partition(_PLACE).start == 1
    machine.run(process, 3_600.0)
    assert machine.broker.partition(_PLACE).start == 2


def test_rights_are_those_of_a_process(machine: Machine) -> None:
    """Without WRITE or READ a client gets an error; without DESCRIBE it sees no topic."""
    kafka = machine.ports(machine.process("p")).kafka
    free = machine.ports(machine.process("free")).kafka
    rights = machine.broker.rights["p"] = Rights(unread={"topic"}, unwritten={"topic"})
    assert _reported(kafka.writer({})).code == Code.TOPIC_AUTHORIZATION_FAILED
    assert _reported(free.writer({})).offset() == 0
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
    _reported(writer)
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
    assert len(machine.broker.group("g").slots) == 2
    with pytest.raises(KafkaFailure) as refused:
        machine.broker.group("g").check(before, in_kafka_txn=True)
    assert refused.value.code == Code.ILLEGAL_GENERATION


# --- how partitions know a repetition of a batch -------------------------------------------

_ROW = Row(None, b"v", None, 0)


def _store(partition: Partition, epoch: int, first: int, count: int = 1) -> int:
    number = BatchNumber(1, epoch, first)
    stands = partition.repeated(number)
    if stands is not None:
        return stands
    offset = partition.append([_ROW] * count, 0)
    partition.note_batch(number, count, offset)
    return offset


def test_a_repeated_batch_is_stored_once() -> None:
    """A broker knows each of a producer's last five batches, and their offsets."""
    partition = Partition("topic", 0)
    offsets = [_store(partition, 0, first, 2) for first in range(0, 12, 2)]
    assert [_store(partition, 0, first, 2) for first in range(2, 12, 2)] == offsets[1:]
    assert partition.end == 12
    with pytest.raises(KafkaFailure, match="DUPLICATE_SEQUENCE_NUMBER"):
        _store(partition, 0, 0, 2)


def test_a_gap_is_refused() -> None:
    """So that no record overtakes another one; a new epoch begins at 0."""
    partition = Partition("topic", 0)
    _store(partition, 0, 0)
    with pytest.raises(KafkaFailure, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        _store(partition, 0, 2)
    with pytest.raises(KafkaFailure, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        _store(partition, 1, 1)
    assert _store(partition, 1, 0) == 1
    with pytest.raises(KafkaFailure) as refused:
        _store(partition, 0, 1)
    assert refused.value.code == Code.INVALID_PRODUCER_EPOCH


def test_a_read_stops_where_it_must() -> None:
    """At the count that is asked for, and at the first record of an open kafka_txn."""
    partition = Partition("topic", 0)
    partition.append([_ROW] * 3, 0)
    txn = partition.begin()
    partition.append([_ROW], 0, txn=txn)
    records, then = partition.read(0, 2)
    assert ([record.offset() for record in records], then) == ([0, 1], 2)
    assert partition.read(2, 10)[1] == 3
    assert partition.read(2, 10, is_committed=False)[1] == 4
    partition.mark(txn, is_aborted=True)
    assert partition.read(3, 10) == ([], 5)
    with pytest.raises(OutOfRangeError):
        partition.read(6, 1)


# --- how virtual time passes ---------------------------------------------------------------

POLL_S = 0.1


def idle(machine: Machine, polls: list[float]) -> None:
    """Start a task that asks ten times a second."""
    ports = machine.ports(machine.process("idle"))

    def run() -> None:
        while True:
            ports.run.pause(POLL_S)
            polls.append(ports.clock.monotonic())

    ports.run.start(run, "idle")


def test_idle_polls_are_rare_and_the_end_is_exact() -> None:
    """72 h have 2.6 million polls of 0.1 s; far fewer are made, the last one at the very end."""
    with Machine() as machine:
        polls: list[float] = []
        idle(machine, polls)
        Passing(machine.broker).until(lambda: False, 72 * 3_600)
        assert len(polls) < 2_000
        assert polls[-1] == 72 * 3_600
        assert max(b - a for a, b in pairwise(polls)) <= 240 + 1e-6


def test_a_write_makes_time_exact_again() -> None:
    """While something is written, polls come when they are due; later by a fifth of the quiet."""
    with Machine() as machine:
        machine.broker.create_topic(NewTopic("t", 1, 1, {}))
        passing = Passing(machine.broker)
        polls: list[float] = []
        idle(machine, polls)
        passing.until(lambda: False, 3_600)
        machine.broker.produce("x", ("t", 0), [Row(None, b"v", None, machine.broker.now_ms)], None)
        polls.clear()
        passing.until(lambda: False, 100)
        gaps = [b - a for a, b in pairwise(polls)]
        assert gaps[0] == pytest.approx(POLL_S)
        assert all(
            gap <= max(POLL_S, (at - 3_600) / 5) + 1e-6
            for gap, at in zip(gaps, polls, strict=False)
        )


def test_what_is_due_at_the_end_is_done() -> None:
    """Also what follows from it some tenths of a second later."""
    with Machine() as machine:
        machine.broker.create_topic(NewTopic("t", 1, 1, {}))
        ports = machine.ports(machine.process("p"))
        done: list[str] = []

        def run() -> None:
            ports.run.pause(6)
            done.append("due")
            machine.broker.changed()  # as a write
            ports.run.pause(0.15)
            done.append("finished")

        ports.run.start(run, "p")
        passing = Passing(machine.broker)
        passing.advance(5)
        assert done == []
        passing.advance(1)
        assert done == ["due", "finished"]


def test_a_task_that_never_waits_ends_all_the_same() -> None:
    """Its deadline comes although time does not move while a task can run."""
    with Machine() as machine:
        ports = machine.ports(machine.process("spinning"))
        ended: list[bool] = []

        def run() -> None:
            deadline = ports.clock.monotonic() + 0.01
            while ports.clock.monotonic() < deadline:
                ports.run.pause(0)
            ended.append(True)

        ports.run.start(run, "spinning")
        assert Passing(machine.broker).until(lambda: bool(ended), 5)

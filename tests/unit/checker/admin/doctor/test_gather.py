"""What is gathered of an installation, on brokers in memory: rights, workers, logs, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.doctor.facts import Severity
from halfbridge.checker.admin.doctor.judge import judge
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.broker import Rights
from tests.unit.checker.admin.doctor.scene import PROCESS, facts_of, found_by

GROUP = "order-service"


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic("orders")
        yield started


def unknown(_: MessageView) -> Resolution:
    """Answer as a checker that never knows."""
    return Resolution.UNKNOWN


def test_nothing_is_wrong_with_an_installation_that_works(stack: MemoryStack) -> None:
    """Every question is answered, and makes no finding."""
    with stack.producer(GROUP, checker=unknown) as producer, producer.begin() as tx:
        tx.send(Message("orders", value=b"v"))
    with stack.producer(GROUP, checker=unknown):
        stack.advance(10)
        facts = facts_of(stack, real_topics=("orders",), client_kafka={}, producer_groups=(GROUP,))
        assert facts.silent == {}
        assert found_by(stack, real_topics=("orders",)) == {}
    assert facts.workers is not None
    assert len(facts.workers) == 1
    assert facts.record is not None
    assert [clock.producer_group for clock in facts.clocks] == [GROUP]
    assert facts.newest_ms > 0


def test_a_right_that_is_missing_is_named_with_its_grant(stack: MemoryStack) -> None:
    """Tried, by asking what this principal may do."""
    broker = stack.machine.broker
    broker.rights[PROCESS] = Rights(unwritten={"orders"})
    found = found_by(stack, real_topics=("orders",))
    assert "may not Write topic orders" in found["daemon-right"].what
    assert "--operation Write --topic orders" in found["daemon-right"].mend


def test_a_topic_that_deliveries_wait_for_is_named_without_being_asked_for(
    stack: MemoryStack,
) -> None:
    """An error with the command that creates it, and nothing once it is there."""
    broker = stack.machine.broker
    stack.create_topic("ghost")
    with stack.producer(GROUP, checker=unknown) as producer:
        for topic in ("ghost", "orders"):
            tx = producer.begin()
            tx.send(Message(topic, value=b"v"))
            if topic == "ghost":
                ghostly = tx.id
                broker.delete_topic(topic)
            tx.commit()
        stack.advance(5)
        found = found_by(stack)["real-topic"]
        assert found.severity is Severity.ERROR
        assert found.what.startswith("topic ghost does not exist: deliveries of 1 transaction wait")
        assert ghostly in found.what
        assert found.mend.startswith("halfbridge topics create ghost --type transaction")
        stack.create_topic("ghost")
        stack.advance(5)
        assert found_by(stack) == {}


def test_a_partition_that_is_away_is_named(stack: MemoryStack) -> None:
    """Of a real topic while a delivery waits, of the daemon's own topics at once."""
    broker, names = stack.machine.broker, stack.config.names
    with stack.producer(GROUP, checker=unknown) as producer:
        for place in (("orders", 0), (names.dead, 0), (names.check(GROUP), 0)):
            broker.go_away(place, is_told=True)
        with producer.begin() as tx:
            tx.send(Message("orders", key=b"k", value=b"v"))
        stack.advance(5)
        found = judge(facts_of(stack), stack.config)
        away = [each.what for each in found if each.code == "topic-offline"]
        (waits,) = (each for each in found if each.code == "partition-away")
        assert waits.what.startswith("partition 0 of topic orders has no leader: it needs broker 0")
        assert waits.severity is Severity.ERROR
        assert sorted(away) == sorted(
            f"{topic}: partition {number} has no leader: it needs broker 0; what needs the"
            " partition waits until then"
            for topic, number in ((names.dead, 0), (names.check(GROUP), 0))
        )


def test_silent_brokers_are_no_secret(stack: MemoryStack) -> None:
    """Where nothing but silence shows the partition, doctor says that deliveries wait."""
    stack.machine.broker.go_away(("orders", 0), is_told=False)
    with stack.producer(GROUP, checker=unknown) as producer:
        with producer.begin() as tx:
            tx.send(Message("orders", key=b"k", value=b"v"))
        stack.advance(20)
        found = found_by(stack)["delivery-waits"]
        assert "deliveries to orders wait" in found.what
        assert found.mend.startswith(f"halfbridge tx explain {tx.id} ")


def test_no_worker_and_nobody_who_answers(stack: MemoryStack) -> None:
    """The commands start the one, and show the other."""
    with stack.producer(GROUP, checker=unknown):
        pass
    stack.daemon.kill()
    stack.advance(60)
    found = found_by(stack)
    assert found["no-worker"].mend == "halfbridge checker run --bootstrap-servers memory"
    assert GROUP in found["no-responder"].what


def test_a_plain_writer_of_a_transaction_topic(tmp_path: Path) -> None:
    """The daemon's records are not taken for such, nor are plain ones in topics without a type."""
    policy = tmp_path / "policy.toml"
    policy.write_text('default = "allow"\n[topics]\n"orders" = "transaction"\n', "utf-8")
    with MemoryStack(policy_file=policy) as stack:
        for topic in ("orders", "clicks"):
            stack.create_topic(topic)
        with stack.producer(GROUP, checker=unknown) as producer, producer.begin() as tx:
            tx.send(Message("orders", value=b"v"))
        stack.advance(10)
        assert facts_of(stack).plain == ()
        ports = stack.machine.ports(stack.machine.process("somebody"))
        writer = ports.kafka.writer({})
        for topic in ("orders", "orders", "clicks"):
            writer.produce(topic, b"plain", None, 0, lambda *_: None)
        writer.flush(10)
        (plain,) = facts_of(stack).plain
        assert (plain.topic, plain.records) == ("orders", 2)
        assert "transaction topic orders: 2" in found_by(stack)["plain-writer"].what


def test_a_topic_that_is_missing(stack: MemoryStack) -> None:
    """The part of `topics check`, with the command that makes it."""
    stack.machine.broker.delete_topic(stack.config.names.dead)
    found = found_by(stack)
    assert found["topic-missing"].mend.startswith("halfbridge topics create")


def test_an_open_kafka_txn_holds_back_readers(stack: MemoryStack) -> None:
    """It says since when, and of which transaction the first record is; the commands name it."""
    ports = stack.machine.ports(stack.machine.process("writer"))
    writer = ports.kafka.transactional_writer({"transactional.id": "somebody"})
    writer.init(10)
    writer.begin()
    headers = [("__transactionId__", b"A" * 32)]
    writer.produce("orders", b"v", None, 0, lambda *_: None, 0, headers)
    writer.flush(10)
    stack.advance(5)
    assert "frozen-lso" not in found_by(stack, real_topics=("orders",))
    stack.advance(30)
    frozen = found_by(stack, real_topics=("orders",))["frozen-lso"]
    assert "orders 0" in frozen.what
    assert "A" * 32 in frozen.what
    assert "abort --topic orders --partition 0 --start-offset 0" in frozen.mend
    writer.abort(10)
    assert "frozen-lso" not in found_by(stack, real_topics=("orders",))

"""What `tx explain` says of a transaction whose real topic is missing, or a partition away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halfbridge import Message
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.explain import explain, time_text
from halfbridge.checker.core.deferred import AWAY_MS_MIN
from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, unknown

GONE_MS = 20_000


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation without real topics, which waits 20 s for one."""
    with MemoryStack(topic_gone_ms=GONE_MS) as started:
        yield started


def committed(producer: MemoryProducer, topic: str, *, partition: int | None = None) -> str:
    """Commit a transaction of one message, and return its id."""
    with producer.begin() as tx:
        tx.send(Message(topic, key=b"k", value=b"v", partition=partition))
    return tx.id


def lost(stack: MemoryStack, producer: MemoryProducer) -> str:
    """Commit a transaction whose real topic is deleted meanwhile, and return its id."""
    stack.create_topic("ghost")
    tx = producer.begin()
    tx.send(Message("ghost", key=b"k", value=b"v"))
    stack.machine.broker.delete_topic("ghost")
    tx.commit()
    return tx.id


def test_a_missing_topic_is_named_with_what_becomes_of_the_delivery(stack: MemoryStack) -> None:
    """The topic, the command that creates it, and when the messages become dead letters.

    The limit is the one of the daemon that runs, as its settings record says.
    """
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        txid = lost(stack, producer)
        stack.advance(5)
        life = operator.shown(txid)
        text = " ".join(explain(life))
        assert life.is_deferred
        assert life.decided_by is not None
        assert "Its delivery is deferred" in text
        assert "Topic ghost does not exist; run halfbridge topics create ghost --type" in text
        until = time_text((life.decided_by.at_ms or 0) + GONE_MS)
        assert f"dead letters, UNDELIVERABLE, 20s after the decision, at {until}" in text
        assert f"halfbridge dead redeliver {txid}" in text
        (lack,) = plain.life(life)["lacks"]
        assert (lack["topic"], lack["partition"]) == ("ghost", None)

        stack.machine.broker.create_topic(NewTopic("ghost", 1, 1, {}))
        stack.advance(5)
        life = operator.shown(txid)
        assert not life.is_deferred
        assert life.lacks == ()


def test_a_dead_letter_says_whether_its_cause_is_still_there(stack: MemoryStack) -> None:
    """Whoever redelivers sees first what has to be mended."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        txid = lost(stack, producer)
        stack.advance(GONE_MS // 1000 + 30)
        text = " ".join(explain(operator.shown(txid)))
        assert "for UNDELIVERABLE" in text
        assert "The cause may still be there. Topic ghost does not exist" in text
        stack.machine.broker.create_topic(NewTopic("ghost", 1, 1, {}))
        assert "The cause" not in " ".join(explain(operator.shown(txid)))


def test_a_partition_that_is_away_is_named_with_its_brokers(stack: MemoryStack) -> None:
    """Messages to other partitions of the topic are delivered, and nothing is said of them."""
    operator = Operator(stack)
    stack.create_topic(TOPIC, partitions=2)
    stack.machine.broker.go_away((TOPIC, 1), is_told=True)
    with stack.producer(GROUP, checker=unknown) as producer:
        waits, goes = (committed(producer, TOPIC, partition=number) for number in (1, 0))
        stack.advance(5)
        text = " ".join(explain(operator.shown(waits)))
        assert f"Partition 1 of topic {TOPIC} has no leader: it needs broker 0" in text
        assert f"run halfbridge topics describe {TOPIC}" in text
        assert f"UNDELIVERABLE, {AWAY_MS_MIN // 1000}s after the decision" in text
        assert operator.shown(goes).lacks == ()


def test_a_partition_that_only_its_silence_names_is_not_denied(stack: MemoryStack) -> None:
    """Workers alone know it, so the text says where they name it."""
    operator = Operator(stack)
    stack.create_topic(TOPIC)
    stack.machine.broker.go_away((TOPIC, 0), is_told=False)
    with stack.producer(GROUP, checker=unknown) as producer:
        txid = committed(producer, TOPIC)
        stack.advance(20)
        life = operator.shown(txid)
        assert life.is_deferred
        assert life.lacks == ()
        assert "/healthz of the workers names" in " ".join(explain(life))


def test_an_undecided_transaction_says_what_would_delay_its_delivery(stack: MemoryStack) -> None:
    """A partition that the topic does not have is mended by growing the topic."""
    operator = Operator(stack)
    txid = operator.cluster.ports.transaction_id()
    stack.create_topic(TOPIC)
    operator.write_half(txid, 0, real_partition=2)
    operator.write_half(txid, 0, message_index=1, real_topic="ghost")
    text = " ".join(explain(operator.shown(txid)))
    assert f"Partition 2 of topic {TOPIC} does not exist" in text
    assert f"create {TOPIC} --type transaction --grow --partitions 3." in text
    assert "Topic ghost does not exist" in text
    assert "A delivery waits for that, at most 20s" in text


def test_logs_of_partitions_that_are_away_are_left_out(stack: MemoryStack) -> None:
    """A transaction is found beside a pair, a real partition and dead letters without a leader."""
    operator, broker = Operator(stack), stack.machine.broker
    stack.create_topic(TOPIC, partitions=2)
    with stack.producer(GROUP, checker=unknown) as producer:
        txid = committed(producer, TOPIC, partition=0)
        stack.advance(5)
        pair = operator.shown(txid).partition
        assert pair is not None
        names, other = stack.config.names, 1 - pair if pair < 2 else 0
        away = [(names.half, other), (names.op, other), (TOPIC, 1), (names.dead, 0)]
        for place in away:
            broker.go_away(place, is_told=True)
        life = operator.shown(txid)
        assert life.state == "COMMITTED"
        assert f"partition 0 of topic {names.dead} has no leader, so it was not read" in life.notes
        unknown_id = operator.cluster.ports.transaction_id()
        note = f"Partition {other} of topic {names.half} has no leader, so it was not read."
        assert note in explain(operator.shown(unknown_id))

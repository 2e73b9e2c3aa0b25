"""The output of `tx list`, with a running daemon and without one."""

from collections.abc import Iterator

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.explain import explain, time_text
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.checker.core.deferred import AWAY_MS_MIN
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.records import OpKind
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


def test_what_is_undecided_is_listed_with_its_size(stack: MemoryStack) -> None:
    """Decided transactions are left out; messages and bytes count what the client sent."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"done").commit()
        tx = sent(producer, b"one", b"three", key=b"key")
        stack.advance(seconds=1)
        found = operator.listed()
    (only,) = found.transactions
    assert (found.undecided, only.id, only.state, only.messages) == (1, tx.id, "PREPARED", 2)
    assert (only.producer_group, only.real_topic, only.bytes) == (GROUP, TOPIC, 3 + 3 + 3 + 5)
    assert only.age_ms is not None
    assert 1_000 <= only.age_ms < 3_000
    assert (only.checks_asked, only.checks_answered, only.wait) == (0, 0, Wait.NOT_DUE)
    assert only.first_append_ms is not None
    assert only.next_check_at_ms == only.first_append_ms + 6_000


def test_answers_and_requests_are_counted(stack: MemoryStack) -> None:
    """After 45 s two checks are asked and answered, and the next is due within 30 s."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one")
        stack.advance(seconds=45)
        (only,) = operator.listed().transactions
    assert (only.checks_asked, only.checks_answered) == (2, 2)
    assert only.wait is Wait.ANSWERED_UNKNOWN
    assert only.next_check_at_ms is not None
    assert only.age_ms is not None
    now_ms = (only.first_append_ms or 0) + only.age_ms
    assert now_ms < only.next_check_at_ms <= now_ms + 30_000


def test_a_checker_that_raises_is_named(stack: MemoryStack) -> None:
    """CHECKER_FAILED has the text of the exception; the attempt does not count as answered."""

    def broken(_: MessageView) -> Resolution:
        raise RuntimeError("no database")

    operator = Operator(stack)
    with stack.producer(GROUP, checker=broken) as producer:
        sent(producer, b"one")
        stack.advance(seconds=10)
        (only,) = operator.listed().transactions
    assert (only.wait, only.checks_asked, only.checks_answered) == (Wait.CHECKER_FAILED, 1, 0)
    assert "no database" in only.why


def test_a_group_without_members_is_named(stack: MemoryStack) -> None:
    """Without a producer, the wait is NOBODY_ANSWERS, with at least two checks asked."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one")
    stack.advance(seconds=120)
    (only,) = operator.listed().transactions
    assert only.wait is Wait.NOBODY_ANSWERS
    assert only.checks_answered == 0
    assert only.checks_asked is not None
    assert only.checks_asked >= 2
    assert only.next_check_at_ms is not None


def test_the_listing_says_that_no_daemon_runs(stack: MemoryStack) -> None:
    """Without a daemon, transactions before and after its crash are listed as NO_DAEMON."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        before = sent(producer, b"before")
        stack.advance(seconds=1)
        stack.daemon.kill()
        after, decided = sent(producer, b"after"), sent(producer, b"decided")
        decided.commit()
        stack.advance(seconds=30)
        found = operator.listed().transactions
    assert [each.id for each in found] == [before.id, after.id]
    assert {each.wait for each in found} == {Wait.NO_DAEMON}


def test_a_decision_that_waits_names_the_missing_daemon_first(stack: MemoryStack) -> None:
    """DECISION_WAITS becomes NO_DAEMON once the group knows that no worker runs."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=1)
        (open_one,) = operator.listed().transactions
        stack.daemon.kill()
        operator.write_op(OpKind.COMMIT, tx.id, open_one.partition, half_offset=1_000)
        (waits,) = operator.listed().transactions
        stack.advance(seconds=60)
        (without,) = operator.listed().transactions
    assert waits.wait is Wait.DECISION_WAITS
    assert (without.wait, without.why) == (
        Wait.NO_DAEMON,
        "a COMMIT is appended, and no worker of the daemon runs",
    )


def test_filters_choose_and_the_oldest_come_first(stack: MemoryStack) -> None:
    """Group, topic, age and pair filter; a limit keeps the oldest, and the count includes all."""
    stack.create_topic("bills")
    operator = Operator(stack)
    with (
        stack.producer(GROUP, checker=unknown) as orders,
        stack.producer("bill-service", checker=unknown) as bills,
    ):
        old = sent(orders, b"old")
        stack.advance(seconds=4)
        young = bills.begin()
        young.send(Message("bills", key=b"k", value=b"young"))
        chosen = [
            operator.listed(group="bill-service"),
            operator.listed(topic=TOPIC),
            operator.listed(older_than_ms=3_000),
            operator.listed(limit=1),
            operator.listed(group="nobody"),
        ]
        pair = operator.listed().transactions[0].partition
        in_pair = operator.listed(partitions=(pair,))
    assert [[each.id for each in one.transactions] for one in chosen] == [
        [young.id],
        [old.id],
        [old.id],
        [old.id],
        [],
    ]
    assert chosen[3].undecided == 2
    assert old.id in {each.id for each in in_pair.transactions}


def test_strangers_records_are_left_out(stack: MemoryStack) -> None:
    """Junk in half and op topic and forged headers are skipped; any id text is listed."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        for partition in (0, 1):
            operator.write_junk(operator.names.half, partition, b"junk")
            operator.write_junk(operator.names.half, partition, b"x", [("RMQ_HALF", b"\xc3\x01no")])
            operator.write_junk(operator.names.op, partition, b"\x00" * 5_000)
        operator.write_half("\x1b[31m\n", 0, producer_group="strangers")
        stack.advance(seconds=1)
        found = operator.listed().transactions
    assert {each.id for each in found} == {tx.id, "\x1b[31m\n"}


def test_a_stopped_pair_is_reported_and_the_others_are_listed(stack: MemoryStack) -> None:
    """A pair whose offsets a tool has reset is reported as stopped, without transactions."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one")
        stack.advance(seconds=1)
        stack.daemon.kill()
        stack.advance(seconds=60)
        pair = operator.listed().transactions[0].partition
        operator.cluster.commit(operator.names.daemon_group, {(operator.names.op, pair): (0, "")})
        found = operator.listed()
    assert found.transactions == ()
    assert [each.partition for each in found.stopped] == [pair]
    assert "reset by a tool" in found.stopped[0].why


def test_a_pair_without_a_leader_is_reported_and_the_others_are_listed(stack: MemoryStack) -> None:
    """The text has the command that shows which broker the half or op partition needs."""
    operator, broker = Operator(stack), stack.machine.broker
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one")
        stack.advance(seconds=1)
        (listed,) = operator.listed().transactions
        other = (listed.partition + 1) % 2
        broker.go_away((operator.names.op, other), is_leaderless=True)
        found = operator.listed()
        assert [each.id for each in found.transactions] == [listed.id]
        (stopped,) = found.stopped
        assert (stopped.partition, stopped.remedy) == (other, "")
        assert f"has no leader; run halfbridge topics describe {operator.names.op}" in stopped.why
        broker.go_away((operator.names.half, listed.partition), is_leaderless=True)
        assert operator.listed().transactions == ()


def test_keys_are_listed_for_commands_only(stack: MemoryStack) -> None:
    """With with_keys, first messages' keys are listed as text and base64, also after put-backs."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one", key=b"order-42\xff")
        bare = producer.begin()
        bare.send(Message(TOPIC, value=b"no key"))
        stack.advance(seconds=45)
        found = operator.listed()
    listed = plain.listing(found, with_keys=True)["transactions"]
    assert {each.checks_answered for each in found.transactions} == {2}
    assert sorted((each["key"], each["key_base64"]) for each in listed if each["key"]) == [
        ("order-42\\xff", "b3JkZXItNDL/")
    ]
    assert [each["key_base64"] for each in listed if each["key"] is None] == [None]
    assert not any("key" in each for each in plain.listing(found)["transactions"])


# --- `tx explain` of a transaction whose real topic is missing or partition offline --------

GONE_MS = 20_000


@pytest.fixture
def waiting_stack() -> Iterator[MemoryStack]:
    """An installation without real topics, which waits 20 s for a missing one."""
    with MemoryStack(topic_gone_ms=GONE_MS) as started:
        yield started


def committed(producer: MemoryProducer, topic: str, *, partition: int | None = None) -> str:
    """Commit a transaction of one message, and return its id."""
    with producer.begin() as tx:
        tx.send(Message(topic, key=b"k", value=b"v", partition=partition))
    return tx.id


def lost(waiting_stack: MemoryStack, producer: MemoryProducer) -> str:
    """Commit a transaction whose real topic is deleted meanwhile, and return its id."""
    waiting_stack.create_topic("ghost")
    tx = producer.begin()
    tx.send(Message("ghost", key=b"k", value=b"v"))
    waiting_stack.machine.broker.delete_topic("ghost")
    tx.commit()
    return tx.id


def test_a_missing_topic_is_named_with_what_becomes_of_the_delivery(
    waiting_stack: MemoryStack,
) -> None:
    """The text has the topic, the command that creates it, and the time of the dead letters.

    The limit is that of the running daemon, from its settings record.
    """
    operator = Operator(waiting_stack)
    with waiting_stack.producer(GROUP, checker=unknown) as producer:
        txid = lost(waiting_stack, producer)
        waiting_stack.advance(5)
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

        waiting_stack.machine.broker.create_topic(NewTopic("ghost", 1, 1, {}))
        waiting_stack.advance(5)
        life = operator.shown(txid)
        assert not life.is_deferred
        assert life.lacks == ()


def test_a_dead_letter_says_whether_its_cause_is_still_there(waiting_stack: MemoryStack) -> None:
    """The text of a dead letter names the missing topic until the topic exists."""
    operator = Operator(waiting_stack)
    with waiting_stack.producer(GROUP, checker=unknown) as producer:
        txid = lost(waiting_stack, producer)
        waiting_stack.advance(GONE_MS // 1000 + 30)
        text = " ".join(explain(operator.shown(txid)))
        assert "for UNDELIVERABLE" in text
        assert "The cause may still be there. Topic ghost does not exist" in text
        waiting_stack.machine.broker.create_topic(NewTopic("ghost", 1, 1, {}))
        assert "The cause" not in " ".join(explain(operator.shown(txid)))


def test_a_partition_that_is_away_is_named_with_its_brokers(waiting_stack: MemoryStack) -> None:
    """An offline partition is named with its brokers; other partitions of the topic are not."""
    operator = Operator(waiting_stack)
    waiting_stack.create_topic(TOPIC, partitions=2)
    waiting_stack.machine.broker.go_away((TOPIC, 1), is_leaderless=True)
    with waiting_stack.producer(GROUP, checker=unknown) as producer:
        waits, goes = (committed(producer, TOPIC, partition=number) for number in (1, 0))
        waiting_stack.advance(5)
        text = " ".join(explain(operator.shown(waits)))
        assert f"Partition 1 of topic {TOPIC} has no leader: it needs broker 0" in text
        assert f"run halfbridge topics describe {TOPIC}" in text
        assert f"UNDELIVERABLE, {AWAY_MS_MIN // 1000}s after the decision" in text
        assert operator.shown(goes).lacks == ()


def test_a_partition_that_only_its_silence_names_is_not_denied(waiting_stack: MemoryStack) -> None:
    """If only the worker knows that a partition is silent, the text refers to /healthz."""
    operator = Operator(waiting_stack)
    waiting_stack.create_topic(TOPIC)
    waiting_stack.machine.broker.go_away((TOPIC, 0), is_leaderless=False)
    with waiting_stack.producer(GROUP, checker=unknown) as producer:
        txid = committed(producer, TOPIC)
        waiting_stack.advance(20)
        life = operator.shown(txid)
        assert life.is_deferred
        assert life.lacks == ()
        assert "/healthz of the workers names" in " ".join(explain(life))


def test_an_undecided_transaction_says_what_would_delay_its_delivery(
    waiting_stack: MemoryStack,
) -> None:
    """A missing partition and a missing topic are named, each with its command."""
    operator = Operator(waiting_stack)
    txid = operator.cluster.ports.transaction_id()
    waiting_stack.create_topic(TOPIC)
    operator.write_half(txid, 0, real_partition=2)
    operator.write_half(txid, 0, message_index=1, real_topic="ghost")
    text = " ".join(explain(operator.shown(txid)))
    assert f"Partition 2 of topic {TOPIC} does not exist" in text
    assert f"create {TOPIC} --type transaction --grow --partitions 3." in text
    assert "Topic ghost does not exist" in text
    assert "A delivery waits for that, at most 20s" in text


def test_logs_of_partitions_that_are_away_are_left_out(waiting_stack: MemoryStack) -> None:
    """A transaction is found if another pair, a real and a dead-letter partition have no leader."""
    operator, broker = Operator(waiting_stack), waiting_stack.machine.broker
    waiting_stack.create_topic(TOPIC, partitions=2)
    with waiting_stack.producer(GROUP, checker=unknown) as producer:
        txid = committed(producer, TOPIC, partition=0)
        waiting_stack.advance(5)
        pair = operator.shown(txid).partition
        assert pair is not None
        names, other = waiting_stack.config.names, 1 - pair if pair < 2 else 0
        away = [(names.half, other), (names.op, other), (TOPIC, 1), (names.dead, 0)]
        for place in away:
            broker.go_away(place, is_leaderless=True)
        life = operator.shown(txid)
        assert life.state == "COMMITTED"
        assert f"partition 0 of topic {names.dead} has no leader, so it was not read" in life.notes
        unknown_id = operator.cluster.ports.transaction_id()
        note = f"Partition {other} of topic {names.half} has no leader, so it was not read."
        assert note in explain(operator.shown(unknown_id))

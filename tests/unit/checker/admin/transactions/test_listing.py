"""What `tx list` finds, beside a running daemon and without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.testkit.memory import MemoryStack
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


def test_what_is_undecided_is_listed_with_its_size(stack: MemoryStack) -> None:
    """Decided transactions are left out; messages and bytes are those of the client."""
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
    """A counted UNKNOWN after each check, the last one 30 s before the next."""
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
    """The reason is what the responder wrote; the attempt does not count."""

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
    """The producer is gone; requests go out and nobody answers."""
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


def test_without_a_daemon_it_is_said(stack: MemoryStack) -> None:
    """The committed offsets stand, and the rest of the log is read."""
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


def test_filters_choose_and_the_oldest_come_first(stack: MemoryStack) -> None:
    """By group, topic, age and pair; a limit keeps the oldest, and the count says how many."""
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
    """Junk in half and op topic, forged headers, and ids of any text are no trouble."""
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


def test_a_stopped_pair_is_told_and_the_others_are_listed(stack: MemoryStack) -> None:
    """Offsets that were reset by a tool cannot be trusted."""
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


def test_a_pair_without_a_leader_is_told_and_the_others_are_listed(stack: MemoryStack) -> None:
    """Half or op partition; the text has the command that shows which broker it needs."""
    operator, broker = Operator(stack), stack.machine.broker
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"one")
        stack.advance(seconds=1)
        (listed,) = operator.listed().transactions
        other = (listed.partition + 1) % 2
        broker.go_away((operator.names.op, other), is_told=True)
        found = operator.listed()
        assert [each.id for each in found.transactions] == [listed.id]
        (stopped,) = found.stopped
        assert (stopped.partition, stopped.remedy) == (other, "")
        assert f"has no leader; run halfbridge topics describe {operator.names.op}" in stopped.why
        broker.go_away((operator.names.half, listed.partition), is_told=True)
        assert operator.listed().transactions == ()


def test_keys_are_listed_for_commands_only(stack: MemoryStack) -> None:
    """The key of the first message, as text and exactly; after it was put back, too."""
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

"""Transactions found by the key of a message, in memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge import Message
from halfbridge.checker.admin.dead.letters import Choice, Remedy, Wanted
from halfbridge.checker.admin.dead.redoing import DeadLetters, Order, redo
from halfbridge.checker.admin.transactions import find as finding
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.find import FindQuery, Found, find, meant_by
from halfbridge.checker.admin.transactions.life import Kind
from halfbridge.checker.admin.transactions.logs import birth_ms, slices
from halfbridge.checker.errors import AdminSetupError
from halfbridge.serde.identity import TransactionIds
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.memory import MemoryStack
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown

KEY = b"order-42"
HOUR_S = 3_600


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack(partitions=2) as made:
        made.create_topic(TOPIC)
        yield made


def _found(stack: MemoryStack, key: str = KEY.decode(), **given: Any) -> Found:
    operator = Operator(stack)
    sought = FindQuery(**{"key": key, "since_ms": 0, "limit": 20, **given})
    return find(operator.cluster, operator.names, sought)


def test_what_became_of_each_is_reported(stack: MemoryStack) -> None:
    """The newest come first, each with state and outcome; only the whole key matches."""
    stack.create_topic("gone")
    with stack.producer(GROUP, checker=unknown) as producer:
        committed = sent(producer, b"one", key=KEY)
        committed.commit()
        stack.advance(seconds=1)
        rolled_back = sent(producer, b"two", key=KEY)
        rolled_back.rollback()
        stack.advance(seconds=1)
        sent(producer, b"other", key=KEY + b"1").commit()
        dead = producer.begin()
        dead.send(Message("gone", key=KEY, value=b"three"))
        stack.machine.broker.delete_topic("gone")
        dead.commit()
        stack.advance(seconds=90)
        undecided = sent(producer, b"four", key=KEY)
        stack.advance(seconds=1)
        found = _found(stack)
    assert [(each.id, each.state) for each in found.hits] == [
        (undecided.id, "PREPARED"),
        (dead.id, "COMMITTED"),
        (rolled_back.id, "ROLLED_BACK"),
        (committed.id, "COMMITTED"),
    ]
    delivery = found.hits[3].end
    assert delivery is not None
    assert (delivery.kind, delivery.topic, delivery.message_index) == (Kind.DELIVERY, TOPIC, 0)
    assert [each.outcome for each in found.hits] == [
        f"undecided: see halfbridge tx explain {undecided.id}",
        f"dead letter, UNDELIVERABLE: see halfbridge dead show {dead.id}",
        "rolled back: it is not delivered",
        f"delivered to {TOPIC}[{delivery.partition}]@{delivery.offset}",
    ]
    assert (found.total, found.unread, found.unreadable) == (4, 0, 0)
    assert plain.found(found)["transactions"][0]["half"]["real_topic"] == TOPIC


def test_a_later_message_of_a_transaction_is_found_too(stack: MemoryStack) -> None:
    """If messages 1 and 2 have the key, the transaction is listed once, with message 1."""
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = producer.begin()
        tx.send(Message(TOPIC, key=b"customer-7", value=b"one"))
        tx.send(Message(TOPIC, key=KEY, value=b"two"))
        tx.send(Message(TOPIC, key=KEY, value=b"three"))
        tx.commit()
        stack.advance(seconds=5)
        (only,) = _found(stack).hits
    assert (only.id, only.half.message_index, only.key) == (tx.id, 1, KEY)
    assert only.end is not None
    assert (only.end.kind, only.end.message_index) == (Kind.DELIVERY, 1)


def test_a_discarded_one_and_its_next_life(stack: MemoryStack) -> None:
    """A discarded transaction has its dead letter as end; a resumed one is PREPARED without end."""
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = producer.begin()
        tx.send(Message(TOPIC, key=b"customer-7", value=b"one"))
        stack.advance(seconds=3)
        tx.send(Message(TOPIC, key=KEY, value=b"two"))
        stack.advance(seconds=HOUR_S)
        (dead,) = _found(stack).hits
        assert dead.end is not None
        assert (dead.state, dead.end.reason) == ("DISCARDED", DeadReason.CHECK_TIMES.value)
        operator = Operator(stack)
        letters = DeadLetters(operator.cluster, operator.names)
        order = Order(wanted=Wanted(), limit=1, rate=1_000.0, who="ann", why="it was sold")
        redo(letters, order, Choice(remedy=Remedy.RESUME), lambda _reported: True)
        (undecided,) = _found(stack).hits
    assert (undecided.state, undecided.half.resume_count) == ("PREPARED", 1)
    assert undecided.end is None


def test_topic_time_and_limit_choose(stack: MemoryStack) -> None:
    """Topic, group, since and until filter; a limit keeps the newest, and the total counts all."""
    stack.create_topic("bills")
    with stack.producer(GROUP, checker=unknown) as producer:
        old = sent(producer, b"one", key=KEY)
        stack.advance(seconds=10)
        middle_ms = stack.machine.broker.now_ms
        bill = producer.begin()
        bill.send(Message("bills", key=KEY, value=b"two"))
        stack.advance(seconds=1)
        chosen = [
            _found(stack, topic=TOPIC),
            _found(stack, topic="none"),
            _found(stack, group="none"),
            _found(stack, since_ms=middle_ms),
            _found(stack, until_ms=middle_ms),
            _found(stack, limit=1),
        ]
    ids = [[each.id for each in one.hits] for one in chosen]
    assert ids == [[old.id], [], [], [bill.id], [old.id], [bill.id]]
    assert [one.total for one in chosen] == [1, 0, 0, 1, 1, 2]


def test_of_too_many_records_the_newest_are_read(stack: MemoryStack) -> None:
    """The result has the number of unread records, and the time from which on all were read."""
    stack.daemon.kill()  # it would put half messages back
    with stack.producer(GROUP, checker=unknown) as producer:
        for number in range(40):
            sent(producer, b"v", key=b"%d" % number)
            stack.advance(seconds=1)
        last = sent(producer, b"one", key=KEY)
        stack.advance(seconds=1)
        found, early = _found(stack, records_max=10), _found(stack, key="0", records_max=10)
        assert [each.id for each in found.hits] == [last.id]
        assert (found.unread, found.records) in ((31, 10), (30, 11))  # a part of each partition
        assert (early.hits, early.total) == ((), 0)
        assert found.read_from_ms == early.read_from_ms > 0
        rest = _found(stack, key="0", until_ms=found.read_from_ms)
    assert len(rest.hits) == 1


def test_of_too_many_transactions_the_newest_are_kept(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total counts the transactions that were not kept, too."""
    monkeypatch.setattr(finding, "KEPT_MAX", 4)
    with stack.producer(GROUP, checker=unknown) as producer:
        ids = []
        for _ in range(9):
            ids.append(sent(producer, b"v", key=KEY).id)
            stack.advance(seconds=1)
        found = _found(stack, limit=2)
    assert [each.id for each in found.hits] == [ids[8], ids[7]]
    assert found.total == 9


def test_records_that_cannot_be_read_are_counted(stack: MemoryStack) -> None:
    """A record that cannot be read is no hit, but is counted as unreadable."""
    operator = Operator(stack)
    operator.write_junk(operator.names.half, 0, b"value")  # its key is b"key"
    found = _found(stack, key="key")
    assert (found.hits, found.total, found.unreadable) == ((), 0, 1)


def test_without_an_installation_the_command_says_so() -> None:
    """If the prefix has no half topic, the error names `topics create`."""
    with MemoryStack(partitions=1) as stack:
        operator = Operator(stack)
        names = type(operator.names)("other-")
        with pytest.raises(AdminSetupError, match="topics create") as refused:
            find(operator.cluster, names, FindQuery(key="k", since_ms=0, limit=1))
        assert refused.value.topics == (names.half, names.op)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("order-42", b"order-42"),
        ("grün", "grün".encode()),
        ("", b""),
        ("\\xff\\n", b"\xff\n"),
        ("a\\b", b"a\\b"),
        ("\\xff", b"\\xff"),
        ("0x00ff", b"\x00\xff"),
        ("0x00ff", b"0x00ff"),
        ("0xy", b"0xy"),
        ("\udcff", b"\xff"),
    ],
)
def test_a_key_is_named_as_text_as_printed_or_in_hexadecimal(text: str, key: bytes) -> None:
    """All forms of a key are accepted, also bytes from the shell that are not UTF-8."""
    is_meant = meant_by(text)
    assert is_meant(key)
    assert not is_meant(key + b"x")
    assert not is_meant(None)


# --- ranges of time in which one transaction is searched -----------------------------------

NOON = 1_700_000_000_000


def test_an_id_says_when_it_was_made() -> None:
    """The first 48 bits of a UUIDv7 are its time."""
    identity = TransactionIds().next()
    assert birth_ms(identity) == int(identity, 16) >> 80
    assert birth_ms(identity.upper()) == birth_ms(identity)


@pytest.mark.parametrize(
    "text", ["", "x" * 32, "0" * 32, "1d1a94a20c870008000000000000001", "\u0663" * 32, "7" * 4_000]
)
def test_other_ids_say_nothing(text: str) -> None:
    """A text that is not a UUIDv7 has no time."""
    assert birth_ms(text) is None


def test_every_moment_from_a_minute_before_on_is_read_once() -> None:
    """The likeliest range comes first; the ranges have no gap and no end."""
    found = slices(NOON, None, is_exact=False)
    assert [each.from_ms - NOON for each in found] == [
        *(-1_000, -10_000, 2_000, -60_000, 30_000, 600_000)
    ]
    ordered = sorted(found)
    assert [each.until_ms for each in ordered[:-1]] == [each.from_ms for each in ordered[1:]]
    assert ordered[-1].until_ms is None


def test_a_given_time_is_where_reading_begins() -> None:
    """No range begins before an exact time."""
    assert min(each.from_ms for each in slices(NOON, None, is_exact=True)) == NOON


@pytest.mark.parametrize("after_ms", [-100_000, -10_000, 0, 1_000, 300_000, 10_000_000])
def test_an_end_cuts_the_ranges(after_ms: int) -> None:
    """No range ends after the given end, and there is always a range."""
    found = slices(NOON, NOON + after_ms, is_exact=False)
    assert found
    assert max(each.until_ms or 0 for each in found) <= NOON + after_ms
    assert all(each.until_ms is not None for each in found)

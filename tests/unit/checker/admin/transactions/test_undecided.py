"""What bounds the reading of undecided transactions, and what is read of a stopped pair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halfbridge.checker.admin.transactions import asked, trail, undecided
from halfbridge.checker.errors import AdminError
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.testkit.memory import MemoryStack
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


def test_too_many_records_are_refused_with_a_way_out(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is told which flag makes it less; one pair alone may be below the limit."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        pair = 1 - (operator.shown(sent(producer, b"one").id).partition or 0)
        for _ in range(20):
            sent(producer, b"more")
        monkeypatch.setattr(undecided, "RECORDS_MAX", 10)
        with pytest.raises(AdminError, match="--partition"):
            operator.listed()
        assert operator.listed(partitions=(pair,)).undecided == 0


def test_too_much_memory_is_refused(stack: MemoryStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names of a stranger cannot fill the memory of the operator's machine."""
    operator = Operator(stack)
    for number in range(20):
        operator.write_half(f"{number}" * 500, 0, producer_group="g" * 500)
    monkeypatch.setattr(undecided, "ENTRIES_BYTES_MAX", 50_000)
    with pytest.raises(AdminError, match="memory"):
        operator.listed()


def test_decided_transactions_take_no_memory(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a daemon the ledger that is read forgets what is decided, as a worker's does."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        stack.daemon.kill()
        open_ = sent(producer, b"open")
        for _ in range(50):
            sent(producer, b"done").commit()
            stack.advance(seconds=1)
        monkeypatch.setattr(undecided, "ENTRIES_BYTES_MAX", 60_000)
        (only,) = operator.listed().transactions
    assert only.id == open_.id


def test_requests_beyond_the_limit_are_left_out(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ones count, and the list is no less for it."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        for _ in range(20):
            sent(producer, b"one")
        stack.advance(seconds=8)
        whole = sum(each.checks_asked or 0 for each in operator.listed().transactions)
        answered = [each.checks_answered for each in operator.listed().transactions]
        monkeypatch.setattr(asked, "REQUESTS_MAX", 4)
        fewer = operator.listed().transactions
    assert whole == sum(answered) == 20
    assert [each.checks_answered for each in fewer] == answered


def test_a_flood_of_ops_about_one_id_is_cut(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones decide; later ones of somebody who knows the id are not kept."""
    monkeypatch.setattr(trail, "RECORDS_KEPT_MAX", 5)
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        tx.commit()
        stack.read_committed(TOPIC, count=1)
        pair = operator.shown(tx.id).partition or 0
        for _ in range(20):
            operator.write_op(OpKind.ROLLBACK, tx.id, pair, source=OpSource.CHECK)
        life = operator.shown(tx.id)
    assert life.state == "COMMITTED"
    assert len([each for each in life.events if each.op]) == 5

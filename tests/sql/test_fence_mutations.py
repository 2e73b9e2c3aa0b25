"""Defects planted in the fence's block, each of which a probe must notice.

The probes use the broker in memory and SQLite, so that each defect is tried in a second.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from halfbridge import Message
from halfbridge.bridge import IllegalTransitionError, Transaction
from halfbridge.bridge.transaction import Event, step
from halfbridge.sql import CommitUnknownError, FenceUsageError, TransactionEndedError
from halfbridge.sql import fence as fence_block
from halfbridge.sql import fence as fence_module
from halfbridge.sql.errors import Outcome
from halfbridge.sql.fence import Block
from halfbridge.testkit.memory import MemoryStack, Step
from tests.simulation.mutation import Mutation
from tests.unit.testkit.memory.shop import GROUP, TOPIC, Shop

Probe = Callable[[MemoryStack, Shop], None]

_commit, _init = Block._commit, Block.__init__
WORK = text("INSERT INTO placed VALUES ('two shirts')")


class BrokenError(Exception):
    """An error that the application raises."""


# --- probes --------------------------------------------------------------------------------


def agree(stack: MemoryStack, shop: Shop) -> None:
    """Check that the delivered messages are those of the committed rows."""
    stack.wait_until_decided()
    assert [each.value for each in stack.read_committed(TOPIC)] == shop.placed()


def dies(step: Step, stack: MemoryStack, shop: Shop) -> None:
    """Die at a step; a successor answers the check."""
    producer = stack.producer(GROUP, checker=shop.fence.check)
    producer.start()
    with stack.crash_at(step):
        shop.place(producer, "two shirts")
    with stack.restart():
        agree(stack, shop)


def ends(stack: MemoryStack, shop: Shop, error: type[Exception], act: Callable[..., Any]) -> None:
    """Send a message, act, and check that the block ends with an error, and that both agree."""
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with pytest.raises(error), shop.fence.transaction(producer) as (tx, connection):
            tx.send(Message(TOPIC, value=b"two shirts"))
            act(tx, connection)
        agree(stack, shop)


def refuses_the_commit(stack: MemoryStack, shop: Shop) -> None:
    """COMMIT was not sent, so nothing is in doubt: the error is the listener's."""

    def refuse(_: object) -> None:
        raise BrokenError

    def act(_tx: object, connection: Any) -> None:
        connection.execute(WORK)
        event.listen(connection, "commit", refuse)

    ends(stack, shop, BrokenError, act)


def only_sends(stack: MemoryStack, shop: Shop) -> None:
    """The work was done on another connection."""
    ends(stack, shop, FenceUsageError, lambda *_: None)


def commits_the_messages(stack: MemoryStack, shop: Shop) -> None:
    """Commit the messages in the middle of the block, and fail afterwards."""

    def act(tx: Any, connection: Any) -> None:
        connection.execute(WORK)
        tx.commit()
        raise BrokenError

    ends(stack, shop, IllegalTransitionError, act)


def commits_as_text(stack: MemoryStack, shop: Shop) -> None:
    """The fence row is committed with the work, so the message is committed."""

    def act(_tx: object, connection: Any) -> None:
        connection.execute(WORK)
        connection.exec_driver_sql("COMMIT")

    ends(stack, shop, TransactionEndedError, act)


def sends_around(tx: Any, connection: Any) -> None:
    """Send before, between and after two statements; do not await the last one."""
    tx.send(Message(TOPIC, value=b"two shirts"))
    connection.execute(WORK)
    tx.send(Message(TOPIC, value=b"two shirts"))
    connection.execute(WORK)
    tx.send_async(Message(TOPIC, value=b"two shirts"))
    connection.execute(WORK)


def dies_around(stack: MemoryStack, shop: Shop) -> None:
    """Die after the database's COMMIT; a successor answers the check."""
    producer = stack.producer(GROUP, checker=shop.fence.check)
    producer.start()
    with (
        stack.crash_at(Step.AFTER_LOCAL_COMMIT),
        shop.fence.transaction(producer) as (tx, connection),
    ):
        sends_around(tx, connection)
    with stack.restart():
        agree(stack, shop)
    assert shop.placed() == [b"two shirts"] * 3
    assert stack.dead_letters() == []


def sends_during_the_commit(stack: MemoryStack, shop: Shop) -> None:
    """The row has the number already, so the send is refused."""

    def act(tx: Any, connection: Any) -> None:
        connection.execute(WORK)
        event.listen(connection, "commit", lambda _: tx.send(Message(TOPIC, value=b"a hat")))

    ends(stack, shop, IllegalTransitionError, act)


# --- defects -------------------------------------------------------------------------------


def _messages_first(self: Any) -> None:
    self._tx.commit_held = ""
    self._tx.commit(wait=True)
    _commit(self)


def _always_empty(self: Any, *given: Any, **named: Any) -> None:
    _init(self, *given, **{**named, "allows_empty": True})


def _nothing(*_: object, **__: object) -> None:
    pass


def _early_number(self: Any) -> None:
    """Leave the number of the first statement in the row."""
    self._row_count = self._tx.message_count
    _commit(self)


def _not_awaited(self: Any) -> int:
    return int(self.message_count)


def _after_the_commit(self: Any) -> None:
    """Write the number in a transaction of its own."""
    early, self._row_count = self._row_count, self._tx.message_count
    _commit(self)
    with self._fence.engine.begin() as connection:
        if early != self._tx.message_count:
            self._fence.write_count(connection, self._tx)


def _goes_on_sending(self: Any) -> Any:
    return step(self._state, Event.SEND)


DEFECTS: tuple[tuple[Mutation, Probe], ...] = (
    (
        Mutation("messages before the database", 1, ((Block, "_commit", _messages_first),)),
        partial(dies, Step.BEFORE_LOCAL_COMMIT),
    ),
    (
        Mutation("no fence row", 1, ((fence_module, "write_committed", _nothing),)),
        partial(dies, Step.AFTER_LOCAL_COMMIT),
    ),
    (
        Mutation("in doubt before COMMIT", 1, ((fence_block, "reached_driver", lambda _: True),)),
        refuses_the_commit,
    ),
    (
        Mutation("the number of the first statement", 1, ((Block, "_commit", _early_number),)),
        dies_around,
    ),
    (
        Mutation("a late send is not awaited", 1, ((Transaction, "end_sends", _not_awaited),)),
        dies_around,
    ),
    (
        Mutation("the row is read before its update", 1, ((Block, "_commit", _after_the_commit),)),
        dies_around,
    ),
    (
        Mutation("sends go on", 1, ((Transaction, "_step_to_send", _goes_on_sending),)),
        sends_during_the_commit,
    ),
    (Mutation("sends alone commit", 1, ((Block, "__init__", _always_empty),)), only_sends),
    (
        Mutation("anybody commits", 1, ((fence_block, "_COMMIT_OF_MESSAGES", ""),)),
        commits_the_messages,
    ),
    (
        Mutation(
            "rolled back without a row", 1, ((Block, "_outcome", lambda _: Outcome.ROLLED_BACK),)
        ),
        commits_as_text,
    ),
)
EACH = pytest.mark.parametrize(
    ("mutation", "probe"), [pytest.param(*each, id=each[0].name) for each in DEFECTS]
)


def _run(probe: Probe, directory: Path) -> None:
    with MemoryStack() as stack, closing(Shop(directory / "shop.db")) as shop:
        stack.create_topic(TOPIC)
        probe(stack, shop)


@EACH
def test_the_block_keeps_its_promises(mutation: Mutation, probe: Probe, tmp_path: Path) -> None:
    """Without a defect each probe passes."""
    _run(probe, tmp_path)


@EACH
def test_every_planted_defect_is_noticed(mutation: Mutation, probe: Probe, tmp_path: Path) -> None:
    """The probe fails, and not by an error of its own."""
    noticed = (AssertionError, pytest.fail.Exception, CommitUnknownError, BrokenError)
    with mutation.planted(), pytest.raises(noticed):
        _run(probe, tmp_path)

"""A user's test, run once for each step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from halfbridge import Message, Resolution
from halfbridge.testkit.memory import (
    CrashNotReachedError,
    DisagreementError,
    MemoryStack,
    Step,
    every_crash,
)
from tests.unit.testkit.memory.shop import GROUP, TOPIC, Shop

Says = Callable[[], tuple[object, object]]


def test_database_and_topic_agree_after_every_crash(tmp_path: Path) -> None:
    """With a fence; each run has its own installation and database."""
    seen: list[Step | None] = []

    def orders(stack: MemoryStack, step: Step | None) -> Says:
        seen.append(step)
        shop = Shop(tmp_path / f"{step}.db")
        stack.create_topic(TOPIC)
        with (
            stack.producer(GROUP, checker=shop.fence.check) as producer,
            stack.crash_at(step),
        ):
            shop.place(producer, "two shirts")

        def says() -> tuple[object, object]:
            with closing(shop):
                return shop.placed(), [each.value for each in stack.read_committed(TOPIC)]

        return says

    every_crash(orders)
    assert seen == [None, *Step]


def wrong(is_placed_first: bool) -> Callable[[MemoryStack, Step | None], Says]:
    """Return the test of a service whose checker does not look at the database."""

    def orders(stack: MemoryStack, step: Step | None) -> Says:
        placed: list[bytes] = []
        stack.create_topic(TOPIC)
        with (
            stack.producer(GROUP, checker=lambda _: Resolution.ROLLBACK) as producer,
            stack.crash_at(step),
            producer.begin() as tx,
        ):
            tx.send(Message(TOPIC, value=b"two shirts"))
            stack.mark(Step.BEFORE_LOCAL_COMMIT)
            if is_placed_first:
                placed.append(b"two shirts")
            stack.mark()
        return lambda: (placed, [each.value for each in stack.read_committed(TOPIC)])

    return orders


def test_a_checker_that_lies_is_found() -> None:
    """It rolls back what the database has committed: the first step after the commit tells."""
    with pytest.raises(DisagreementError, match="AFTER_LOCAL_COMMIT: the database says"):
        every_crash(wrong(is_placed_first=True))


def test_a_service_that_forgets_its_database_is_found() -> None:
    """Without any crash, too."""
    with pytest.raises(DisagreementError, match="no crash: the database says"):
        every_crash(wrong(is_placed_first=False))


def test_a_test_of_nothing_is_found() -> None:
    """Nothing is in the database; nothing runs where it is to die."""
    with pytest.raises(DisagreementError, match="nothing is tested"):
        every_crash(lambda _stack, _step: lambda: ([], []), steps=())
    with pytest.raises(CrashNotReachedError, match="runs nothing"):
        every_crash(lambda _stack, _step: lambda: ([1], [1]), steps=[Step.BEFORE_HALF])

"""Checks of a crowd, on the shipped worker and client in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge import Message, Resolution
from halfbridge.checker.loop.pacer import UNANSWERED_MAX
from halfbridge.testkit.memory import MemoryStack

if TYPE_CHECKING:
    from halfbridge import MessageView

TIMEOUT_S = 5.0
CROWD = UNANSWERED_MAX + 200
IN_TIME_S = 0.2


def test_a_crowd_is_delivered_as_fast_as_its_group_answers() -> None:
    """More than may be unanswered fall due at once: all are asked, answered and delivered."""
    asked: list[str] = []

    def answer(view: MessageView) -> Resolution:
        asked.append(view.transaction_id)
        return Resolution.COMMIT

    with MemoryStack(transaction_timeout_ms=round(TIMEOUT_S * 1_000)) as stack:
        topic = stack.create_topic("orders")
        with stack.producer("shop", checker=answer) as producer:
            for _ in range(CROWD):
                producer.begin().send(Message(topic, value=b"two shirts"))
            stack.advance(TIMEOUT_S - IN_TIME_S)
            assert asked == []
            stack.advance(2 * IN_TIME_S)
            assert len(stack.read_committed(topic)) == CROWD
    assert len(asked) == len(set(asked)) == CROWD

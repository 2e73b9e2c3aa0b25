"""Checks of a crowd, on the shipped worker and client in memory."""

from __future__ import annotations

import logging

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.loop.asking import UNANSWERED_MAX
from halfbridge.checker.loop.report import REPORTED_AGAIN_S
from halfbridge.testkit.memory import MemoryStack, Step

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


def test_a_decision_by_a_check_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """It names transaction, answer and group; a decision of the producer has no line."""
    caplog.set_level(logging.INFO, "halfbridge.checker")
    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer("shop", checker=lambda _view: Resolution.ROLLBACK) as producer:
            with producer.begin() as decided:
                decided.send(Message(topic, value=b"two shirts"))
            asked = producer.begin()
            asked.send(Message(topic, value=b"a hat"))
            stack.wait_until_decided()
    (line,) = [each for each in caplog.messages if "is answered" in each]
    assert f"transaction {asked.id} is answered ROLLBACK by group shop, at " in line


def test_a_group_that_nobody_answers_is_reported_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once in five minutes, with count, age and remedy; no more once a member answers."""
    caplog.set_level(logging.WARNING, "halfbridge.checker")

    def reports() -> list[str]:
        return [each for each in caplog.messages if each.startswith("nobody answers checks")]

    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        producer = stack.producer("shop", checker=lambda _view: Resolution.COMMIT)
        with stack.crash_at(Step.BEFORE_DECISION), producer, producer.begin() as tx:
            tx.send(Message(topic, value=b"two shirts"))
        stack.advance(60)
        assert reports() == []
        stack.advance(120)
        (line,) = reports()
        assert "of group shop: 1 undecided transactions" in line
        assert "halfbridge groups show shop" in line
        stack.advance(REPORTED_AGAIN_S)
        assert len(reports()) == 2
        stack.restart()
        stack.wait_until_decided()
        stack.advance(2 * REPORTED_AGAIN_S)
        assert len(reports()) == 2

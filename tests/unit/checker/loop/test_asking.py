"""Checks of many transactions, by the shipped worker and client in memory."""

import logging
from collections import deque

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.loop.asking import (
    BURST_S,
    GROUPS_MAX,
    SILENT_S,
    UNANSWERED_MAX,
    Pacer,
    Unanswered,
)
from halfbridge.checker.loop.report import REPORTED_AGAIN_S
from halfbridge.testkit.memory import MemoryStack, Step

TIMEOUT_S = 5.0
CROWD = UNANSWERED_MAX + 200
IN_TIME_S = 0.2


def test_a_crowd_is_delivered_as_fast_as_its_group_answers() -> None:
    """If more than UNANSWERED_MAX fall due at once, all are asked once and delivered in time."""
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
    """The line has transaction, answer and group; a producer's decision has no line."""
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
    """The warning repeats every five minutes, with count and remedy, until a member answers."""
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


# --- how many checks may be sent, in total and to each group -------------------------------

INTERVAL_S = 30.0
TURN_S = 0.01


def _asked(answered_per_s: float, seconds: float, *, due: int, latency_s: float = 0.02) -> int:
    """Return how many of `due` requests are sent to a group that answers at a rate."""
    unanswered = Unanswered(INTERVAL_S)
    sent, waiting, credit = 0, deque[float](), 0.0
    for turn in range(round(seconds / TURN_S)):
        now = turn * TURN_S
        credit = min(credit + answered_per_s * TURN_S, max(1.0, answered_per_s * TURN_S))
        while waiting and credit >= 1 and now - waiting[0] >= latency_s:
            waiting.popleft()
            unanswered.answered("shop", now)
            credit -= 1
        count = min(unanswered.room("shop", now), due - sent)
        if count > 0:
            unanswered.asked("shop", count, now)
            waiting.extend([now] * count)
            sent += count
    return sent


def test_the_rate_bounds_all_checks() -> None:
    """The pacer allows a burst, then the rate, and after a pause no more than a burst."""
    pacer = Pacer(1_000)
    burst = round(1_000 * BURST_S)
    assert pacer.allowance(0.0) == burst
    pacer.spend(burst)
    assert pacer.allowance(0.05) == 50
    assert pacer.allowance(100.0) == burst


def test_a_group_that_answers_at_once_is_asked_without_a_pause() -> None:
    """10,000 requests are sent within half a second at 20 ms latency."""
    assert _asked(1_000_000, 0.5, due=10_000) == 10_000


@pytest.mark.parametrize("per_s", [100, 1_000])
def test_a_slow_group_is_asked_as_it_answers(per_s: int) -> None:
    """After the first UNANSWERED_MAX requests, one is sent for each answer."""
    seconds = 5.0
    asked = _asked(per_s, seconds, due=100_000)
    assert asked == pytest.approx(UNANSWERED_MAX + per_s * seconds, rel=0.01)


def test_a_silent_group_is_asked_again_and_again() -> None:
    """A silent group is sent UNANSWERED_MAX requests again every SILENT_S."""
    assert _asked(0, 10 * SILENT_S - TURN_S, due=100_000) == 10 * UNANSWERED_MAX


def test_a_request_that_is_repeated_counts_once() -> None:
    """Requests that were not answered stop counting when they are repeated."""
    unanswered = Unanswered(repeated_after_s=10.0)
    unanswered.asked("shop", UNANSWERED_MAX, 0.0)
    for second in range(1, 10):
        unanswered.answered("shop", float(second))
        assert unanswered.room("shop", float(second)) == second
    unanswered.answered("shop", 9.5)
    assert unanswered.room("shop", 10.0) == UNANSWERED_MAX


def test_more_answers_than_requests_save_up_nothing() -> None:
    """Answers without a pending request do not raise the room above UNANSWERED_MAX."""
    unanswered = Unanswered(INTERVAL_S)
    unanswered.asked("shop", 2, 0.0)
    for _ in range(5):
        unanswered.answered("shop", 0.1)
    unanswered.answered("nobody", 0.1)
    assert unanswered.room("shop", 0.1) == UNANSWERED_MAX
    assert unanswered.room("nobody", 0.1) == UNANSWERED_MAX


def test_invented_groups_are_forgotten() -> None:
    """Beyond GROUPS_MAX groups the one that was asked first is forgotten."""
    unanswered = Unanswered(INTERVAL_S)
    for number in range(GROUPS_MAX + 1):
        unanswered.asked(f"group-{number}", 1, 0.0)
    assert unanswered.room("group-0", 0.0) == UNANSWERED_MAX
    assert unanswered.room("group-1", 0.0) == UNANSWERED_MAX - 1

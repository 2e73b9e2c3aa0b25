"""When the end of a half partition must be proven, and for which ops an answer is valid."""

from halfbridge.checker.core.ledger import HalfEnd
from halfbridge.checker.core.settings import (
    OP_ALERT_MS,
    OP_WAIT_ALERT_MS,
    OP_WAIT_ALERT_MS_MAX,
    OP_WAIT_MS,
)


def _asked(doubt: HalfEnd, op_offset: int, now_ms: int, wait_ms: int = OP_WAIT_MS) -> int:
    """Let an op wait for `wait_ms` and return the token of the question."""
    assert doubt.question(op_offset, 9, now_ms) is None
    assert doubt.question(op_offset, 9, now_ms + wait_ms - 1) is None
    token = doubt.question(op_offset, 9, now_ms + wait_ms)
    assert token is not None
    return token


def test_a_question_stays_open_until_it_is_answered() -> None:
    """An unanswered question keeps its token; it can be answered once."""
    doubt = HalfEnd()
    token = _asked(doubt, 7, 0)
    assert doubt.question(7, 20, 9_000) == token
    assert doubt.read_to == 9
    assert doubt.is_answer(token, is_beyond=True)
    assert not doubt.is_answer(token, is_beyond=True)


def test_an_answer_is_about_ops_that_had_been_read_before_the_question() -> None:
    """Ops that are read after the question do not move the offset that its answer is valid for."""
    doubt = HalfEnd()
    assert doubt.question(7, 9, 0) is None
    token = doubt.question(7, 20, OP_WAIT_MS)
    assert token is not None
    assert doubt.question(7, 30, OP_WAIT_MS + 5) == token
    assert doubt.is_answer(token, is_beyond=True)
    assert doubt.read_to == 20


def test_each_op_begins_anew() -> None:
    """An answer is not valid for the next waiting op, nor after `clear`."""
    doubt = HalfEnd()
    first = _asked(doubt, 7, 0)
    second = _asked(doubt, 8, 1_000)
    assert not doubt.is_answer(first, is_beyond=True)
    assert doubt.is_answer(second, is_beyond=False)
    third = _asked(doubt, 8, 3_000)
    doubt.clear(4_000)
    assert not doubt.is_answer(third, is_beyond=True)
    _asked(doubt, 8, 5_000)


def test_an_answer_to_the_ledger_before_says_nothing() -> None:
    """A new ledger does not accept the answer to a question of the previous one."""
    old, new = HalfEnd(), HalfEnd()
    token = _asked(old, 7, 0)
    assert new.question(7, 9, 2_000) is None
    assert not new.is_answer(token, is_beyond=True)
    mine = new.question(7, 9, 2_000 + OP_WAIT_MS)
    assert mine is not None
    assert new.is_answer(mine, is_beyond=True)


def test_after_a_first_one_it_is_asked_at_once_for_an_hour() -> None:
    """After an op beyond the end, the next ones are asked about after OP_WAIT_ALERT_MS."""
    doubt = HalfEnd()
    token = _asked(doubt, 7, 0)
    assert doubt.is_answer(token, is_beyond=True)
    again = _asked(doubt, 8, 5_000, OP_WAIT_ALERT_MS)
    assert doubt.is_answer(again, is_beyond=True)
    last = again + OP_ALERT_MS
    _asked(doubt, 9, last - OP_WAIT_ALERT_MS - 1, OP_WAIT_ALERT_MS)
    _asked(doubt, 10, last)


def test_an_op_whose_half_message_is_there_is_not_asked_about_at_once_again() -> None:
    """After an answer that the half message exists, the op waits OP_WAIT_MS again."""
    doubt = HalfEnd()
    assert doubt.is_answer(_asked(doubt, 7, 0), is_beyond=True)
    honest = _asked(doubt, 8, 2_000, OP_WAIT_ALERT_MS)
    assert doubt.is_answer(honest, is_beyond=False)
    assert doubt.is_answer(_asked(doubt, 8, 3_000, OP_WAIT_MS), is_beyond=False)
    _asked(doubt, 9, 5_000, OP_WAIT_ALERT_MS)


def _honest(doubt: HalfEnd, waited_ms: int, times: int) -> None:
    """Let ops wait until their half messages are read."""
    for _ in range(times):
        assert doubt.question(100, 200, 0) is None
        doubt.clear(waited_ms)


def test_where_half_messages_come_late_they_are_given_longer() -> None:
    """The wait before a question grows with the time that half messages were late."""
    doubt = HalfEnd()
    assert doubt.is_answer(_asked(doubt, 7, 0), is_beyond=True)
    _honest(doubt, 20, 100)
    assert doubt.is_answer(_asked(doubt, 8, 5_000, 2 * 20), is_beyond=True)
    _honest(doubt, 900, 1_000)
    assert doubt.is_answer(_asked(doubt, 9, 9_000, OP_WAIT_ALERT_MS_MAX), is_beyond=True)
    _honest(doubt, 0, 1_000)
    assert doubt.is_answer(_asked(doubt, 10, 9_500, OP_WAIT_ALERT_MS), is_beyond=True)

"""When the end of a half partition is asked, and what its answers prove."""

from __future__ import annotations

from checker.core.half_end import HalfEnd
from checker.core.settings import OP_CONFIRM_MS, OP_WAIT_MS


def _asked(doubt: HalfEnd, op_offset: int, now_ms: int, wait_ms: int) -> int:
    """Let an op wait for `wait_ms` and return the token of the question that comes then."""
    assert doubt.question(op_offset, 9, now_ms) is None
    assert doubt.question(op_offset, 9, now_ms + wait_ms - 1) is None
    token = doubt.question(op_offset, 9, now_ms + wait_ms)
    assert token is not None
    return token


def test_two_answers_with_time_between_them_prove() -> None:
    """The second question comes a good while after the first answer was taken."""
    doubt = HalfEnd()
    assert not doubt.is_proven(_asked(doubt, 7, 0, OP_WAIT_MS), is_beyond=True)
    assert doubt.is_proven(_asked(doubt, 7, 2_000, OP_CONFIRM_MS), is_beyond=True)


def test_an_answer_twice_is_one() -> None:
    """Two questions of the same moment, or one that was answered late."""
    doubt = HalfEnd()
    first = _asked(doubt, 7, 0, OP_WAIT_MS)
    assert not doubt.is_proven(first, is_beyond=True)
    _asked(doubt, 7, 2_000, OP_CONFIRM_MS)
    assert not doubt.is_proven(first, is_beyond=True)


def test_one_answer_to_the_contrary_begins_anew() -> None:
    """The half message is there: whoever said otherwise knew less."""
    doubt = HalfEnd()
    assert not doubt.is_proven(_asked(doubt, 7, 0, OP_WAIT_MS), is_beyond=True)
    assert not doubt.is_proven(_asked(doubt, 7, 2_000, OP_CONFIRM_MS), is_beyond=False)
    assert not doubt.is_proven(_asked(doubt, 7, 9_000, OP_WAIT_MS), is_beyond=True)


def test_each_op_begins_anew() -> None:
    """Answers about one op that waited say nothing of the next one, nor after a pause."""
    doubt = HalfEnd()
    first = _asked(doubt, 7, 0, OP_WAIT_MS)
    second = _asked(doubt, 8, 1_000, OP_WAIT_MS)
    assert not doubt.is_proven(first, is_beyond=True)
    assert not doubt.is_proven(second, is_beyond=True)
    doubt.clear()
    assert not doubt.is_proven(_asked(doubt, 8, 3_000, OP_WAIT_MS), is_beyond=True)


def test_an_answer_to_the_ledger_before_says_nothing() -> None:
    """It was dropped while the question was under way; the same op waits in the new one."""
    old, new = HalfEnd(), HalfEnd()
    token = _asked(old, 7, 0, OP_WAIT_MS)
    assert new.question(7, 9, 2_000) is None
    assert not new.is_proven(token, is_beyond=True)
    mine = new.question(7, 9, 2_000 + OP_WAIT_MS)
    assert mine is not None
    assert not new.is_proven(mine, is_beyond=True)


def test_what_is_proven_is_proven_once() -> None:
    """An op that still waits afterwards, for less, is proven anew, by two answers."""
    doubt = HalfEnd()
    assert not doubt.is_proven(_asked(doubt, 7, 0, OP_WAIT_MS), is_beyond=True)
    assert doubt.is_proven(_asked(doubt, 7, 2_000, OP_CONFIRM_MS), is_beyond=True)
    assert not doubt.is_proven(_asked(doubt, 7, 9_000, OP_WAIT_MS), is_beyond=True)
    assert doubt.is_proven(_asked(doubt, 7, 11_000, OP_CONFIRM_MS), is_beyond=True)


def test_what_the_first_question_covers() -> None:
    """Ops that had been read by then, not those that were read while it was proven."""
    doubt = HalfEnd()
    assert not doubt.is_proven(_asked(doubt, 7, 0, OP_WAIT_MS), is_beyond=True)
    assert doubt.question(7, 20, 2_000) is None
    token = doubt.question(7, 20, 2_000 + OP_CONFIRM_MS)
    assert token is not None
    assert doubt.is_proven(token, is_beyond=True)
    assert doubt.read_to == 9

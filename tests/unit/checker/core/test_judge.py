"""What a COMMIT does to messages: the table of cases."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.ops import discard_reason, judge_commit
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.protocol import REASON_AGE, REASON_CHECK_TIMES, REASON_TOO_LARGE
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason, OpKind, OpSource
from tests.playbook import metadata, op_record


def _half(
    index: int, offset: int, *, flaw: str = "", topic: str = "real", user_bytes: int = 0
) -> HalfRead:
    told = metadata("A", index)._replace(real_topic=topic)
    return HalfRead(offset, 1, told, flaw, 10, None, user_bytes)


@pytest.mark.parametrize(
    ("life", "source", "count", "is_delivered"),
    [
        (1, OpSource.OPERATOR, COUNT_UNKNOWN, True),
        (0, OpSource.OPERATOR, COUNT_UNKNOWN, False),  # its producer's life must be whole
        (1, OpSource.CHECK, COUNT_UNKNOWN, False),  # resumed, and asked about again
        (1, OpSource.OPERATOR, 2, False),  # a count demands the messages 0 to count - 1
    ],
)
def test_what_an_operator_redelivers_may_have_gaps(
    life: int, source: OpSource, count: int, is_delivered: bool
) -> None:
    """Messages 1 and 3 of a later life are delivered by an operator's COMMIT without a count."""
    op = op_record("A", OpKind.COMMIT, half_offset=2)._replace(
        resume_count=life, source=source, message_count=count
    )
    verdict = judge_commit([_half(1, 1), _half(3, 2)], op, lambda _group, _topic: True)
    assert [half.metadata.message_index for half in verdict.deliver] == [1, 3] * is_delivered
    assert len(verdict.dead) == 2 * (not is_delivered)


@pytest.mark.parametrize(
    ("messages", "count", "half_offset", "delivered", "dead"),
    [
        # (index, offset) of each message; count; half_offset -> indices; (index, reason)
        ([(0, 5)], 1, 5, [0], []),
        ([(0, 5)], COUNT_UNKNOWN, 9, [0], []),
        ([(0, 5)], 1, 4, [], [(0, "LATE")]),
        ([(0, 5)], COUNT_UNKNOWN, 4, [], [(0, "LATE")]),
        ([(0, 5)], 2, 5, [], [(0, "INCOMPLETE")]),
        ([(0, 5)], 0, 5, [], [(0, "EXTRA")]),
        ([(1, 5)], 1, 5, [], [(1, "EXTRA")]),
        ([(1, 5)], COUNT_UNKNOWN, 5, [], [(1, "INCOMPLETE")]),
        ([(0, 1), (1, 2)], 2, 2, [0, 1], []),
        ([(0, 1), (1, 2)], COUNT_UNKNOWN, 2, [0, 1], []),
        ([(0, 1), (1, 2)], 1, 2, [0], [(1, "EXTRA")]),
        ([(0, 1), (1, 2)], 2, 1, [], [(0, "INCOMPLETE"), (1, "LATE")]),
        ([(0, 1), (1, 2)], COUNT_UNKNOWN, 1, [0], [(1, "LATE")]),
        ([(0, 1), (2, 2)], 3, 2, [], [(0, "INCOMPLETE"), (2, "INCOMPLETE")]),
        ([(0, 1), (2, 2)], 1, 2, [0], [(2, "EXTRA")]),
        ([(0, 1), (2, 2)], 2, 2, [], [(0, "INCOMPLETE"), (2, "EXTRA")]),
        ([(1, 1), (2, 2)], 2, 2, [], [(1, "INCOMPLETE"), (2, "EXTRA")]),
    ],
)
def test_all_or_nothing(
    messages: list[tuple[int, int]],
    count: int,
    half_offset: int,
    delivered: list[int],
    dead: list[tuple[int, str]],
) -> None:
    """Messages 0 .. n-1 are delivered without a gap or not at all; none goes missing."""
    op = op_record("A", OpKind.COMMIT, half_offset=half_offset)._replace(message_count=count)
    verdict = judge_commit([_half(*each) for each in messages], op, lambda _group, _topic: True)
    assert [half.metadata.message_index for half in verdict.deliver] == delivered
    buried = sorted((half.metadata.message_index, why.value) for half, why, _ in verdict.dead)
    assert buried == sorted(dead)


@pytest.mark.parametrize(
    ("messages", "count", "half_offset", "outcome"),
    [
        # (index, offset, bytes) of each message; count; half_offset -> what becomes of all
        ([(0, 5, TRANSACTION_BYTES_MAX)], 1, 5, "delivered"),
        ([(0, 5, TRANSACTION_BYTES_MAX + 1)], 1, 5, "TOO_LARGE"),
        ([(0, 1, TRANSACTION_BYTES_MAX), (1, 2, 0)], 2, 2, "delivered"),
        ([(0, 1, TRANSACTION_BYTES_MAX), (1, 2, 1)], 2, 2, "TOO_LARGE"),
        # Too large, and incomplete: its size is judged first.
        ([(0, 1, TRANSACTION_BYTES_MAX + 1)], 2, 2, "TOO_LARGE"),
        ([(number, number, 1) for number in range(1_000)], 1_000, 999, "delivered"),
        ([(number, number, 1) for number in range(1_001)], 1_001, 1_000, "TOO_LARGE"),
        ([(number, number, 1) for number in range(1_001)], COUNT_UNKNOWN, 1_000, "TOO_LARGE"),
        ([(5_000, 1, 1)], COUNT_UNKNOWN, 1, "TOO_LARGE"),
    ],
)
def test_what_is_too_large_is_not_delivered(
    messages: list[tuple[int, int, int]], count: int, half_offset: int, outcome: str
) -> None:
    """A transaction has at most 1,000 messages and 8 MiB, whoever wrote it."""
    op = op_record("A", OpKind.COMMIT, half_offset=half_offset)._replace(message_count=count)
    halves = [_half(index, offset, user_bytes=size) for index, offset, size in messages]
    verdict = judge_commit(halves, op, lambda _group, _topic: True)
    assert len(verdict.deliver) == (len(halves) if outcome == "delivered" else 0)
    assert {why.value for _, why, _ in verdict.dead} == ({outcome} - {"delivered"})


def test_only_what_the_decision_covers_is_weighed() -> None:
    """Messages beyond the count, or stored after the decision, make no transaction too large."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=1)
    halves = [
        _half(0, 1, user_bytes=1),
        _half(1, 2, user_bytes=TRANSACTION_BYTES_MAX),
        _half(1_000, 6),
    ]
    verdict = judge_commit(halves, op, lambda _group, _topic: True)
    assert verdict.deliver == (halves[0],)
    assert [why for _, why, _ in verdict.dead] == [DeadReason.EXTRA, DeadReason.LATE]


def test_a_forged_count_costs_nothing() -> None:
    """A count of two thousand million is a gap, found without counting that far."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=(1 << 31) - 1)
    verdict = judge_commit([_half(0, 1), _half(1, 2)], op, lambda _group, _topic: True)
    assert [why for _, why, _ in verdict.dead] == [DeadReason.INCOMPLETE] * 2


def test_one_refused_message_refuses_all() -> None:
    """A transaction with one flawed message delivers none; extra ones keep their own reason."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=2)
    messages = [_half(0, 1), _half(1, 2, flaw="two RMQ_HALF"), _half(2, 3)]
    verdict = judge_commit(messages, op, lambda _group, _topic: True)
    assert verdict.deliver == ()
    assert [(why, detail) for _, why, detail in verdict.dead] == [
        (DeadReason.NOT_ALLOWED, "two RMQ_HALF"),
        (DeadReason.NOT_ALLOWED, "two RMQ_HALF"),
        (DeadReason.EXTRA, "the commit covers 2 messages"),
    ]


def test_a_single_message_is_refused_likewise() -> None:
    """The way for single messages asks the policy too."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=1)
    verdict = judge_commit([_half(0, 1, topic="t")], op, lambda _group, topic: topic != "t")
    assert verdict.deliver == ()
    assert verdict.dead[0][1:] == (DeadReason.NOT_ALLOWED, "group orders may not write to t")


@pytest.mark.parametrize(
    ("source", "reason", "expected"),
    [
        (OpSource.CHECKER, REASON_CHECK_TIMES, DeadReason.CHECK_TIMES),
        (OpSource.CHECKER, REASON_AGE, DeadReason.AGE),
        (OpSource.CHECKER, REASON_TOO_LARGE, DeadReason.TOO_LARGE),
        (OpSource.CHECKER, "something else", DeadReason.OPERATOR),
        (OpSource.OPERATOR, REASON_AGE, DeadReason.OPERATOR),
        (OpSource.OPERATOR, "ticket 7", DeadReason.OPERATOR),
    ],
)
def test_a_discard_says_why(source: OpSource, reason: str, expected: DeadReason) -> None:
    """The daemon's three words are its own; whatever else is said came from an operator."""
    op = op_record("A", OpKind.DISCARD, half_offset=5)._replace(source=source, reason=reason)
    assert discard_reason(op) is expected

"""What an operator asks for, in words, and why it may be refused."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.admin.decisions import (
    DecisionRequest,
    First,
    before_text,
    decision_text,
    effect_text,
    first_text,
    refusal_of,
)
from halfbridge.checker.admin.transactions.life import Event, Kind, Life
from halfbridge.checker.admin.transactions.waits import Undecided, Wait
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind
from tests.kit.records import AN_OP
from tests.kit.undecided import AN_UNDECIDED

ROLLBACK = DecisionRequest(kind=OpKind.ROLLBACK, reason="r")
FOUND = AN_UNDECIDED._replace(
    id="t1",
    producer_group="g",
    age_ms=12_000,
    checks_asked=1,
    messages=2,
    bytes=10,
    offset=7,
    last_offset=8,
    wait=Wait.ASKED,
    why="check 1 was asked",
)


def _commit(count: int) -> DecisionRequest:
    return DecisionRequest(kind=OpKind.COMMIT, reason="r", message_count=count)


def _found(**changes: Any) -> Undecided:
    return FOUND._replace(**changes)


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        (ROLLBACK, "ROLLBACK delivers nothing of its 2 messages"),
        (_commit(2), "COMMIT delivers the existing 2 messages"),
        (
            _commit(COUNT_UNKNOWN),
            "COMMIT delivers the existing 2 messages, whether these are all or not",
        ),
        (_commit(1), "COMMIT delivers 1 message; the others become 1 dead letter (EXTRA)"),
        (
            _commit(3),
            "COMMIT of 3 messages: the existing ones, 2, become dead letters (INCOMPLETE)",
        ),
    ],
)
def test_what_would_happen_is_said_before(requested: DecisionRequest, wanted: str) -> None:
    """By what is there and what the operator says is there."""
    assert effect_text(FOUND, requested) == wanted


def test_refusals() -> None:
    """Force overrides all but a decision that is on its way."""
    waits = _found(wait=Wait.DECISION_WAITS, why="a COMMIT is appended")
    young = _found(wait=Wait.NOT_DUE, why="its producer may be at work")
    assert refusal_of(FOUND, ROLLBACK, force=False) == ""
    assert refusal_of(FOUND, _commit(2), force=False) == ""
    for force in (True, False):
        assert "decided without you" in refusal_of(waits, ROLLBACK, force=force)
    assert "--force" in refusal_of(young, ROLLBACK, force=False)
    assert "INCOMPLETE" in refusal_of(FOUND, _commit(3), force=False)
    for each, requested in ((young, ROLLBACK), (FOUND, _commit(3))):
        assert refusal_of(each, requested, force=True) == ""


def test_what_the_audit_topic_is_told() -> None:
    """Before: state, age, group and pair. After: which decision is the first, and whose."""
    assert before_text(FOUND) == "PREPARED, 12s old, 2 messages of group g, pair 3, ASKED"
    assert "of unknown age" in before_text(_found(age_ms=None))
    first = First(9, 0, State.COMMITTED, AN_OP)
    assert first_text(first) == "COMMIT by PRODUCER someone at op offset 9"
    assert first_text(first._replace(op=AN_OP._replace(reason="why"))).endswith("9: why")


def test_who_decided_is_named() -> None:
    """As far as it is known."""
    winner = Event(
        kind=Kind.DECISION,
        at_ms=1,
        topic="op",
        partition=3,
        offset=9,
        op="ROLLBACK",
        source="CHECK",
        actor="pod-7",
        reason="no row",
    )
    life = Life(id="t1", state="ROLLED_BACK", decided_by=winner)
    wanted = "t1 is ROLLED_BACK already: ROLLBACK by CHECK pod-7 at op offset 9 (no row)"
    assert decision_text(life) == wanted
    assert decision_text(Life(id="t1", state="DISCARDED")) == "t1 is DISCARDED already"

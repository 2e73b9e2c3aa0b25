"""The protocol's table, every entry of it."""

from itertools import product

import pytest

from halfbridge.serde.protocol import (
    EFFECTS,
    STATE_AFTER,
    Effect,
    State,
    decision_of,
    effect_of,
    is_failed_attempt,
    proves_its_age,
    state_after,
)
from halfbridge.serde.records import OpKind, OpSource
from tests.playbook import op_record

DECISIONS = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD: State.DISCARDED,
}
MAY_DISCARD = {OpSource.CHECKER, OpSource.OPERATOR}


def test_the_table_is_total() -> None:
    """Every state and kind has its effect, and nothing else has one."""
    assert EFFECTS.keys() == set(product(State, OpKind))


@pytest.mark.parametrize(("state", "kind", "source"), list(product(State, OpKind, OpSource)))
def test_first_decision_wins(state: State, kind: OpKind, source: OpSource) -> None:
    """Only an undecided transaction changes its state, and only by who may say so."""
    effect = effect_of(op_record("A", kind, half_offset=0)._replace(source=source), state)
    refused = kind is OpKind.DISCARD and source not in MAY_DISCARD
    if refused:
        assert effect is Effect.INVALID
    elif kind is OpKind.UNKNOWN:
        assert effect is (Effect.ANSWER if state is State.UNDECIDED else Effect.IGNORED)
    elif state is State.UNDECIDED:
        assert STATE_AFTER[effect] is DECISIONS[kind]
    elif DECISIONS[kind] is state:
        assert effect is Effect.DUPLICATE
    else:
        assert effect is (Effect.IGNORED if source is OpSource.CHECKER else Effect.CONFLICT)
    if state is not State.UNDECIDED:
        assert effect not in STATE_AFTER
    op = op_record("A", kind, half_offset=0)._replace(source=source)
    after = state_after(op, state, op_append_ms=1, first_append_ms=0)
    assert after is (decision_of(op) if state is State.UNDECIDED else None)


@pytest.mark.parametrize(
    ("kind", "source", "age_ms", "after_ms", "proven"),
    [
        (OpKind.DISCARD, OpSource.CHECKER, 100, 99, False),
        (OpKind.DISCARD, OpSource.CHECKER, 100, 100, True),
        (OpKind.DISCARD, OpSource.CHECKER, 0, -1, True),
        (OpKind.DISCARD, OpSource.CHECKER, -1, -2, True),
        (OpKind.DISCARD, OpSource.OPERATOR, 100, 0, True),
        (OpKind.COMMIT, OpSource.CHECKER, 100, 0, True),
    ],
)
def test_only_a_discard_that_claims_an_age_must_prove_it(
    kind: OpKind, source: OpSource, age_ms: int, after_ms: int, *, proven: bool
) -> None:
    """Its own append time must lie so far behind the first append; clocks may run backwards."""
    op = op_record("A", kind, half_offset=0)._replace(source=source, age_ms=age_ms)
    assert proves_its_age(op, 1_000 + after_ms, 1_000) is proven
    after = state_after(op, State.UNDECIDED, op_append_ms=1_000 + after_ms, first_append_ms=1_000)
    assert after is (decision_of(op) if proven else None)


@pytest.mark.parametrize("kind", OpKind)
@pytest.mark.parametrize("source", OpSource)
@pytest.mark.parametrize("number", [0, 1])
def test_a_failed_attempt_is_an_unknown_of_a_member_without_a_number(
    kind: OpKind, source: OpSource, number: int
) -> None:
    """An UNKNOWN of anybody else answers nothing, and says nothing of a checker."""
    op = op_record("A", kind, half_offset=0)._replace(source=source, check_number=number)
    wanted = (kind, source, number) == (OpKind.UNKNOWN, OpSource.CHECK, 0)
    assert is_failed_attempt(op) is wanted

"""The table of a message transaction: each pair of a state and an event is tested."""

from itertools import product

import pytest

from halfbridge.bridge.transaction import TRANSITIONS, Event, IllegalTransitionError, State, step

COMMITTING = (State.COMMIT_SENT, State.COMMIT_IN_DOUBT, State.COMMITTED)
ROLLING_BACK = (State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_is_legal_by_the_table_or_refused(state: State, event: Event) -> None:
    """A legal pair leads where the table says; an illegal one raises with state and event."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        with pytest.raises(IllegalTransitionError) as caught:
            step(state, event, transaction_id="id")
        assert (caught.value.state, caught.value.event) == (state, event)
        assert caught.value.transaction_id == "id"
        assert state.value in str(caught.value)
    else:
        assert step(state, event) is after


def test_the_table_has_every_state() -> None:
    """No state is without a row, and each but the first is reached by another."""
    assert set(TRANSITIONS) == set(State)
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(State) - {State.INIT}


@pytest.mark.parametrize("event", [Event.COMMIT, Event.ROLLBACK])
def test_no_decision_before_a_send(event: Event) -> None:
    """Conformance 13: commit and rollback before any send are errors."""
    with pytest.raises(IllegalTransitionError, match="nothing was sent"):
        step(State.INIT, event)


@pytest.mark.parametrize("state", COMMITTING)
def test_after_a_commit_only_commit(state: State) -> None:
    """Conformance 15: commit may be repeated, and nothing else, also when it is in doubt."""
    assert step(state, Event.COMMIT) in COMMITTING
    for event in (Event.ROLLBACK, Event.SEND):
        with pytest.raises(IllegalTransitionError):
            step(state, event)


@pytest.mark.parametrize("state", ROLLING_BACK)
def test_after_a_rollback_only_rollback(state: State) -> None:
    """Rollback may be repeated, and nothing else, also when it is in doubt."""
    assert step(state, Event.ROLLBACK) in ROLLING_BACK
    for event in (Event.COMMIT, Event.SEND):
        with pytest.raises(IllegalTransitionError):
            step(state, event)


def test_after_a_failed_send_only_rollback() -> None:
    """A late ack does not make a failed send good again."""
    assert step(State.SEND_FAILED, Event.SENDS_ACKED) is State.SEND_FAILED
    assert step(State.SEND_FAILED, Event.ROLLBACK) is State.ROLLBACK_SENT
    for event in (Event.COMMIT, Event.SEND):
        with pytest.raises(IllegalTransitionError, match="only rollback"):
            step(State.SEND_FAILED, event)


def test_no_commit_while_a_send_is_outstanding() -> None:
    """The local transaction runs after the ack, so a commit cannot come before it."""
    with pytest.raises(IllegalTransitionError, match="not acknowledged yet"):
        step(State.HALF_SENDING, Event.COMMIT)

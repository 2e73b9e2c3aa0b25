"""The transaction table under any sequence of events."""

from __future__ import annotations

from halfbridge.bridge.transaction import TRANSITIONS, Event, IllegalTransitionError, State, step
from tests.kit.examples import given, st

COMMITTING = {State.COMMIT_SENT, State.COMMIT_IN_DOUBT, State.COMMITTED}
ROLLING_BACK = {State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK}


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_any_history_decides_at_most_one_way(events: list[Event]) -> None:
    """Refused events change nothing; a decision is never followed by its opposite or a send."""
    state = State.INIT
    history = []
    for event in events:
        try:
            after = step(state, event)
        except IllegalTransitionError:
            assert event not in TRANSITIONS[state]
            continue
        history.append(event)
        assert not (state in COMMITTING and after not in COMMITTING)
        assert not (state in ROLLING_BACK and after not in ROLLING_BACK)
        state = after
    if Event.SEAL in history:
        assert Event.SEND not in history[history.index(Event.SEAL) :]
    assert not (Event.COMMIT in history and Event.ROLLBACK in history)
    if Event.COMMIT in history:
        first = history.index(Event.COMMIT)
        assert Event.SEND not in history[first:]
        assert Event.SEND_NOT_ACKED not in history
        assert history[first - 1] in (Event.SENDS_ACKED, Event.SEAL)
    if state in (State.COMMITTED, State.ROLLED_BACK):
        assert Event.DECISION_ACKED in history


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_every_state_but_the_ends_can_still_be_decided(events: list[Event]) -> None:
    """From wherever a history stopped, acks and one decision lead to an end."""
    state = State.INIT
    for event in [Event.SEND, *events]:
        state = TRANSITIONS[state].get(event, state)
    for event in (Event.SENDS_ACKED, Event.COMMIT, Event.ROLLBACK, Event.DECISION_ACKED):
        state = TRANSITIONS[state].get(event, state)
    assert state in (State.COMMITTED, State.ROLLED_BACK)

"""The table of a row's states: all pairs, and what follows from them."""

import pytest

from halfbridge.sql.local_messages.rows import (
    TO_RELAY,
    TRANSITIONS,
    UNSETTLED,
    RowEvent,
    RowState,
    state_after,
    states_before,
)

pytestmark = pytest.mark.feature

# Written out a second time on purpose: a change to the table is a change to the protocol.
LEGAL = {
    ("UNKNOWN", "CONFIRM"): "LOCAL_COMMIT",
    ("UNKNOWN", "WITHDRAW"): "LOCAL_ROLLBACK",
    ("PREPARED", "SETTLE_SUCCESS"): "LOCAL_SUCCESS",
    ("PREPARED", "SETTLE_ROLLBACK"): "LOCAL_ROLLBACK",
    ("LOCAL_COMMIT", "MARK"): "GLOBAL_COMMIT",
    ("LOCAL_COMMIT", "GIVE_UP"): "MESSAGE_ERROR",
    ("LOCAL_SUCCESS", "MARK"): "GLOBAL_COMMIT",
    ("LOCAL_SUCCESS", "GIVE_UP"): "MESSAGE_ERROR",
    ("GLOBAL_COMMIT", "ACKNOWLEDGE"): "GLOBAL_COMMIT",
    ("GLOBAL_COMMIT", "SEND_AGAIN"): "LOCAL_COMMIT",
    ("GLOBAL_COMMIT", "GIVE_UP"): "MESSAGE_ERROR",
    ("MESSAGE_ERROR", "RETRY"): "LOCAL_COMMIT",
}


def test_the_table_of_transitions() -> None:
    """TRANSITIONS has the transitions of LEGAL; any other event changes no row."""
    found = {
        (state.value, event.value): after.value
        for state, events in TRANSITIONS.items()
        for event, after in events.items()
    }
    assert found == LEGAL


@pytest.mark.parametrize("event", RowEvent)
def test_an_event_is_one_update(event: RowEvent) -> None:
    """Each event has one state after it, and is legal somewhere: one UPDATE can apply it."""
    before = states_before(event)
    assert before
    assert {TRANSITIONS[state][event] for state in before} == {state_after(event)}


def test_what_is_to_be_relayed_is_what_can_be_marked() -> None:
    """The states of rows to relay are those in which MARK is legal."""
    assert states_before(RowEvent.MARK) == TO_RELAY


def test_unsettled_rows_are_never_marked_or_given_up() -> None:
    """An unsettled row is neither sent nor, by an operator's retry, made ready to be sent."""
    for state in UNSETTLED:
        assert not {RowEvent.MARK, RowEvent.GIVE_UP, RowEvent.RETRY} & TRANSITIONS[state].keys()


def test_a_rolled_back_row_stays_so() -> None:
    """LOCAL_ROLLBACK is final, also for a late confirmation."""
    assert TRANSITIONS[RowState.LOCAL_ROLLBACK] == {}


def test_a_marked_row_is_sent_again_only_by_a_dead_letter() -> None:
    """No event but SEND_AGAIN and GIVE_UP, which a dead letter causes, leaves GLOBAL_COMMIT."""
    leaving = {
        event
        for event, after in TRANSITIONS[RowState.GLOBAL_COMMIT].items()
        if after is not RowState.GLOBAL_COMMIT
    }
    assert leaving == {RowEvent.SEND_AGAIN, RowEvent.GIVE_UP}
    assert state_after(RowEvent.SEND_AGAIN) in TO_RELAY

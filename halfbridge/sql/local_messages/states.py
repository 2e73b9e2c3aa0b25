"""The states of a row of the local message table, as one table of transitions. No I/O, no clock.

TRANSITIONS[state][event] is the state after the event. A transition that is not listed is illegal,
and changes nothing. In the database an event is an UPDATE with the condition
`states_before(event)`. If another process has changed the row's state meanwhile, the UPDATE changes
no row, and its row count says so.
"""

from __future__ import annotations

from enum import Enum


class RowState(str, Enum):
    """The state of a local message.

    UNKNOWN: written before its local transaction, which must confirm the row.
    PREPARED: a callback settles the row later.
    LOCAL_COMMIT: to be relayed; the local transaction has written or confirmed the row.
    LOCAL_SUCCESS: to be relayed; a callback has settled the row.
    LOCAL_ROLLBACK: never to be relayed.
    GLOBAL_COMMIT: its message transaction will certainly commit.
    MESSAGE_ERROR: given up with a cause; an operator must act.
    """

    UNKNOWN = "UNKNOWN"
    PREPARED = "PREPARED"
    LOCAL_COMMIT = "LOCAL_COMMIT"
    LOCAL_SUCCESS = "LOCAL_SUCCESS"
    LOCAL_ROLLBACK = "LOCAL_ROLLBACK"
    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    MESSAGE_ERROR = "MESSAGE_ERROR"


class RowEvent(str, Enum):
    """An event that changes the state of a local message."""

    CONFIRM = "CONFIRM"  # by the local transaction of a pre-sent row
    WITHDRAW = "WITHDRAW"  # by its writer, or by the relay if it was not confirmed in time
    SETTLE_SUCCESS = "SETTLE_SUCCESS"  # by the callback
    SETTLE_ROLLBACK = "SETTLE_ROLLBACK"  # by the callback
    MARK = "MARK"  # by the relay's local transaction, with the fence row
    ACKNOWLEDGE = "ACKNOWLEDGE"  # the COMMIT of the message transaction is in the op log
    SEND_AGAIN = "SEND_AGAIN"  # its message transaction became dead letters; sent again alone
    GIVE_UP = "GIVE_UP"  # the row cannot be delivered, or sending has failed for too long
    RETRY = "RETRY"  # by an operator


class IllegalRowTransitionError(RuntimeError):
    """An event is illegal in the row's state: a mistake in the calling code; nothing changed.

    Attributes:
        state: The row's state, before and after.
        event: The illegal event.
    """

    def __init__(self, state: RowState, event: RowEvent) -> None:
        super().__init__(f"{event.value} in {state.value} is not possible")
        self.state = state
        self.event = event


# Only a dead letter takes a row out of GLOBAL_COMMIT. LOCAL_ROLLBACK is final: a later confirmation
# changes no row, and the local transaction of that confirmation cannot commit.
TRANSITIONS: dict[RowState, dict[RowEvent, RowState]] = {
    RowState.UNKNOWN: {
        RowEvent.CONFIRM: RowState.LOCAL_COMMIT,
        RowEvent.WITHDRAW: RowState.LOCAL_ROLLBACK,
    },
    RowState.PREPARED: {
        RowEvent.SETTLE_SUCCESS: RowState.LOCAL_SUCCESS,
        RowEvent.SETTLE_ROLLBACK: RowState.LOCAL_ROLLBACK,
    },
    RowState.LOCAL_COMMIT: {
        RowEvent.MARK: RowState.GLOBAL_COMMIT,
        RowEvent.GIVE_UP: RowState.MESSAGE_ERROR,
    },
    RowState.LOCAL_SUCCESS: {
        RowEvent.MARK: RowState.GLOBAL_COMMIT,
        RowEvent.GIVE_UP: RowState.MESSAGE_ERROR,
    },
    RowState.LOCAL_ROLLBACK: {},
    RowState.GLOBAL_COMMIT: {
        RowEvent.ACKNOWLEDGE: RowState.GLOBAL_COMMIT,
        RowEvent.SEND_AGAIN: RowState.LOCAL_COMMIT,
        RowEvent.GIVE_UP: RowState.MESSAGE_ERROR,
    },
    RowState.MESSAGE_ERROR: {
        RowEvent.RETRY: RowState.LOCAL_COMMIT,
    },
}

# A row waits for earlier rows with the same key in the states UNSETTLED and TO_RELAY.
UNSETTLED = (RowState.UNKNOWN, RowState.PREPARED)
TO_RELAY = (RowState.LOCAL_COMMIT, RowState.LOCAL_SUCCESS)


def step(state: RowState, event: RowEvent) -> RowState:
    """Return the state after `event`.

    Raises:
        IllegalRowTransitionError: The transition is not in the table; the calling code is wrong.
    """
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise IllegalRowTransitionError(state, event)
    return after


def states_before(event: RowEvent) -> tuple[RowState, ...]:
    """Return the states in which `event` is legal, in the order of the table."""
    return tuple(state for state, events in TRANSITIONS.items() if event in events)


def state_after(event: RowEvent) -> RowState:
    """Return the state that `event` leads to, which is the same wherever it is legal."""
    (after,) = {events[event] for events in TRANSITIONS.values() if event in events}
    return after

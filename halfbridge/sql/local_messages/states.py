"""The life of a row of the local message table, as one table. No I/O, no clock.

Read a row as: in this state, this event leads there; what is not listed is illegal and changes
nothing. In the database an event is an UPDATE whose condition is `states_before(event)`: a row that
another process has moved on meanwhile is not touched, and the count of rows tells.
"""

from __future__ import annotations

from enum import Enum


class RowState(str, Enum):
    """Where a local message stands.

    UNKNOWN: sent ahead of its local transaction, which confirms the row when it commits.
    PREPARED: a callback settles the row later.
    LOCAL_COMMIT, LOCAL_SUCCESS: to be relayed (written or confirmed by the local transaction;
    settled by a callback).
    LOCAL_ROLLBACK: never to be relayed.
    GLOBAL_COMMIT: its message transaction commits for certain.
    MESSAGE_ERROR: given up with a cause; waits for an operator.
    """

    UNKNOWN = "UNKNOWN"
    PREPARED = "PREPARED"
    LOCAL_COMMIT = "LOCAL_COMMIT"
    LOCAL_SUCCESS = "LOCAL_SUCCESS"
    LOCAL_ROLLBACK = "LOCAL_ROLLBACK"
    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    MESSAGE_ERROR = "MESSAGE_ERROR"


class RowEvent(str, Enum):
    """What happens to a local message."""

    CONFIRM = "CONFIRM"  # by the local transaction that the row was sent ahead of
    WITHDRAW = "WITHDRAW"  # by its writer, or by the relay for want of a confirmation
    SETTLE_SUCCESS = "SETTLE_SUCCESS"  # by the callback
    SETTLE_ROLLBACK = "SETTLE_ROLLBACK"  # by the callback
    MARK = "MARK"  # by the relay's local transaction, with the fence row
    ACKNOWLEDGE = "ACKNOWLEDGE"  # the COMMIT of the message transaction stands in the op log
    SEND_AGAIN = "SEND_AGAIN"  # its message transaction became dead letters by another's fault
    GIVE_UP = "GIVE_UP"  # it cannot be delivered, or cannot be sent for too long
    RETRY = "RETRY"  # by an operator


class IllegalRowTransitionError(RuntimeError):
    """A row cannot do that in its state: a mistake in the calling code; nothing changed.

    Attributes:
        state: Where the row stood, and still stands.
        event: What was tried.
    """

    def __init__(self, state: RowState, event: RowEvent) -> None:
        super().__init__(f"{event.value} in {state.value} is not possible")
        self.state = state
        self.event = event


# GLOBAL_COMMIT leaves only by a dead letter. LOCAL_ROLLBACK is final: a confirmation that comes
# after it finds no row, and its local transaction cannot commit.
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

# A later row with the same key waits for an earlier one in these, and for those to be relayed.
UNSETTLED = (RowState.UNKNOWN, RowState.PREPARED)
TO_RELAY = (RowState.LOCAL_COMMIT, RowState.LOCAL_SUCCESS)


def step(state: RowState, event: RowEvent) -> RowState:
    """Return the state after `event`.

    Raises:
        IllegalRowTransitionError: not in the table; the calling code is wrong.
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

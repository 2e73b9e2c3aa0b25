"""The state machine of one message transaction, as one table. No I/O, no clock, no locks.

Each row maps a state and an event to the next state. An event that is not listed for a state is
illegal: it raises IllegalTransitionError and changes nothing.

The caller takes the step of SEND, COMMIT and ROLLBACK before it sends the record, so that of two
threads that decide at the same time only one sends. COMMIT_SENT therefore means that COMMIT may
have been sent. The steps to HALF_SENT, COMMITTED and ROLLED_BACK follow Kafka's acknowledgement.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """State of a message transaction, as its producer knows it."""

    INIT = "INIT"
    HALF_SENDING = "HALF_SENDING"
    HALF_SENT = "HALF_SENT"
    SEALED = "SEALED"
    SEND_FAILED = "SEND_FAILED"
    COMMIT_SENT = "COMMIT_SENT"
    COMMIT_IN_DOUBT = "COMMIT_IN_DOUBT"
    COMMITTED = "COMMITTED"
    ROLLBACK_SENT = "ROLLBACK_SENT"
    ROLLBACK_IN_DOUBT = "ROLLBACK_IN_DOUBT"
    ROLLED_BACK = "ROLLED_BACK"


class Event(str, Enum):
    """Events of a message transaction: calls of the user, and results of writes."""

    SEND = "SEND"
    SENDS_ACKED = "SENDS_ACKED"  # the last outstanding half message was acknowledged
    SEND_NOT_ACKED = "SEND_NOT_ACKED"  # a half message failed, or its ack did not come in time
    SEAL = "SEAL"  # the local transaction begins, and records the message count: no more sends
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    DECISION_ACKED = "DECISION_ACKED"
    DECISION_NOT_ACKED = "DECISION_NOT_ACKED"  # no ack came: the decision may be stored or not


class IllegalTransitionError(RuntimeError):
    """The event is illegal in this state, and changed nothing; the programmer corrects the caller.

    Attributes:
        state: The state, which has not changed.
        event: The event that was refused.
        transaction_id: The transaction; empty if the table was used without one.
    """

    def __init__(
        self, state: State, event: Event, *, transaction_id: str = "", why: str = ""
    ) -> None:
        whose = f"transaction {transaction_id}: " if transaction_id else ""
        super().__init__(f"{whose}{event.value} in {state.value}: {why or _why(state, event)}")
        self.state = state
        self.event = event
        self.transaction_id = transaction_id


# A decision in doubt may only be repeated: the opposite decision could contradict it. A caller may
# give up a write whose ack comes later. So a state accepts the ack of each write that may still be
# outstanding in it: COMMIT follows the acks of all sends, ROLLBACK need not.
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.INIT: {
        Event.SEND: State.HALF_SENDING,
    },
    State.HALF_SENDING: {
        Event.SEND: State.HALF_SENDING,
        Event.SENDS_ACKED: State.HALF_SENT,
        Event.SEND_NOT_ACKED: State.SEND_FAILED,
    },
    State.HALF_SENT: {
        Event.SEND: State.HALF_SENDING,
        Event.SEAL: State.SEALED,
        Event.COMMIT: State.COMMIT_SENT,
        Event.ROLLBACK: State.ROLLBACK_SENT,
    },
    State.SEALED: {
        Event.SEAL: State.SEALED,
        Event.COMMIT: State.COMMIT_SENT,
        Event.ROLLBACK: State.ROLLBACK_SENT,
    },
    State.SEND_FAILED: {
        Event.SENDS_ACKED: State.SEND_FAILED,
        Event.SEND_NOT_ACKED: State.SEND_FAILED,
        Event.ROLLBACK: State.ROLLBACK_SENT,
    },
    State.COMMIT_SENT: {
        Event.COMMIT: State.COMMIT_SENT,
        Event.DECISION_ACKED: State.COMMITTED,
        Event.DECISION_NOT_ACKED: State.COMMIT_IN_DOUBT,
    },
    State.COMMIT_IN_DOUBT: {
        Event.COMMIT: State.COMMIT_SENT,
        Event.DECISION_ACKED: State.COMMITTED,
        Event.DECISION_NOT_ACKED: State.COMMIT_IN_DOUBT,
    },
    State.COMMITTED: {
        Event.COMMIT: State.COMMITTED,
        Event.DECISION_ACKED: State.COMMITTED,
        Event.DECISION_NOT_ACKED: State.COMMITTED,
    },
    State.ROLLBACK_SENT: {
        Event.SENDS_ACKED: State.ROLLBACK_SENT,
        Event.SEND_NOT_ACKED: State.ROLLBACK_SENT,
        Event.ROLLBACK: State.ROLLBACK_SENT,
        Event.DECISION_ACKED: State.ROLLED_BACK,
        Event.DECISION_NOT_ACKED: State.ROLLBACK_IN_DOUBT,
    },
    State.ROLLBACK_IN_DOUBT: {
        Event.SENDS_ACKED: State.ROLLBACK_IN_DOUBT,
        Event.SEND_NOT_ACKED: State.ROLLBACK_IN_DOUBT,
        Event.ROLLBACK: State.ROLLBACK_SENT,
        Event.DECISION_ACKED: State.ROLLED_BACK,
        Event.DECISION_NOT_ACKED: State.ROLLBACK_IN_DOUBT,
    },
    State.ROLLED_BACK: {
        Event.SENDS_ACKED: State.ROLLED_BACK,
        Event.SEND_NOT_ACKED: State.ROLLED_BACK,
        Event.ROLLBACK: State.ROLLED_BACK,
        Event.DECISION_ACKED: State.ROLLED_BACK,
        Event.DECISION_NOT_ACKED: State.ROLLED_BACK,
    },
}


def step(state: State, event: Event, *, transaction_id: str = "") -> State:
    """Return the state after `event`. IllegalTransitionError: a mistake in the calling code."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise IllegalTransitionError(state, event, transaction_id=transaction_id)
    return after


def _why(state: State, event: Event) -> str:
    if event is Event.SEND and state is State.SEALED:
        return "the local transaction has begun; send all messages before it"
    if event is Event.SEND and state is not State.SEND_FAILED:
        return "a decision was sent; begin another transaction"
    if event in _CALLS:
        return _ONLY[state]
    return "no such write is outstanding"


_CALLS = frozenset((Event.SEND, Event.SEAL, Event.COMMIT, Event.ROLLBACK))
_ONLY = {
    State.INIT: "nothing was sent yet",
    State.HALF_SENDING: "a half message is not acknowledged yet; wait for its send first",
    State.SEND_FAILED: "a send failed, so only rollback is allowed",
    State.COMMIT_SENT: "a commit was sent, so only commit may be repeated",
    State.COMMIT_IN_DOUBT: "a commit was sent, so only commit may be repeated",
    State.COMMITTED: "a commit was sent, so only commit may be repeated",
    State.ROLLBACK_SENT: "a rollback was sent, so only rollback may be repeated",
    State.ROLLBACK_IN_DOUBT: "a rollback was sent, so only rollback may be repeated",
    State.ROLLED_BACK: "a rollback was sent, so only rollback may be repeated",
}

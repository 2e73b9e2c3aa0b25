"""Rows of the local message table: as messages, their states, and the errors about them. No I/O.

TRANSITIONS[state][event] is the state after the event. A transition that is not listed is illegal,
and changes nothing. In the database an event is an UPDATE with the condition
`states_before(event)`. If another process has changed the row's state meanwhile, the UPDATE changes
no row, and its row count is 0.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.message import Message
from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.partitioner import key_hash
from halfbridge.sql.errors import SqlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.headers import Header

# Most bytes of key, value and headers. A larger row exceeds the limit of a message transaction, and
# is not read.
ROW_BYTES_MAX = TRANSACTION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """A row that is to be relayed. Ids ascend with insertion.

    Attributes:
        headers: As stored; see `headers_of`.
        partition: Partition of the real topic; None: by key.
        key_hash: Hash of the key; None without a key.
        retries: Number of failed attempts that the row itself has caused.
        send_alone: Whether the row is sent in its own message transaction.
        created_at: The database's clock, epoch milliseconds.
        oversize_bytes: Bytes of a row with more than ROW_BYTES_MAX, whose key, value and headers
            are not read; else 0.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    partition: int | None
    key_hash: int | None
    retries: int
    send_alone: bool
    created_at: int
    oversize_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that count towards a transaction's limit; headers with their stored length."""
        if self.oversize_bytes:
            return self.oversize_bytes
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or "")

    def message(self) -> Message:
        """Return the message; InvalidMessageError, ValueError: the row's writer must act."""
        if self.oversize_bytes:
            raise ValueError(
                f"{self.oversize_bytes} bytes are more than the {ROW_BYTES_MAX} of a row"
            )
        made = Message(  # which checks the types: SQLite keeps text in any column
            self.topic,
            key=self.key,
            value=self.value,
            headers=headers_of(self.headers),
            partition=self.partition,
        )
        expected = None if made.key is None else key_hash(made.key)
        if self.key_hash != expected:
            raise ValueError(
                f"key_hash is {self.key_hash}, and toPositive(murmur2(key)) is {expected}"
            )
        return made


def columns_of(message: Message) -> dict[str, Any]:
    """Return the values of the columns for a message.

    InvalidMessageError: it has a `cloud_event`, whose id only the relay knows; the caller gives
    headers instead.
    """
    if message.cloud_event is not None:
        raise InvalidMessageError(
            "a local message takes no cloud_event, as the relay chooses the transaction id: give"
            " the headers ce_specversion, ce_id, ce_source and ce_type yourself",
            field="cloud_event",
        )
    return {
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": headers_text(message.header_pairs),
        "partition": message.partition,
        "key_hash": None if message.key is None else key_hash(message.key),
    }


def headers_text(headers: Sequence[Header]) -> str | None:
    """Return headers as they are stored: JSON, a list of [name, base64 or null]; None for none."""
    if not headers:
        return None
    return json.dumps(
        [[name, None if value is None else b64encode(value).decode()] for name, value in headers],
        separators=(",", ":"),
    )


def headers_of(text: str | None) -> tuple[Header, ...]:
    """Return stored headers; ValueError: the row's writer has stored them in another form."""
    if not text:
        return ()
    try:
        return tuple(
            (name, None if value is None else b64decode(value, validate=True))
            for name, value in json.loads(text)
        )
    except (RecursionError, TypeError, ValueError) as error:  # RecursionError: JSON nested too deep
        raise ValueError(f"headers are no JSON list of [name, base64 or null]: {error}") from error


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


def states_before(event: RowEvent) -> tuple[RowState, ...]:
    """Return the states in which `event` is legal, in the order of the table."""
    return tuple(state for state, events in TRANSITIONS.items() if event in events)


def state_after(event: RowEvent) -> RowState:
    """Return the state that `event` leads to, which is the same wherever it is legal."""
    (after,) = {events[event] for events in TRANSITIONS.values() if event in events}
    return after


class RowStateError(SqlError):
    """An event is not possible in the row's state; the local transaction must not commit.

    The calling code rolls back, and begins again with a new row.
    """

    def __init__(self, row_id: int, state: RowState, event: RowEvent) -> None:
        super().__init__(
            f"local message {row_id} is {state.value}: {event.value} is not possible any more;"
            " roll back, and begin again with a new row"
        )
        self.row_id = row_id
        self.state = state
        self.event = event


class RowNotFoundError(SqlError):
    """The table has no local message with this id: it was purged, or is in another table.

    The calling code rolls back; the programmer looks where the id comes from.
    """

    def __init__(self, row_id: int, table: str) -> None:
        super().__init__(f"{table} has no local message {row_id}")
        self.row_id = row_id
        self.table = table

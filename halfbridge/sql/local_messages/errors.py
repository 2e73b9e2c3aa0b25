"""Errors of the local message table, divided by who must act.

SqlError
├─ RowStateError        a row is in another state: the local transaction must not commit
├─ RowNotFoundError     the row does not exist (purged, or in another table); the caller is wrong
└─ DrainError           a relay could not stop in time; end the process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.errors import SqlError

if TYPE_CHECKING:
    from halfbridge.sql.local_messages.states import RowEvent, RowState


class RowStateError(SqlError):
    """An event is not possible in the row's state; the local transaction must not commit.

    Attributes:
        row_id: Id of the row.
        state: State of the row.
        event: The event that is not possible.
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
    """The table has no local message with this id.

    Attributes:
        row_id: Id of the row.
    """

    def __init__(self, row_id: int, table: str) -> None:
        super().__init__(f"{table} has no local message {row_id}")
        self.row_id = row_id


class DrainError(SqlError):
    """A relay was stopped, and its transactions did not end in time.

    Nothing is lost. The caller must end the process, because threads of the relay may still wait.
    """

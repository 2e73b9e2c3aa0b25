"""Errors of the local message table, split by who must act.

SqlError
├─ RowStateError        a row is not where it must be: the local transaction must not commit
├─ RowNotFoundError     the caller names a row that is not there (purged, or of another table)
└─ DrainError           a relay was to stop, and what was begun hangs; the process is to end
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.errors import SqlError

if TYPE_CHECKING:
    from halfbridge.sql.local_messages.states import RowEvent, RowState


class RowStateError(SqlError):
    """A row cannot do that any more; the local transaction that wanted it must not commit.

    Attributes:
        row_id: Which row.
        state: Where it stands.
        event: What was tried.
    """

    def __init__(self, row_id: int, state: RowState, event: RowEvent) -> None:
        super().__init__(
            f"local message {row_id} is {state.value}: {event.value} is not possible any more;"
            " roll back, and begin anew with a new row"
        )
        self.row_id = row_id
        self.state = state
        self.event = event


class RowNotFoundError(SqlError):
    """There is no such local message in this table.

    Attributes:
        row_id: Which row.
    """

    def __init__(self, row_id: int, table: str) -> None:
        super().__init__(f"{table} has no local message {row_id}")
        self.row_id = row_id


class DrainError(SqlError):
    """A relay was told to stop, and what it had begun did not end in time.

    Nothing is lost. Whoever runs it ends the process: threads of it may still wait.
    """

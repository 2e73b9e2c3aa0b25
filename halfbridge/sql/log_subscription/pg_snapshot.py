"""The snapshot of a table at a replication slot's consistent point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.pg_values import value_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from halfbridge.sql.log_subscription.changes import Position, Value
    from halfbridge.sql.log_subscription.pg_wire import ReplicationConnection

_FETCH_ROWS = 1_000  # at a time


class PostgresqlSnapshot:
    """The rows of a table at a slot's consistent point. Lives as long as its connection."""

    def __init__(self, connection: ReplicationConnection, position: Position, query: str) -> None:
        self._connection = connection
        self._position = position
        self._query = query

    @property
    def position(self) -> Position:
        """The slot's consistent point."""
        return self._position

    def rows(self) -> Generator[Mapping[str, Value], None, None]:
        """Yield every row once, in the order of the primary key."""
        self._connection.rows(f"DECLARE halfbridge_rows NO SCROLL CURSOR FOR {self._query}")
        # The first rows may need a sort of all.
        while True:
            columns, rows = self._connection.typed_rows(
                f"FETCH FORWARD {_FETCH_ROWS} FROM halfbridge_rows", is_patient=True
            )
            for row in rows:
                yield {
                    name: value_of(oid, text)
                    for (name, oid), text in zip(columns, row, strict=True)
                }
            if len(rows) < _FETCH_ROWS:
                return

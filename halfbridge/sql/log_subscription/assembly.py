"""Positions for the events of a log: which lies behind which insert. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.changes import Insert, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Value


class Assembler:
    """Turns begin, insert and commit of a log's database transactions into inserts.

    An insert is handed out one event late: only the next one tells whether it is the last of its
    database transaction, which makes its position the commit's.

    Args:
        start: Where reading begins. Its `inserts` first inserts are left out, of the first
            database transaction that has any: a log tells the same inserts in the same order
            however often it is read.
    """

    __slots__ = ("_held", "_left_out", "_number", "_skip", "read_to")

    def __init__(self, start: Position) -> None:
        self.read_to = start.commit
        self._skip = start.inserts
        self._number = 0  # inserts of this database transaction so far
        self._left_out = False
        self._held: tuple[str, Mapping[str, Value]] | None = None

    @property
    def is_within(self) -> bool:
        """Whether an insert was read whose database transaction has not ended yet."""
        return self._number > 0

    def begin(self) -> None:
        """Begin a database transaction; what was read of an unfinished one is forgotten."""
        self._number = 0
        self._held = None

    def insert(self, table: str, values: Mapping[str, Value]) -> Insert | None:
        """Take an insert; return the one before it, of the same database transaction, if any."""
        before = self._released(Position(self.read_to, self._number), ends=False)
        self._number += 1
        if self._number > self._skip:
            self._held = (table, values)
        return before

    def commit(self, commit: str) -> Insert | None:
        """End a database transaction; return its last insert, if any.

        Args:
            commit: Position.commit behind it.
        """
        last = self._released(Position(commit), ends=True)
        if self._number:
            self._skip = 0
        self._number = 0
        self.read_to = commit
        return last

    def pass_to(self, commit: str) -> None:
        """Note that the log was read up to `commit`, between two database transactions."""
        if not self.is_within:
            self.read_to = commit

    def _released(self, position: Position, *, ends: bool) -> Insert | None:
        held, self._held = self._held, None
        if held is None:
            return None
        return Insert(table=held[0], values=held[1], position=position, ends_transaction=ends)

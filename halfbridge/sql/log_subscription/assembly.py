"""Computes the position after each insert of a log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.changes import Insert, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Value


class Assembler:
    """Turns the events begin, insert and commit of a log into inserts with positions.

    Each insert is returned one event late. The next event shows whether the insert is the last of
    its database transaction; the position after the last insert is the commit's position.

    Args:
        start: Where reading begins. Example: with `inserts` = 3, the first 3 inserts of the first
            database transaction with inserts are left out. A log has the same inserts in the same
            order every time it is read.
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
        """Whether inserts of a database transaction that has not ended were read."""
        return self._number > 0

    def begin(self) -> None:
        """Begin a database transaction; the inserts of an unfinished one are dropped."""
        self._number = 0
        self._held = None

    def insert(self, table: str, values: Mapping[str, Value]) -> Insert | None:
        """Add an insert; return the previous insert of the same database transaction, if any."""
        before = self._released(Position(self.read_to, self._number), ends=False)
        self._number += 1
        if self._number > self._skip:
            self._held = (table, values)
        return before

    def commit(self, commit: str) -> Insert | None:
        """End a database transaction; return its last insert, if any.

        Args:
            commit: Position.commit after the database transaction.
        """
        last = self._released(Position(commit), ends=True)
        if self._number:
            self._skip = 0
        self._number = 0
        self.read_to = commit
        return last

    def pass_to(self, commit: str) -> None:
        """Record that the log was read up to `commit`, between two database transactions."""
        if not self.is_within:
            self.read_to = commit

    def _released(self, position: Position, *, ends: bool) -> Insert | None:
        held, self._held = self._held, None
        if held is None:
            return None
        return Insert(table=held[0], values=held[1], position=position, ends_transaction=ends)

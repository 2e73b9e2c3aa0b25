"""The interface of a log source: inserts, each with the position after it, and snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextlib import AbstractContextManager

# The value of a column. Dates, times, intervals, UUIDs, JSON, arrays and all other types are the
# text that the database itself writes (times in UTC).
Value = bool | int | float | Decimal | str | bytes | None
Wanted: TypeAlias = "Callable[[], bool]"


def always() -> bool:
    """Return True: the caller never stops."""
    return True


@dataclass(frozen=True, slots=True, order=False)
class Position:
    """A place in a database's log, between two inserts.

    Attributes:
        commit: Every database transaction that committed up to here is before the position. The
            text of the source: an LSN on PostgreSQL, a GTID position on MariaDB.
        inserts: Number of inserts of the next database transaction that are before the position
            too. Above 0 only in a database transaction that is larger than a message transaction
            may be.
    """

    commit: str
    inserts: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """An object of a subscription on the server.

    Attributes:
        what: Kind and name of the object.
        is_used: Whether a relay uses the object now.
    """

    what: str
    is_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A committed insert.

    Attributes:
        table: Name of the table, without its schema.
        values: Column to value, in the table's order.
        position: The position directly after the insert.
        ends_transaction: Whether this is the last insert of its database transaction.
    """

    table: str
    values: Mapping[str, Value]
    position: Position
    ends_transaction: bool


class Snapshot(Protocol):
    """All rows of the table at one position."""

    @property
    def position(self) -> Position:
        """Transactions that committed before this position are in `rows`, later ones in the log."""

    def rows(self) -> Generator[Mapping[str, Value], None, None]:
        """Yield every row once, in the order of the primary key where there is one."""


class LogSource(Protocol):
    """A database's log, read for the inserts into one table. Not thread-safe.

    Every method may raise LogUnavailableError (open again later) and LogSettingsError (an
    operator acts).
    """

    @property
    def read_to(self) -> str:
        """All inserts that committed up to this Position.commit were returned by `read`."""

    def begin_now(self, is_wanted: Wanted = always) -> Position:
        """Create the objects on the server that reading needs; return the current end of the log.

        Args:
            is_wanted: Called twice a second during waits for the server.

        Raises:
            ReadingStoppedError: `is_wanted` returned False.
        """

    def begin_snapshot(self, is_wanted: Wanted = always) -> AbstractContextManager[Snapshot]:
        """Create the objects on the server that reading needs; yield a snapshot of the table.

        Arguments and errors are those of `begin_now`. Leaving the block before all rows were read
        is quick.
        """

    def open_now(self, is_wanted: Wanted = always) -> None:
        """Read from the current end of the log; no object on the server outlives `close`.

        Arguments and errors are those of `begin_now`.
        """

    def open(self, position: Position) -> None:
        """Read from `position` on.

        Raises:
            PositionLostError: The log no longer contains the position. Some sources raise this
                error in the first `read`.
        """

    def read(self, inserts_max: int, timeout_s: float) -> tuple[Insert, ...]:
        """Return the next inserts, in the order of their commits; empty after `timeout_s`.

        Returns as soon as there is one insert.

        Raises:
            PositionLostError: The server removed a part of the log that was not read yet.
            UnreadableChangeError: As in its docstring.
        """

    def advance(self, commit: str) -> None:
        """Tell the server that the log up to `commit` is not needed any more."""

    def check_table(self) -> None:
        """Check that the log still contains the inserts into the table that now has the name.

        Raises:
            PositionLostError: The table was created again or replaced by a rename, and PostgreSQL's
                publication still has the old table.
        """

    def lag_bytes(self) -> int:
        """Return the bytes of log after the place that was read or, on PostgreSQL, advanced to.

        This is the only method that is thread-safe.
        """

    def close(self) -> None:
        """End the connections; objects on the server stay."""

    def standing(self) -> tuple[Standing, ...]:
        """Return the objects of the subscription on the server."""

    def drop(self) -> None:
        """Remove the objects that `begin_now` or `begin_snapshot` created on the server.

        Raises:
            LogUnavailableError: A relay uses one of the objects.
        """

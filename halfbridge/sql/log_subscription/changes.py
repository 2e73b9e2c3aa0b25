"""What a log source hands out: inserts with the position behind each, and the source itself."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextlib import AbstractContextManager

# What a column holds. Dates, times, intervals, UUIDs, JSON, arrays and whatever else a database
# knows are the text that the database itself writes for them (times in UTC).
Value = bool | int | float | Decimal | str | bytes | None
Wanted: TypeAlias = "Callable[[], bool]"


def always() -> bool:
    """Return True: nobody stops."""
    return True


@dataclass(frozen=True, slots=True, order=False)
class Position:
    """A place in a database's log, between two inserts.

    Attributes:
        commit: Every database transaction that committed up to here lies before the position.
            The source's own text: an LSN on PostgreSQL, a GTID position on MariaDB.
        inserts: So many inserts of the next database transaction lie before it too; 0 but for
            database transactions that are larger than a message transaction may be.
    """

    commit: str
    inserts: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a subscription has on the server.

    Attributes:
        what: Its kind and name.
        is_used: A relay reads it now.
    """

    what: str
    is_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A committed insert.

    Attributes:
        table: Name of the table, without its schema.
        values: Column to value, in the table's order.
        position: The position directly behind the insert.
        ends_transaction: No other insert of its database transaction follows.
    """

    table: str
    values: Mapping[str, Value]
    position: Position
    ends_transaction: bool


class Snapshot(Protocol):
    """All rows of the table as they stood at one position."""

    @property
    def position(self) -> Position:
        """What committed before it is in `rows`; what committed later is in the log behind it."""

    def rows(self) -> Generator[Mapping[str, Value], None, None]:
        """Yield every row once, in the order of the primary key where there is one."""


class LogSource(Protocol):
    """A database's log, read for the inserts into one table. Not thread-safe.

    Every method may raise LogUnavailableError (open again later) and LogSettingsError (an
    operator acts).
    """

    @property
    def read_to(self) -> str:
        """All that committed up to here was handed out; text of Position.commit."""

    def begin_now(self, is_wanted: Wanted = always) -> Position:
        """Make what reading needs on the server; return the present end of the log.

        Args:
            is_wanted: Asked while the server lets wait, twice a second.

        Raises:
            ReadingStoppedError: it is not wanted any more.
        """

    def begin_snapshot(self, is_wanted: Wanted = always) -> AbstractContextManager[Snapshot]:
        """Make what reading needs on the server; yield the table as it stands at a position.

        Arguments and errors are those of `begin_now`; leaving it before all rows were read is
        quick.
        """

    def open_now(self, is_wanted: Wanted = always) -> None:
        """Read from the present end on; nothing on the server outlives `close`.

        Arguments and errors are those of `begin_now`.
        """

    def open(self, position: Position) -> None:
        """Read from `position` on.

        Raises:
            PositionLostError: the log does not reach back so far; the first `read` may be who
                tells it.
        """

    def read(self, inserts_max: int, timeout_s: float) -> tuple[Insert, ...]:
        """Return the next inserts, in the order of their commits; empty after `timeout_s`.

        Does not wait for more once there is one.

        Raises:
            PositionLostError: the log was cut off while it was read.
            UnreadableChangeError: see there.
        """

    def advance(self, commit: str) -> None:
        """Tell the server that the log up to `commit` is not needed any more."""

    def check_table(self) -> None:
        """Check that the log still tells of the table that has the name now.

        Raises:
            PositionLostError: the table was made anew or swapped by a rename, and PostgreSQL's
                publication has stayed with the old one.
        """

    def lag_bytes(self) -> int:
        """Return how much log lies behind what was read (MariaDB) or advanced to (PostgreSQL).

        Thread-safe, and the only method that is.
        """

    def close(self) -> None:
        """End the connections; what stands on the server stays."""

    def standing(self) -> tuple[Standing, ...]:
        """Return what stands on the server for the subscription."""

    def drop(self) -> None:
        """Remove from the server what `begin_now` or `begin_snapshot` made.

        Raises:
            LogUnavailableError: a relay uses it.
        """

"""Engines of an order service, and rival transactions that conflict with its blocks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, make_url, select, update
from sqlalchemy.exc import DBAPIError

from halfbridge.sql import Fence, Inbox
from tests.sql.fence_plan import STOCK, Kind

_CALL_S = 20  # limit of a call of a driver; no statement of a service takes so long
_CONNECT_S = 5
_IMPATIENT_MS = 50
_FOLLOWS_S = 0.2  # the block waits by then, so that PostgreSQL finds the deadlock in the block
_JOIN_S = 60.0


class Engines:
    """Engines on one database, and a fence on each that blocks use.

    Attributes:
        name: SQLAlchemy's name of the database.
        fence: The usual one, which checks use too.
        inbox: Of the consumer group that has the producer group's name.
    """

    def __init__(self, url: str, producer_group: str) -> None:
        self.name = make_url(url).get_backend_name()
        self._url = url
        self._group = producer_group
        self.usual = self._engine()
        self.rivals = self._engine()
        self.fence = self._fence(self.usual)
        self.inbox = Inbox(self.usual, group_id=producer_group)
        self._impatient = self._fence(self._engine(is_impatient=True))
        self._strict = self._fence(self._engine(is_strict=True))

    def fence_of(self, kind: Kind) -> Fence:
        if kind in (Kind.LOCKED, Kind.SWALLOWED):
            return self._impatient
        return self._strict if kind in (Kind.SERIAL, Kind.SKEWED) else self.fence

    def _fence(self, engine: Engine) -> Fence:
        return Fence(engine, producer_group=self._group)

    def _engine(self, *, is_impatient: bool = False, is_strict: bool = False) -> Engine:
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 8}
        if self.name == "sqlite":
            arguments: dict[str, Any] = {"timeout": _IMPATIENT_MS / 1_000 if is_impatient else 10}
        elif self.name == "postgresql":
            lock_ms = _IMPATIENT_MS if is_impatient else _CALL_S * 1_000
            limits = f"-c statement_timeout={_CALL_S * 1_000} -c lock_timeout={lock_ms}"
            arguments = {"connect_timeout": _CONNECT_S, "options": limits}
            if is_strict:
                options["isolation_level"] = "SERIALIZABLE"
        else:
            arguments = dict.fromkeys(("read_timeout", "write_timeout"), _CALL_S)
            arguments["connect_timeout"] = _CONNECT_S
            if is_impatient:
                arguments["init_command"] = "SET SESSION innodb_lock_wait_timeout = 1"
            elif is_strict and self.name == "mariadb":
                arguments["init_command"] = "SET SESSION innodb_snapshot_isolation = ON"
        return create_engine(self._url, connect_args=arguments, **options)


class Rival:
    """Another transaction that conflicts with a block. For one block, in one thread.

    Args:
        engines: Of the service.
        kind: Of the block.
        first: The first of the thread's own items of the stock.
        ballast: Number of further items that the rival changes: InnoDB's victim is the block.
    """

    def __init__(self, engines: Engines, kind: Kind, first: int, ballast: int) -> None:
        self._engines = engines
        self._kind = kind
        self._first, self._second = first, first + 1
        self._ballast = range(first + 2, first + 2 + ballast)
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Lock rows that the block will change."""
        if self._kind in (Kind.LOCKED, Kind.SWALLOWED):
            self._open()
            self._take(self._first)
        elif self._kind is Kind.DEADLOCK:
            self._open()
            self._take(self._second, *self._ballast)

    def meddle(self, connection: Connection) -> None:
        """Have the block and the rival conflict, in the middle of the block.

        Raises:
            DBAPIError: the database refuses the block's statement.
        """
        if self._kind is Kind.SWALLOWED:
            with suppress(DBAPIError):
                _change(connection, self._first)
        elif self._kind is Kind.LOCKED:
            _change(connection, self._first)
        elif self._kind is Kind.DEADLOCK:
            _change(connection, self._first)
            self._thread = threading.Timer(_FOLLOWS_S, self._follow)
            self._thread.start()
            _change(connection, self._second)
        elif self._kind is Kind.SERIAL:
            _read(connection, self._first)
            with self._other() as other:
                _change(other, self._first)
            _change(connection, self._first)
        elif self._kind is Kind.SKEWED:
            _read(connection, self._first)
            with self._other() as other:
                _read(other, self._second)
                _change(other, self._first)
            _change(connection, self._second)

    def release(self) -> None:
        """Release all locks before the block is left. Idempotent.

        Does nothing while the rival itself waits, which it does until the block has ended.
        """
        if self._thread is None:
            self._close()

    def end(self) -> None:
        """Release all locks after the block. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)
        self._close()

    def _open(self) -> None:
        self._connection = self._engines.rivals.connect()
        if self._engines.name == "sqlite":
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _take(self, *items: int) -> None:
        assert self._connection is not None
        for item in items:
            _change(self._connection, item)

    def _follow(self) -> None:
        with suppress(DBAPIError):  # the rival may be the deadlock's victim
            self._take(self._first)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.rollback()
            connection.close()

    @contextmanager
    def _other(self) -> Iterator[Connection]:
        """Yield a connection like the block's, whose work is committed."""
        with self._engines.fence_of(self._kind).engine.begin() as connection:
            yield connection


def _change(connection: Connection, item: int) -> None:
    statement = update(STOCK).where(STOCK.c.item == item)
    connection.execute(statement.values(amount=STOCK.c.amount + 1))


def _read(connection: Connection, item: int) -> None:
    connection.execute(select(STOCK.c.amount).where(STOCK.c.item == item)).all()

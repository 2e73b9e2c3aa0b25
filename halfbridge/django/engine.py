"""SQLAlchemy over Django's connections, for the statements of fence and inbox.

Django opens the connection and owns BEGIN, COMMIT and ROLLBACK, by an atomic block. SQLAlchemy runs
the statements of halfbridge on the same connection of the driver; its commit and rollback end the
atomic block. So a fenced block of Django is one of halfbridge.sql.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from halfbridge.kafka.errors import ConfigError
from halfbridge.sql import FenceUsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Django's module of the driver -> SQLAlchemy's dialect.
_DIALECTS = {
    "sqlite3": "sqlite+pysqlite",
    "psycopg": "postgresql+psycopg",
    "pymysql": "mariadb+pymysql",
}


def own_engine(alias: str) -> Engine:
    """Return an engine whose connections Django makes, apart from Django's own: for checks.

    ConfigError: another database or driver, or SQLite in memory; the settings name another one.
    """
    django = connections[alias]
    driver = django.Database.__name__.partition(".")[0]
    if driver not in _DIALECTS:
        raise ConfigError(
            field=f"DATABASES[{alias!r}]",
            value=driver,
            origin="Django's settings",
            allowed="SQLite, PostgreSQL by psycopg 3, MariaDB by PyMySQL",
        )
    return create_engine(
        f"{_DIALECTS[driver]}://",
        creator=lambda: _new_connection(alias),
        poolclass=QueuePool,  # else SQLAlchemy takes SQLite for one in memory
        pool_pre_ping=True,
    )


def atomic_engine(alias: str, engine: Engine) -> Engine:
    """Return an engine whose connect() begins an atomic block of Django's, and lays itself over it.

    `engine` is that of `own_engine`. FenceUsageError: a transaction is open; the caller's mistake.
    """
    with engine.connect():
        pass  # which asks the server for what the dialect has to know
    pool = NullPool(lambda: DriverConnection(connections[alias]), dialect=engine.dialect)
    return Engine(pool, engine.dialect, engine.url)


def _new_connection(alias: str) -> Any:
    """Return a new connection of the driver, with all settings that Django gives its own."""
    own = connections[alias].copy()
    own.settings_dict["OPTIONS"].pop("pool", None)  # SQLAlchemy pools
    with _errors_of_driver():
        own.connect()
        own.set_autocommit(False)
    return own.connection


class DriverConnection:
    """Django's connection in an atomic block, in the place of a driver's connection.

    Attributes:
        on_commit: Functions of Django's on_commit() that are due, because COMMIT has succeeded.
    """

    def __init__(self, django: Any) -> None:
        refuse_open(django)
        self.on_commit: list[Any] = []
        self._django = django
        self._atomic = transaction.atomic(using=django.alias, durable=True)
        self._atomic.__enter__()
        self._is_open = True
        self._driver = django.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def commit(self) -> None:
        """Leave the atomic block, and keep what Django would call now for `run_on_commit`.

        The driver's errors are those of COMMIT, or of the step to autocommit after it.
        """
        due, self._django.run_on_commit = self._django.run_on_commit, []
        self._leave(None)
        self.on_commit = due

    def rollback(self) -> None:
        """Leave the atomic block as after an error; no effect after its end."""
        if self._is_open:
            self._leave(RuntimeError)

    def close(self) -> None:
        """Leave the atomic block if it is open; Django keeps its connection."""
        self.rollback()

    def run_on_commit(self) -> None:
        """Call the functions that are due, as Django does: an error of one ends the calls."""
        if self.on_commit:
            self._django.run_on_commit, self.on_commit = self.on_commit, []
            self._django.run_and_clear_commit_hooks()

    def _leave(self, error: type[BaseException] | None) -> None:
        self._is_open = False
        with _errors_of_driver():
            self._atomic.__exit__(error, None, None)


def refuse_open(django: Any) -> None:
    """Refuse a connection in a transaction, whose COMMIT would come after that of the messages.

    Raises FenceUsageError: the programmer leaves the transaction first.
    """
    if django.in_atomic_block:
        raise FenceUsageError(
            "an atomic block is open, whose COMMIT would come after that of the messages: leave it"
            " first; decorate the view with transaction.non_atomic_requests where ATOMIC_REQUESTS"
            " opens it; in a test, use TransactionTestCase"
        )
    if not django.get_autocommit():
        raise FenceUsageError(
            f"autocommit is off on {django.alias!r}, so a transaction may be open, and no block's"
            " end commits it: remove AUTOCOMMIT from DATABASES and set_autocommit(False)"
        )


@contextmanager
def _errors_of_driver() -> Iterator[None]:
    """Raise the driver's errors, by which SQLAlchemy knows what happened, for Django's."""
    try:
        yield
    except Error as error:
        raise error.__cause__ or error from None


@contextmanager
def errors_of_django(django: Any) -> Iterator[None]:
    """Raise Django's errors, which its users catch, for SQLAlchemy's."""
    try:
        yield
    except DBAPIError as error:
        if error.orig is None:
            raise
        with django.wrap_database_errors:
            raise error.orig from error

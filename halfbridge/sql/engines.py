"""Engines for the command line, whose waits for the database are all bounded.

The server also ends transactions that a command has abandoned.

psycopg connections get a time-out for the server's answers. libpq has none, and TCP keepalives do
not detect a proxy that accepts bytes and forwards none.

Settings are sent when a connection starts, and not with SET: a transaction pooler (PgBouncer)
passes a server connection on to another client with the values of SET. At the start of a connection
such a pooler accepts the settings that it tracks for each client, and refuses or ignores others.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, QueuePool

from halfbridge.extras import install
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.bounds import Bounds
from halfbridge.sql.dialects import database_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.abc import PQGen
    from sqlalchemy import URL, Engine

# For a relay's rounds, dead letters, settling and listener, or for 4 concurrent checks.
_KEPT_CONNECTIONS = 8
_MORE_CONNECTIONS_MAX = 8  # for checks that replace hung checks
# TCP keepalive: an idle connection is probed after 4 s, 3 times every 2 s, and is lost after 10 s.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVES = 4, 2, 3
# TCP_USER_TIMEOUT, for unacknowledged data: as for an idle connection.
_KEEPALIVE_MS = 1_000 * (_KEEPALIVE_IDLE_S + _KEEPALIVE_INTERVAL_S * _KEEPALIVES)
_ALLOWED = (
    "SQLAlchemy's form, such as postgresql+psycopg://user:password@host/name,"
    " mariadb+pymysql://user:password@host/name or sqlite:///path"
)


def engine_of(url: str, *, bounds: Bounds | None = None, option: str = "--url") -> Engine:
    """Return an engine with a bounded wait for a connection.

    Args:
        url: SQLAlchemy URL of the database.
        bounds: For a long-running command: connections are pooled, and every wait is bounded. None:
            each use opens a new connection, and statements are not bounded.
        option: The option that gave the URL, for errors.

    Raises:
        ConfigError: The database is not supported, or the driver is not installed; the user
            corrects the URL, or installs it. The text does not repeat the URL, which may contain a
            password.
    """
    try:
        parsed = make_url(url)
        name = database_of(parsed.get_backend_name()).name
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(field="url", value="***", origin=option, allowed=_ALLOWED) from error
    try:
        if bounds is None:
            wait = "timeout" if name == "sqlite" else "connect_timeout"
            options = {wait: Bounds().connect_s, **_encoding(parsed)}
            return create_engine(parsed, poolclass=NullPool, connect_args=options)
        return _bounded(parsed, name, bounds)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            field="url",
            value=parsed.drivername,
            origin=option,
            allowed=f"a driver that is installed; {install('psycopg')} brings psycopg and PyMySQL",
        ) from error


def _bounded(url: URL, name: str, bounds: Bounds) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=_KEPT_CONNECTIONS,
        max_overflow=_MORE_CONNECTIONS_MAX,
        pool_timeout=bounds.connect_s,
        pool_pre_ping=True,
        connect_args={**_OPTIONS[name](bounds), **_encoding(url)},
    )
    if name == "mariadb":
        setup = _mariadb_settings(bounds)

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _record: Any) -> None:
            connection.cursor().execute(setup)
            connection.commit()

    if engine.driver == "psycopg":
        settings = _postgresql_settings(bounds)
        event.listen(engine, "do_connect", connecting(answer_s=bounds.answer_s, settings=settings))
    return engine


def _encoding(url: URL) -> dict[str, Any]:
    """Return psycopg's option for the encoding of text, if the URL gives none.

    In a database with SQL_ASCII, psycopg returns bytes for text, which SQLAlchemy cannot read.
    """
    is_given = any("client_encoding" in f"{name} {value}" for name, value in url.query.items())
    return (
        {"client_encoding": "utf8"} if url.drivername.endswith("+psycopg") and not is_given else {}
    )


def _postgresql_settings(bounds: Bounds) -> str:
    settings = {
        "statement_timeout": f"{bounds.statement_s}s",
        "idle_in_transaction_session_timeout": f"{bounds.idle_transaction_s}s",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _mariadb_settings(bounds: Bounds) -> str:
    """Return the statement for each new connection of MariaDB or MySQL.

    MariaDB reads the first comment, and MySQL the second one. MySQL cannot bound a write that
    computes for long: the client closes its connection after `answer_s`, and the server rolls the
    transaction back when the statement has ended. MySQL has no limit for idle transactions, but
    one for idle connections, which the pool replaces.
    """
    return (
        f"SET SESSION innodb_lock_wait_timeout = {bounds.statement_s},"
        f" SESSION lock_wait_timeout = {bounds.statement_s}"
        f" /*M! , SESSION max_statement_time = {bounds.statement_s},"
        f" SESSION idle_transaction_timeout = {bounds.idle_transaction_s} */"
        f" /*!80000 , SESSION max_execution_time = {bounds.statement_s * MS_PER_S},"
        f" SESSION wait_timeout = {bounds.idle_transaction_s} */"
    )


# The options of libpq, PyMySQL and sqlite3 for each connection.
_OPTIONS: dict[str, Callable[[Bounds], dict[str, Any]]] = {
    "postgresql": lambda bounds: {
        "connect_timeout": bounds.connect_s,
        "keepalives": 1,
        "keepalives_idle": _KEEPALIVE_IDLE_S,
        "keepalives_interval": _KEEPALIVE_INTERVAL_S,
        "keepalives_count": _KEEPALIVES,
        "tcp_user_timeout": _KEEPALIVE_MS,
    },
    "mariadb": lambda bounds: {
        "connect_timeout": bounds.connect_s,
        "read_timeout": bounds.answer_s,
        "write_timeout": bounds.answer_s,
    },
    "sqlite": lambda bounds: {"timeout": bounds.connect_s},
}
_R = TypeVar("_R")
_LOG = logging.getLogger("halfbridge.sql")
_REFUSED = "unsupported startup parameter"  # PgBouncer's words


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed with an OperationalError after `answer_s` without any data."""

    answer_s: float = float("inf")

    def wait(self, gen: PQGen[_R], *args: Any, **named: Any) -> _R:
        """Run one operation of the protocol with the time-out."""
        return super().wait(self._bounded(gen), *args, **named)

    def _bounded(self, gen: PQGen[_R]) -> PQGen[_R]:
        deadline = monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    deadline = monotonic() + self.answer_s
                elif monotonic() >= deadline:
                    # Closed at once: a ROLLBACK would wait as long again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"no answer from the server in {self.answer_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            found: _R = end.value
            return found


def connecting(*, answer_s: float, settings: str = "") -> Callable[..., BoundedConnection]:
    """Return a listener for SQLAlchemy's event `do_connect` that makes such connections.

    Options in the URL take precedence over `settings`. If a pooler refuses the settings, the
    connection is made without them, with a warning.
    """
    warned: list[None] = []

    def connect(_dialect: Any, _record: Any, given: Any, named: Any) -> BoundedConnection:
        options = f"{settings} {named.get('options', '')}".strip()
        try:
            made = BoundedConnection.connect(*given, **{**named, "options": options})
        except psycopg.OperationalError as error:
            if not settings or _REFUSED not in str(error):
                raise
            made = BoundedConnection.connect(*given, **named)
            if not warned:
                warned.append(None)
                _LOG.warning("a pooler refuses %s: the server's own values apply", settings)
        made.answer_s = answer_s
        return made

    return connect

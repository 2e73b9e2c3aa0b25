"""Engines for the command line.

A command that runs on must outlive any fault of the network and of the server, so each of its waits
for the database has an end, and the server ends what such a command has left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, QueuePool

from halfbridge.bridge.errors import ConfigError
from halfbridge.sql.bounds import Bounds
from halfbridge.sql.dialects import database_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

# A relay's rounds, dead letters, settling and listener; or the producer's checks, 4 at a time.
_KEPT_CONNECTIONS = 8
_MORE_CONNECTIONS_MAX = 8  # checks whose threads were replaced, for they hang
# A connection that carries nothing is probed after this long, so often, and then is lost: 10 s.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVES = 4, 2, 3
_KEEPALIVE_MS = 1_000 * (_KEEPALIVE_IDLE_S + _KEEPALIVE_INTERVAL_S * _KEEPALIVES)
_ALLOWED = (
    "SQLAlchemy's form, such as postgresql+psycopg://user:password@host/name,"
    " mariadb+pymysql://user:password@host/name or sqlite:///path"
)


def engine_of(url: str, *, bounds: Bounds | None = None) -> Engine:
    """Return an engine that does not wait long for a connection.

    Args:
        url: SQLAlchemy's address of the database.
        bounds: For a command that runs on: a connection is used again where it still answers, and
            no wait lasts longer. None: each use opens a connection of its own, and a statement may
            take its time.

    Raises:
        ConfigError: no URL of a database that halfbridge knows, or its driver is not installed;
            the text does not repeat the URL, which may hold a password.
    """
    try:
        parsed = make_url(url)
        name = database_of(parsed.get_backend_name()).name
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(field="url", value="***", origin="--url", allowed=_ALLOWED) from error
    try:
        if bounds is None:
            option = "timeout" if name == "sqlite" else "connect_timeout"
            options = {option: Bounds().connect_s}
            return create_engine(parsed, poolclass=NullPool, connect_args=options)
        return _bounded(parsed, name, bounds)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            field="url",
            value=parsed.drivername,
            origin="--url",
            allowed="a driver that is installed; pip install 'halfbridge[sql]' brings psycopg and"
            " PyMySQL",
        ) from error


def _bounded(url: URL, name: str, bounds: Bounds) -> Engine:
    """Return an engine for a command that runs on."""
    options, setup = _OPTIONS[name](bounds)
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=_KEPT_CONNECTIONS,
        max_overflow=_MORE_CONNECTIONS_MAX,
        pool_timeout=bounds.connect_s,
        pool_pre_ping=True,
        connect_args=options,
    )
    if setup:

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _record: Any) -> None:
            connection.cursor().execute(setup)
            connection.commit()

    if engine.driver == "psycopg":
        # Late: another driver may be the one that is installed.
        from halfbridge.sql.bounded import connecting  # noqa: PLC0415

        told = _server_settings(bounds)
        event.listen(engine, "do_connect", connecting(answer_s=bounds.answer_s, settings=told))
    return engine


def _postgresql(bounds: Bounds) -> tuple[dict[str, Any], str]:
    """Return libpq's options; see `_server_settings`."""
    options = {
        "connect_timeout": bounds.connect_s,
        "keepalives": 1,
        "keepalives_idle": _KEEPALIVE_IDLE_S,
        "keepalives_interval": _KEEPALIVE_INTERVAL_S,
        "keepalives_count": _KEEPALIVES,
        "tcp_user_timeout": _KEEPALIVE_MS,
    }
    return options, ""


def _server_settings(bounds: Bounds) -> str:
    """Return settings of PostgreSQL for the start of a connection."""
    settings = {
        "statement_timeout": f"{bounds.statement_s}s",
        "idle_in_transaction_session_timeout": f"{bounds.idle_transaction_s}s",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _mariadb(bounds: Bounds) -> tuple[dict[str, Any], str]:
    """Return PyMySQL's options, and a statement for each new connection."""
    options = {
        "connect_timeout": bounds.connect_s,
        "read_timeout": bounds.answer_s,
        "write_timeout": bounds.answer_s,
    }
    settings = {
        "innodb_lock_wait_timeout": bounds.statement_s,
        "lock_wait_timeout": bounds.statement_s,
    }
    of_mariadb = {  # a comment to MySQL
        "max_statement_time": bounds.statement_s,
        "idle_transaction_timeout": bounds.idle_transaction_s,
    }
    told, more = (
        ", ".join(f"SESSION {name} = {value}" for name, value in each.items())
        for each in (settings, of_mariadb)
    )
    return options, f"SET {told} /*M! , {more} */"


def _sqlite(bounds: Bounds) -> tuple[dict[str, Any], str]:
    """Return sqlite3's options; there is no server that could be away."""
    return {"timeout": bounds.connect_s}, ""


_OPTIONS = {"postgresql": _postgresql, "mariadb": _mariadb, "sqlite": _sqlite}

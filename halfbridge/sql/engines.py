"""Engines for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, QueuePool

from bridge.errors import ConfigError
from halfbridge.sql.dialects import database_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

_CONNECT_S = 10
# A relay's rounds, dead letters, settling, listener, and the producer's checks, 4 at a time.
_KEPT_CONNECTIONS = 8
_MORE_CONNECTIONS_MAX = 8  # checks whose threads were replaced, for they hang
_ALLOWED = (
    "SQLAlchemy's form, such as postgresql+psycopg://user:password@host/name,"
    " mariadb+pymysql://user:password@host/name or sqlite:///path"
)


def engine_of(url: str, *, keeps_connections: bool = False) -> Engine:
    """Return an engine that does not wait long for a connection.

    Args:
        url: SQLAlchemy's address of the database.
        keeps_connections: For a command that runs on: a connection is used again where it still
            answers. Else each use opens a connection of its own.

    Raises:
        ConfigError: no URL of a database that halfbridge knows, or its driver is not installed;
            the text does not repeat the URL, which may hold a password.
    """
    try:
        parsed = make_url(url)
        database = database_of(parsed.get_backend_name())
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(field="url", value="***", origin="--url", allowed=_ALLOWED) from error
    option = "timeout" if database.name == "sqlite" else "connect_timeout"
    try:
        if not keeps_connections:
            return create_engine(parsed, poolclass=NullPool, connect_args={option: _CONNECT_S})
        return create_engine(
            parsed,
            poolclass=QueuePool,
            pool_size=_KEPT_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS_MAX,
            pool_timeout=_CONNECT_S,
            pool_pre_ping=True,
            connect_args={option: _CONNECT_S},
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            field="url",
            value=parsed.drivername,
            origin="--url",
            allowed="a driver that is installed; pip install 'halfbridge[sql]' brings psycopg and"
            " PyMySQL",
        ) from error

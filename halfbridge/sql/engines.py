"""Engines for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from bridge.errors import ConfigError
from halfbridge.sql.dialects import database_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

_CONNECT_S = 10
_ALLOWED = (
    "SQLAlchemy's form, such as postgresql+psycopg://user:password@host/name,"
    " mariadb+pymysql://user:password@host/name or sqlite:///path"
)


def engine_of(url: str) -> Engine:
    """Return an engine that opens a connection for each use, and does not wait long for it.

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
        return create_engine(parsed, poolclass=NullPool, connect_args={option: _CONNECT_S})
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            field="url",
            value=parsed.drivername,
            origin="--url",
            allowed="a driver that is installed; pip install 'halfbridge[sql]' brings psycopg and"
            " PyMySQL",
        ) from error

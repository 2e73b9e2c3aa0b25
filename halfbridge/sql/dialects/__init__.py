"""The differences between databases: one class for each kind of database.

Besides its class, a kind has its URL's options in engines.py, and its types and its clock in
tables.py. CONTRIBUTING.md lists the steps.
"""

from __future__ import annotations

from sqlalchemy import Engine

from halfbridge.kafka.errors import ConfigError
from halfbridge.sql.dialects.base import Database
from halfbridge.sql.dialects.mariadb import MariaDB
from halfbridge.sql.dialects.postgresql import PostgreSQL
from halfbridge.sql.dialects.sqlite import SQLite

__all__ = ["Database", "database_of", "database_of_engine"]

_DATABASES: dict[str, Database] = {
    "postgresql": PostgreSQL(),
    "mariadb": MariaDB(),
    "mysql": MariaDB(),
    "sqlite": SQLite(),
}


def database_of(dialect_name: str) -> Database:
    """Return the database with SQLAlchemy's `dialect_name`.

    Raises ConfigError: there is none; the user names another database.
    """
    found = _DATABASES.get(dialect_name)
    if found is None:
        raise ConfigError(
            field="url",
            value=dialect_name,
            origin="the engine's dialect",
            allowed=", ".join(sorted(_DATABASES)),
        )
    return found


def database_of_engine(engine: Engine) -> Database:
    """Return the database of a synchronous engine.

    Raises ConfigError: another kind of engine; the caller gives another one.
    """
    if not isinstance(engine, Engine):
        raise ConfigError(
            field="engine",
            value=type(engine).__name__,
            origin="the call",
            allowed="SQLAlchemy's Engine. With an AsyncEngine, take AsyncFence or AsyncInbox, or"
            " make an engine beside it with create_engine() and a synchronous driver",
        )
    return database_of(engine.dialect.name)

"""The log source of an engine's database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.errors import ConfigError
from halfbridge.sql.log_subscription.errors import LogSettingsError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

    from halfbridge.sql.log_subscription.changes import LogSource

# What a replication slot may be called, with our prefix before it.
_NAME = re.compile(r"[a-z0-9_]{1,50}")
_MARIADB = frozenset(("mariadb", "mysql"))
_POSTGRESQL = "postgresql"


def log_source(engine: Engine, *, name: str, table: str, schema: str | None = None) -> LogSource:
    """Return the log of the engine's database, read for the inserts into one table.

    Args:
        engine: SQLAlchemy engine; its URL says where the log is. The source makes its own
            connections.
        name: Name of the subscription, 1 to 50 of a-z, 0-9 and _.
        table: Name of the table.
        schema: Schema of the table; None: public on PostgreSQL, the URL's database on MariaDB.

    Raises:
        LogSettingsError: halfbridge cannot read the log of this kind of database.
        ConfigError: `name` is not a valid name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            field="subscription",
            value=repr(name),
            origin="argument",
            allowed="1 to 50 of a-z, 0-9 and _; give --subscription where the table's is none",
        )
    kind = engine.dialect.name
    if kind == _POSTGRESQL:
        # Imported here: each source needs a driver that may not be installed.
        from halfbridge.sql.log_subscription.postgresql import PostgresqlLog  # noqa: PLC0415

        parameters = _parameters(engine.url, "postgresql+psycopg")
        return PostgresqlLog(parameters, name=name, table=table, schema=schema or "public")
    if kind in _MARIADB:
        from halfbridge.sql.log_subscription.mariadb import MariadbLog  # noqa: PLC0415  (needs its driver only)

        parameters = _parameters(engine.url, "mysql+pymysql")
        return MariadbLog(parameters, table=table, schema=schema or "")
    raise LogSettingsError(f"{kind} has no log to subscribe to; use PostgreSQL or MariaDB")


def _parameters(url: URL, driver: str) -> dict[str, Any]:
    """Return the parameters by which `driver` connects to the server of a URL of any driver."""
    own = url.set(drivername=driver)
    return dict(own.get_dialect()().create_connect_args(own)[1])

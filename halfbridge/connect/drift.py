"""Tables that changed after their connector was made: it loses rows of them, or doubles some."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import text

from halfbridge.checker.admin.doctor.facts import Drift

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    Configs = Mapping[str, Mapping[str, str]]  # by the connectors' names

_CHILDREN = text("""
SELECT pn.nspname || '.' || p.relname, cn.nspname || '.' || c.relname
FROM pg_inherits i
JOIN pg_class p ON p.oid = i.inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace
JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
WHERE p.relkind = 'r' AND c.relkind = 'r'
ORDER BY 1, 2
""")
_VERSIONED = text("""
SELECT table_schema, table_name FROM information_schema.tables
WHERE table_type = 'SYSTEM VERSIONED' ORDER BY 1, 2
""")
_COMMA = re.compile(r"(?<!\\),")  # Debezium's separator of patterns


def find_drifts(connection: Connection, configs: Configs) -> Iterator[Drift]:
    """Yield the tables of this database whose changes its connectors lose, or double."""
    if connection.dialect.name == "postgresql":
        database = connection.execute(text("SELECT current_database()")).scalar()
        mine = {
            name: config
            for name, config in configs.items()
            if config.get("connector.class", "").endswith(".PostgresConnector")
            and config.get("database.dbname") == database
        }
        for parent, child in connection.execute(_CHILDREN):
            if not _readers(mine, child):
                yield from (Drift(name, child, parent) for name in _readers(mine, parent))
        return
    mine = {
        name: config
        for name, config in configs.items()
        if config.get("connector.class", "").endswith((".MariaDbConnector", ".MySqlConnector"))
    }
    for schema, table in connection.execute(_VERSIONED):
        full = f"{schema}.{table}"
        yield from (Drift(name, full) for name in _readers(mine, full))


def _readers(configs: Configs, table: str) -> list[str]:
    """Return the connectors whose table.include.list has the table."""
    return [
        name
        for name, config in configs.items()
        if any(
            _matches(each.strip(), table)
            for each in _COMMA.split(config.get("table.include.list", ""))
        )
    ]


def _matches(pattern: str, table: str) -> bool:
    try:
        return bool(re.fullmatch(pattern, table, re.IGNORECASE))  # as Debezium does
    except re.error:  # somebody's own pattern, which Java understands
        return False

"""Reads PostgreSQL's catalogs: a table, its publication and its slot."""

# Names are in the statements as quoted literals: the replication protocol has no parameters.
# ruff: noqa: S608

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.changes import Standing

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.pg_wire import ReplicationConnection


def is_published(
    connection: ReplicationConnection, publication: str, schema: str, table: str
) -> bool:
    """Return whether the publication has the table, which it identifies by OID, with inserts."""
    return bool(
        connection.rows(
            "SELECT 1 FROM pg_publication_tables JOIN pg_publication USING (pubname) "
            f"WHERE pubname = {_literal(publication)} AND schemaname = {_literal(schema)} "
            f"AND tablename = {_literal(table)} AND pubinsert"
        )
    )


def columns_of(connection: ReplicationConnection, table: str) -> list[str]:
    """Return the columns that are in the log; generated columns are not.

    Args:
        connection: Connection to the table's database.
        table: The table's name with its schema, both quoted.
    """
    return _names(
        connection,
        "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
        f"AND attgenerated = '' AND attrelid = {_literal(table)}::regclass "
        "ORDER BY attnum",
    )


def primary_key_of(connection: ReplicationConnection, table: str) -> list[str]:
    """Return the columns of the primary key, in its order; see `columns_of`."""
    return _names(
        connection,
        "SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) "
        "WITH ORDINALITY AS k(attnum, place) JOIN pg_attribute a "
        "ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indisprimary "
        f"AND i.indrelid = {_literal(table)}::regclass ORDER BY k.place",
    )


def standing_of(connection: ReplicationConnection, name: str) -> tuple[Standing, ...]:
    """Return the slot and the publication with this name, if they are in this database."""
    slots = connection.rows(
        f"SELECT active FROM pg_replication_slots WHERE slot_name = {_literal(name)} "
        "AND database = current_database()"
    )
    publications = connection.rows(f"SELECT 1 FROM pg_publication WHERE pubname = {_literal(name)}")
    return (
        *(Standing(f"replication slot {name}", active == b"t") for (active,) in slots),
        *(Standing(f"publication {name}", is_used=False) for _ in publications),
    )


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _names(connection: ReplicationConnection, query: str) -> list[str]:
    return [(name or b"").decode() for (name,) in connection.rows(query)]

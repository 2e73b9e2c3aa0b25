"""Converts values of PostgreSQL's columns from their text form. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.sql.log_subscription.changes import Value

# Settings that make the text forms independent of the role's and the database's settings, so that
# the log and a snapshot have the same form.
TEXT_SETTINGS = {
    "bytea_output": "hex",
    "datestyle": "ISO,YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}


def base_oid(schema: str, name: str) -> int | None:
    """Return the oid of a built-in type with a reader in this module; None: another type.

    Args:
        schema: Schema of the type; empty: pg_catalog.
        name: Name of the type.
    """
    return _OIDS.get(name) if schema in _BUILT_IN else None


def value_of(type_oid: int, text: bytes | None) -> Value:
    """Return the value whose output function wrote `text`; None is null."""
    return None if text is None else _READERS.get(type_oid, bytes.decode)(text)


def _bytea(text: bytes) -> bytes:
    return bytes.fromhex(text[2:].decode("ascii"))  # \x00ff


_BUILT_IN = ("", "pg_catalog")
# Oids of pg_type that never change (src/include/catalog/pg_type.dat).
_READERS: dict[int, Callable[[bytes], Value]] = {
    16: lambda text: text == b"t",  # bool
    17: _bytea,
    20: int,  # int8
    21: int,  # int2
    23: int,  # int4
    26: int,  # oid
    700: float,  # float4: the shortest text that is the same float4
    701: float,  # float8
    1700: lambda text: Decimal(text.decode("ascii")),  # numeric, NaN and Infinity too
}
_OIDS = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "oid": 26,
    "float4": 700,
    "float8": 701,
    "numeric": 1700,
}

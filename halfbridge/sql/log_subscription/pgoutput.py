"""Messages of PostgreSQL's output plug-in pgoutput, protocol version 1. Pure.

Messages that are not needed for inserts are not decoded. Source: PostgreSQL manual, "Logical
Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BEGIN = Struct("!QqI")  # LSN of the commit, its time, transaction id
_COMMIT = Struct("!BQQq")  # flags, LSN of the commit, LSN behind it, its time
_OID = Struct("!I")
_COLUMN = Struct("!Ii")  # type's oid, type modifier
_INT16 = Struct("!H")
_INT32 = Struct("!I")
# Update, delete, truncate, origin, logical message: not inserts, so they are not decoded.
_PASSED_OVER = frozenset(b"UDTOM")
_SHOWN_BYTES = 40


class PgoutputError(ValueError):
    """Bytes that are not a message of pgoutput's protocol version 1."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message of a committed database transaction."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The last message of a committed database transaction.

    Attributes:
        end_lsn: The first byte of the log behind the commit.
    """

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation: its name and its type's oid."""

    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class Relation:
    """Description of a table; sent before the table's first change, and after alterations."""

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type that is not built in; sent before the first relation with a column of the type.

    Attributes:
        oid: Oid of the type.
        schema: Schema of the type, or of the base type if the type is a domain; empty: pg_catalog.
        name: Name of the type, or of the base type if the type is a domain.
    """

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class RowInsert:
    """An inserted row.

    Attributes:
        oid: Oid of the relation.
        texts: Value of each column, in the relation's order, as the type's output function writes
            it; None is null.
    """

    oid: int
    texts: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A message that is not about inserts.

    Attributes:
        kind: The message's first byte.
    """

    kind: str


PgoutputMessage = Begin | Commit | Relation | TypeName | RowInsert | PassedOver


def decode(data: bytes) -> PgoutputMessage:
    """Return the message in `data`.

    Raises:
        PgoutputError: The message is truncated, too long, or of an unknown kind.
    """
    reader = _Reader(data)
    try:
        message = _read(reader)
    except (error, IndexError, UnicodeDecodeError, ValueError) as wrong:
        raise PgoutputError(f"{data[:_SHOWN_BYTES].hex()}...: {wrong}") from wrong
    if not isinstance(message, PassedOver) and reader.at != len(data):
        raise PgoutputError(f"{data[:_SHOWN_BYTES].hex()}...: {len(data) - reader.at} bytes left")
    return message


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it: 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Return the LSN that PostgreSQL writes as `text`.

    Raises:
        ValueError: The text is not an LSN.
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self.data, self.at)
        self.at += form.size
        return values

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError("cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found


def _read(reader: _Reader) -> PgoutputMessage:
    kind = reader.take(1)
    if kind == b"I":
        return _insert(reader)
    if kind == b"B":
        return Begin(reader.unpack(_BEGIN)[2])
    if kind == b"C":
        return Commit(reader.unpack(_COMMIT)[2])
    if kind == b"R":
        return _relation(reader)
    if kind == b"Y":
        return TypeName(reader.unpack(_OID)[0], reader.text(), reader.text())
    if kind[0] in _PASSED_OVER:
        return PassedOver(kind.decode())
    raise ValueError("no such kind of message")


def _relation(reader: _Reader) -> Relation:
    (oid,) = reader.unpack(_OID)
    schema, table = reader.text(), reader.text()
    reader.take(1)  # replica identity
    (count,) = reader.unpack(_INT16)
    columns = []
    for _ in range(count):
        reader.take(1)  # flags: part of the key
        name = reader.text()
        columns.append(Column(name, reader.unpack(_COLUMN)[0]))
    return Relation(oid, schema, table, tuple(columns))


def _insert(reader: _Reader) -> RowInsert:
    (oid,) = reader.unpack(_OID)
    if reader.take(1) != b"N":
        raise ValueError("an insert without a new row")
    (count,) = reader.unpack(_INT16)
    return RowInsert(oid, tuple(_column(reader) for _ in range(count)))


def _column(reader: _Reader) -> bytes | None:
    kind = reader.take(1)
    if kind == b"n":
        return None
    if kind != b"t":  # u: unchanged, of updates only; b: binary, never asked for
        raise ValueError(f"a column of kind {kind!r} in an insert")
    return reader.take(reader.unpack(_INT32)[0])


def relation_of(relations: Mapping[int, Relation], insert: RowInsert) -> Relation:
    """Return the relation of the inserted row.

    Raises:
        PgoutputError: The relation was not sent before, or has another number of columns.
    """
    relation = relations.get(insert.oid)
    if relation is None or len(relation.columns) != len(insert.texts):
        raise PgoutputError(f"an insert into relation {insert.oid}, which was not described so")
    return relation

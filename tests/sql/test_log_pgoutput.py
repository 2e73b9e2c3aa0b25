"""The decoder of pgoutput's messages."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbridge.sql.log_subscription.pg_values import value_of
from halfbridge.sql.log_subscription.pgoutput import (
    Begin,
    Column,
    Commit,
    PassedOver,
    PgoutputError,
    Relation,
    RowInsert,
    TypeName,
    decode,
    lsn_of,
    lsn_text,
    relation_of,
)

OID = st.integers(0, 2**32 - 1)
LSN = st.integers(0, 2**64 - 1)
NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
COLUMNS = st.lists(st.builds(Column, NAME, OID), max_size=5).map(tuple)
TEXTS = st.lists(st.none() | st.binary(max_size=20), max_size=5).map(tuple)
MESSAGE = st.one_of(
    st.builds(Begin, OID),
    st.builds(Commit, LSN),
    st.builds(Relation, OID, NAME, NAME, COLUMNS),
    st.builds(TypeName, OID, NAME, NAME),
    st.builds(RowInsert, OID, TEXTS),
)

# What PostgreSQL 15 sent for INSERT INTO o VALUES (1, 'a', '\x00ff', null).
GOLDEN = [
    ("42000000000157 0ec0 000303eed3379233 000002e1", Begin(0x2E1)),
    (
        (
            "52 00004005 7075626c696300 6f00 64 0004 01 696400 00000017ffffffff"
            "00 6b00 00000019ffffffff 00 7600 00000011ffffffff 00 6e00 000006a4ffffffff"
        ),
        Relation(
            0x4005,
            "public",
            "o",
            (Column("id", 23), Column("k", 25), Column("v", 17), Column("n", 1700)),
        ),
    ),
    (
        "49 00004005 4e 0004 74 00000001 31 74 00000001 61 74 00000006 5c7830306666 6e",
        RowInsert(0x4005, (b"1", b"a", b"\\x00ff", None)),
    ),
    # A domain over integer, and an enum.
    ("59 0000401c 00 696e743400", TypeName(0x401C, "", "int4")),
    ("59 0000401d 7075626c696300 6d6f6f6400", TypeName(0x401D, "public", "mood")),
    ("43 00 0000000001570ec0 0000000001570ef0 000303eed3379233", Commit(0x1570EF0)),
]


def _encoded(message: Begin | Commit | Relation | TypeName | RowInsert) -> bytes:
    """Return the bytes of a message, after the manual and not after the decoder."""
    if isinstance(message, Begin):
        return b"B" + pack("!QqI", 1, -1, message.transaction)
    if isinstance(message, Commit):
        return b"C" + pack("!BQQq", 0, 1, message.end_lsn, -1)
    if isinstance(message, Relation):
        data = b"R" + pack("!I", message.oid) + message.schema.encode() + b"\0"
        data += message.table.encode() + b"\0d" + pack("!H", len(message.columns))
        for each in message.columns:
            data += b"\1" + each.name.encode() + b"\0" + pack("!Ii", each.type_oid, -1)
        return data
    if isinstance(message, TypeName):
        names = message.schema.encode() + b"\0" + message.name.encode() + b"\0"
        return b"Y" + pack("!I", message.oid) + names
    data = b"I" + pack("!I", message.oid) + b"N" + pack("!H", len(message.texts))
    for text in message.texts:
        data += b"n" if text is None else b"t" + pack("!I", len(text)) + text
    return data


@pytest.mark.parametrize(("data", "message"), GOLDEN, ids=lambda each: type(each).__name__)
def test_what_a_server_sends_is_read(data: str, message: object) -> None:
    """Bytes that PostgreSQL 15 sent are the messages they stand for."""
    assert decode(bytes.fromhex(data.replace(" ", ""))) == message


@given(MESSAGE)
def test_every_message_is_read_as_it_was_written(
    message: Begin | Commit | Relation | TypeName | RowInsert,
) -> None:
    """Decoding undoes encoding, for all names, numbers and values."""
    assert decode(_encoded(message)) == message


@given(MESSAGE, st.data())
def test_a_message_cut_off_or_too_long_is_refused(
    message: Begin | Commit | Relation | TypeName | RowInsert, data: st.DataObject
) -> None:
    """No prefix of a message is taken for a message, nor one with bytes behind it."""
    whole = _encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PgoutputError):
        decode(whole[:cut])
    with pytest.raises(PgoutputError):
        decode(whole + b"\0")


@given(st.binary(max_size=60))
def test_junk_is_refused_or_passed_over(data: bytes) -> None:
    """Whatever the bytes are, there is a message or a PgoutputError."""
    with suppress(PgoutputError):
        decode(data)


@pytest.mark.parametrize("kind", "UDTOM")
def test_what_is_no_insert_is_passed_over(kind: str) -> None:
    """Updates, deletes, truncates, origins and logical messages are known, not read."""
    assert decode(kind.encode() + b"whatever") == PassedOver(kind)


def test_an_insert_needs_its_relation() -> None:
    """A row of an unknown relation, or with another number of columns, is refused."""
    relation = Relation(7, "public", "o", (Column("id", 23),))
    assert relation_of({7: relation}, RowInsert(7, (b"1",))) is relation
    with pytest.raises(PgoutputError):
        relation_of({7: relation}, RowInsert(8, (b"1",)))
    with pytest.raises(PgoutputError):
        relation_of({7: relation}, RowInsert(7, (b"1", b"2")))


@given(LSN)
def test_an_lsn_has_one_text(lsn: int) -> None:
    """The text that PostgreSQL shows is the number again."""
    assert lsn_of(lsn_text(lsn)) == lsn


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, b"t", True),
        (16, b"f", False),
        (17, b"\\x00ff", b"\x00\xff"),
        (17, b"\\x", b""),
        (20, b"-9223372036854775808", -(2**63)),
        (701, b"1.1", 1.1),
        (1700, b"1.50", Decimal("1.50")),
        (25, "é".encode(), "é"),
        (3802, b'{"a": 1}', '{"a": 1}'),
        (23, None, None),
    ],
)
def test_values_have_their_types(oid: int, text: bytes | None, value: object) -> None:
    """Numbers, booleans and bytes are such; everything else is the text that the server wrote."""
    found = value_of(oid, text)
    assert (found, type(found)) == (value, type(value))

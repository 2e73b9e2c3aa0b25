"""The remembered way of encoding and decoding is the plain way, for whatever records and bytes."""

from __future__ import annotations

from typing import Any

from halfbridge.serde.avro import HALF_METADATA, OP, Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import HalfMetadata, Op, OpKind, OpSource
from tests.kit.examples import assume, given, st
from tests.property import strategies as some

PLAIN_HALF: Codec[HalfMetadata] = Codec(HalfMetadata, ("half_metadata.v1",))
PLAIN_OP: Codec[Op] = Codec(Op, ("op.v1",))

_hex_ids = st.text("0123456789abcdef", min_size=32, max_size=32)
_ids = st.one_of(_hex_ids, _hex_ids, st.text(max_size=40))
_longs = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_000_003), st.integers(-(1 << 63), (1 << 63) - 1)
)
_ints = st.one_of(st.integers(-1, 2), st.integers(-(1 << 31), (1 << 31) - 1))
_words = st.one_of(st.sampled_from(("orders", "billing", "")), st.text(max_size=20))

halves = st.builds(
    HalfMetadata, _ids, _longs, _ints, _ints, _words, _words, _ints, _ints, _longs, _longs, _longs
)
ops = st.builds(
    Op,
    _ids,
    _longs,
    _longs,
    _ints,
    _words,
    st.sampled_from(OpKind),
    _ints,
    _ints,
    st.sampled_from(OpSource),
    _words,
    _words,
    _longs,
)
_damage = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from(("put", "cut", "insert")), st.integers(0, 255)),
    max_size=3,
)
_pairs = st.one_of(
    st.tuples(st.just(HALF_METADATA), st.just(PLAIN_HALF), halves),
    st.tuples(st.just(OP), st.just(PLAIN_OP), ops),
)


def _outcome(codec: Codec[Any], data: bytes) -> Any:
    try:
        return codec.decode(data)
    except DecodeError as error:
        return error.data


@some.PROFILE
@given(pair=_pairs)
def test_the_remembered_way_writes_the_plain_bytes(pair: tuple[Any, Any, Any]) -> None:
    """Byte for byte, at the first time and when the tail is known."""
    fast, plain, record = pair
    expected = plain.encode(record)
    assert fast.encode(record) == expected
    assert fast.encode(record) == expected
    assert fast.decode(expected) == plain.decode(expected) == record
    decoded = fast.decode(expected)
    assert [type(value) for value in decoded] == [type(value) for value in record]


@some.PROFILE
@given(pair=_pairs, damage=_damage)
def test_damaged_bytes_are_read_alike_or_refused_alike(
    pair: tuple[Any, Any, Any], damage: list[tuple[int, str, int]]
) -> None:
    """No byte sequence is read by one way and refused, or read otherwise, by the other."""
    fast, plain, record = pair
    data = bytearray(plain.encode(record))
    fast.decode(bytes(data))  # its tail is remembered
    for position, what, byte in damage:
        at = position % (len(data) or 1)
        if what == "cut":
            del data[at:]
        elif what == "insert":
            data[at:at] = bytes([byte])
        elif data:
            data[at] = byte
    assume(data)
    assert _outcome(fast, bytes(data)) == _outcome(plain, bytes(data))

"""Avro's longs: zigzag, then 7 bits a byte. Pure."""

from __future__ import annotations

_CONTINUE = 0x80  # set in each byte but the last
_LONG_BITS = 64  # of Avro's long


def write_long(value: int) -> bytes:
    """Return `value` as an Avro long: zigzag, then 7 bits a byte, low bits first."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= _CONTINUE:
        out.append(rest & 0x7F | _CONTINUE)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the Avro long at `at` and the position behind it.

    Raises:
        IndexError: the data ends before the long does.
        ValueError: more than 64 bits.
    """
    byte = data[at]
    raw = byte & 0x7F
    shift = 7
    while byte & _CONTINUE:
        if shift >= _LONG_BITS:
            raise ValueError("a long of more than 64 bits")
        at += 1
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw >> _LONG_BITS:
        raise ValueError("a long of more than 64 bits")
    return (raw >> 1) ^ -(raw & 1), at + 1

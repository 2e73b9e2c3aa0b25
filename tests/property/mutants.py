"""Damaged bytes, from valid ones and a seed: what a hostile or broken writer may send."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_STEPS_MAX = 4
_INSERT_BYTES_MAX = 12
_GROWTH_BYTES_MAX = 4096
# What parsers stumble over: the ends of the ranges, huge lengths, bytes that are not UTF-8.
_NASTY = (
    b"\x00",
    b"\xff",
    b"\x80" * 10,
    b"\xff" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xc3\x01",
    b"\xed\xa0\x80",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)


def mutant(draw: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return an element of `corpus` after up to four changes; now and then any bytes at all."""
    if draw.random() < 0.02:
        return draw.randbytes(draw.randrange(64))
    data = bytearray(draw.choice(corpus))
    for _ in range(draw.randrange(_STEPS_MAX + 1)):
        _CHANGES[draw.randrange(len(_CHANGES))](draw, data, corpus)
    return bytes(data[:_GROWTH_BYTES_MAX])


def _flip(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _overwrite(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    nasty = draw.choice(_NASTY)
    data[at : at + len(nasty)] = nasty


def _insert(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.randrange(_INSERT_BYTES_MAX))


def _cut(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    del data[at : at + draw.choice((1, 2, 8, len(data)))]


def _splice(draw: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = draw.choice(corpus)
    data[draw.randrange(len(data) + 1) :] = other[draw.randrange(len(other) + 1) :]


def _repeat(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    data[end:end] = data[begin:end]


_CHANGES = (_flip, _flip, _overwrite, _insert, _cut, _splice, _repeat)

"""A measured value carries its time and number and has the size asked for."""

from __future__ import annotations

import pytest

from halfbridge.bench.payload import make_keys, make_packer, unpack_head


@pytest.mark.parametrize("size", [16, 1024])
def test_round_trip(size: int) -> None:
    """Time and number come back, negative numbers too; the value has its size."""
    value = make_packer(size)(2**62, -7)

    assert unpack_head(value) == (2**62, -7)
    assert len(value) == size


def test_too_small() -> None:
    """A value without room for time and number is refused."""
    with pytest.raises(ValueError, match="at least 16"):
        make_packer(15)


def test_keys() -> None:
    """There are as many keys as asked for, or one null key."""
    assert make_keys(0) == [None]
    assert len(set(make_keys(10))) == 10

"""The value of a measured message: due time, number and filler. Pure.

The due time is monotonic and machine-wide (`time.monotonic_ns` on Linux), so that another process
can compute the message's age. Warm-up messages have negative numbers.
"""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

from halfbridge.bench.config import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = struct.Struct(">qq")
_SEED = 1  # the same payloads in each run

unpack_head: Callable[[bytes], tuple[int, int]] = _HEAD.unpack_from


def make_packer(size_bytes: int) -> Callable[[int, int], bytes]:
    """Return a function of (due_ns, number) that returns a value of `size_bytes`.

    The filler is not compressible, so that compression does not improve the result.

    Raises:
        ValueError: `size_bytes` is too small for time and number.
    """
    if size_bytes < HEAD_BYTES:
        raise ValueError(f"a measured message has at least {HEAD_BYTES} bytes")
    filler = random.Random(_SEED).randbytes(size_bytes - HEAD_BYTES)  # noqa: S311  # no secret
    pack = _HEAD.pack

    def make(due_ns: int, number: int) -> bytes:
        return pack(due_ns, number) + filler

    return make


def make_keys(count: int) -> list[bytes | None]:
    """Return the keys, which messages use in turn; one null key for a count of 0."""
    return [b"key-%d" % number for number in range(count)] or [None]

"""Whatever bytes come, the decoders read them or say what is wrong, and nothing else happens."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP, Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import HALF, parse_half
from halfbridge.serde.progress import Progress, ProgressError, parse_progress
from halfbridge.serde.records import (
    CheckRequest,
    DeadLetter,
    DeadReason,
    OpKind,
    OpSource,
    new_half,
    new_op,
)
from tests.property.mutants import mutant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED = int(os.environ.get("HALFBRIDGE_FUZZ_SEED") or random.SystemRandom().randrange(10**9))
FEW = 20_000
# In all: `make fuzz` shares them out among the decoders.
MANY = int(os.environ.get("HALFBRIDGE_FUZZ_INPUTS") or 1_000_000)

_ID = "018f3a5b7c9d7e0f8a1b2c3d4e5f6071"
_NOW_MS = 1_790_000_000_000
_RECORDS: dict[str, tuple[Codec[Any], Sequence[Any]]] = {
    "half metadata": (
        HALF_METADATA,
        [
            new_half(
                transaction_id=_ID,
                born_timestamp=_NOW_MS,
                producer_group="orders",
                real_topic="paid",
            ),
            new_half(
                transaction_id="kurz",
                born_timestamp=-1,
                resume_count=7,
                message_index=999,
                producer_group="g",
                real_topic="t",
                real_partition=63,
                check_times=14,
                immunity_ms=1 << 40,
                first_append_timestamp=_NOW_MS,
                origin_offset=1 << 50,
            ),
            new_half(
                transaction_id="",
                born_timestamp=0,
                message_index=-1,
                producer_group="",
                real_topic="",
                real_partition=0,
                immunity_ms=0,
                first_append_timestamp=0,
                origin_offset=0,
            ),
        ],
    ),
    "op": (
        OP,
        [
            new_op(
                transaction_id=_ID,
                timestamp=_NOW_MS,
                half_offset=17,
                producer_group="orders",
                kind=OpKind.COMMIT,
                message_count=3,
                source=OpSource.PRODUCER,
                actor="h:1",
            ),
            new_op(
                transaction_id="x",
                timestamp=0,
                half_offset=-1,
                resume_count=1,
                producer_group="g",
                kind=OpKind.DISCARD,
                message_count=-1,
                source=OpSource.CHECKER,
                actor="w",
                reason="age",
            ),
            new_op(
                transaction_id=_ID,
                timestamp=1,
                half_offset=1,
                producer_group="ö",
                kind=OpKind.UNKNOWN,
                message_count=-1,
                check_number=4,
                source=OpSource.CHECK,
                actor="",
                reason="r" * 300,
            ),
        ],
    ),
    "check request": (
        CHECK_REQUEST,
        [CheckRequest(_ID, _NOW_MS, 5, 1, 0, 0, "orders", "paid", -1, 3, 1, _NOW_MS, 7)],
    ),
    "dead letter": (
        DEAD_LETTER,
        [DeadLetter(DeadReason.AGE, "too old", 3, _NOW_MS, 9, "half", 2, 12)],
    ),
}
_PROGRESS = [Progress(5, 9, 12, 7, 8), Progress(0, 0, 0, 0, 0), Progress(1, 1 << 60, 3, 0, 2)]


def _or_refusal(call: Callable[..., Any], *given: Any) -> Any:
    """Return what `call` returns, or the one error with which it may refuse."""
    try:
        return call(*given)
    except (DecodeError, ProgressError) as error:
        return error


def _decoder(codec: Codec[Any]) -> Callable[[bytes], None]:
    """Return what decodes, and checks that whatever was read can be written and read again."""

    def decode(data: bytes) -> None:
        read = _or_refusal(codec.decode, data)
        if isinstance(read, DecodeError):
            assert str(read)
            assert read.data == data
        else:
            assert codec.decode(codec.encode(read)) == read

    return decode


def _read_half_headers(data: bytes) -> None:
    name = data[:3].decode("latin-1")
    for headers in ([(HALF, data)], [(name, data), (HALF, data)], [(HALF, data), (HALF, data)]):
        read = _or_refusal(parse_half, headers)
        if isinstance(read, DecodeError):
            assert str(read)
        else:
            assert read[0].message_index >= 0


def _read_progress(data: bytes) -> None:
    text = data.decode("utf-8", "replace")  # the client hands text over, whatever was committed
    for half, op in ((5, 9), (0, 0), (1, 1 << 60), (-1, 3)):
        read = _or_refusal(parse_progress, half, op, text)
        if isinstance(read, ProgressError):
            assert str(read)
        else:
            assert (read.half, read.op, read.metadata()) == (half, op, text)


_TARGETS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    **{
        name: (_decoder(codec), [codec.encode(each) for each in records])
        for name, (codec, records) in _RECORDS.items()
    },
    "half headers": (
        _read_half_headers,
        [HALF_METADATA.encode(each) for each in _RECORDS["half metadata"][1]],
    ),
    "progress": (_read_progress, [each.metadata().encode() for each in _PROGRESS]),
}


def _fuzz(target: str, count: int) -> None:
    print(f"HALFBRIDGE_FUZZ_SEED={SEED}")
    read, corpus = _TARGETS[target]
    draw = random.Random(f"{target}:{SEED}")
    for _ in range(count):
        data = mutant(draw, corpus)
        try:
            read(data)
        except Exception as error:
            raise AssertionError(f"{target}: {data.hex()}") from error


@pytest.mark.parametrize("target", _TARGETS)
def test_damaged_bytes(target: str) -> None:
    """A part of the long run, in every run."""
    _fuzz(target, FEW // len(_TARGETS))


@pytest.mark.long
@pytest.mark.parametrize("target", _TARGETS)
def test_many_damaged_bytes(target: str) -> None:
    """A million inputs, or HALFBRIDGE_FUZZ_INPUTS."""
    _fuzz(target, MANY // len(_TARGETS) + 1)

"""Records to bytes and back: Avro in single-object encoding.

Layout: marker C3 01, the writer schema's CRC-64-AVRO fingerprint (8 bytes, little-endian),
the Avro body. A reader finds the writer's schema by the fingerprint, without a registry.

fastavro reads and writes every shape of record. In front of it stands a memo that uses one
documented fact: an Avro record is the concatenation of its fields. Half and op records share
their tail (group, topic, kind, ...) with thousands of others, so the bytes of each tail are
encoded and decoded by fastavro once; per record only the id and one or two longs are left.
Measured in docs/benchmarks.md.
"""

from __future__ import annotations

import io
import json
from enum import Enum
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from serde.errors import DecodeError, UnknownSchemaError
from serde.records import CheckRequest, DeadLetter, HalfMetadata, Op, SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = b"\xc3\x01"
HEADER_BYTES = 10  # marker and fingerprint
# A tail is a few dozen bytes; more distinct ones than this means they do not repeat (one real
# topic per message, say), and then the memo is emptied rather than grown.
TAILS_MAX = 8192
_ID_CHARS = 32  # a UUIDv7 in hex; other ids take the long way
_ID_LENGTH = bytes([_ID_CHARS * 2])  # zigzag of 32, one byte
_ID_END = HEADER_BYTES + 1 + _ID_CHARS
# The first long is a time. In milliseconds it takes 6 bytes until 2039, and at high rates many
# records share it; the bytes delimit themselves, so a remembered run of 6 is the whole long.
_STAMP_END = _ID_END + 6
_ID_AND_STAMP = 2
_CONTINUE = 0x80
_LONG_BITS = 64

R = TypeVar("R", bound=tuple[Any, ...])


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


# Message indexes as they are written: a transaction seldom has more messages.
_INDEXES_MAX = 1_000
_INDEXES = tuple(write_long(index) for index in range(_INDEXES_MAX))


class Codec(Generic[R]):
    """Encodes and decodes one record type.

    Args:
        record: The named tuple; its fields equal the newest schema's, in order.
        schema_names: File stems in `schemas/`, oldest first; the last is written, all are read.
        memo_longs: How many longs (1 or 2, the first a time) follow the transaction id before
            the shared tail begins; None for records that are too rare to be worth a memo.
    """

    def __init__(
        self, record: type[R], schema_names: tuple[str, ...], *, memo_longs: int | None = None
    ) -> None:
        parsed = [_load_schema(name) for name in schema_names]
        self.schema = parsed[-1]
        self.fingerprint = schema_fingerprint(self.schema)
        self._record = record
        self._writers = {schema_fingerprint(schema): schema for schema in parsed}
        self._prefix = MARKER + self.fingerprint
        self._hot_prefix = self._prefix + _ID_LENGTH
        self._names: tuple[str, ...] = getattr(record, "_fields")  # noqa: B009 (no bound says it)
        self._make: Callable[[tuple[Any, ...]], R] = partial(tuple.__new__, record)
        hints = get_type_hints(record)
        self._enums = {
            name: hints[name]
            for name in self._names
            if isinstance(hints[name], type) and issubclass(hints[name], Enum)
        }
        self._memo_longs = memo_longs
        self._tail_bytes: dict[tuple[Any, ...], bytes] = {}
        self._tail_rows: dict[bytes, tuple[Any, ...]] = {}
        self._stamp_bytes: dict[int, bytes] = {}
        self._stamps: dict[bytes, int] = {}

    def encode(self, record: R) -> bytes:
        """Return `record` in single-object encoding.

        Raises:
            ValueError, TypeError: a field does not fit its type (a bug in the caller).
        """
        row: tuple[Any, ...] = record
        if self._memo_longs is None or len(row[0]) != _ID_CHARS or not row[0].isascii():
            return self._prefix + self._write(row)
        tail_at = 1 + self._memo_longs
        stamp = self._stamp_bytes.get(row[1])
        if stamp is None:
            stamp = write_long(row[1])
            _remember(self._stamp_bytes, row[1], stamp)
        lead: bytes = _ID_LENGTH + str(row[0]).encode() + stamp
        if tail_at > _ID_AND_STAMP:
            lead += write_long(row[2])
        tail = self._tail_bytes.get(row[tail_at:])
        if tail is None:
            tail = self._write(row)[len(lead) :]
            _remember(self._tail_bytes, row[tail_at:], tail)
        return self._prefix + lead + tail

    def decode(self, data: bytes) -> R:
        """Return the record in `data`.

        Raises:
            UnknownSchemaError: a newer writer; upgrade this reader.
            DecodeError: not what the schema says; `data` keeps the bytes.
        """
        if self._memo_longs is not None and data[: HEADER_BYTES + 1] == self._hot_prefix:
            record = self._decode_by_memo(data)
            if record is not None:
                return record
        return self._make(self._read(data))

    def _decode_by_memo(self, data: bytes) -> R | None:
        try:
            transaction_id = data[HEADER_BYTES + 1 : _ID_END].decode()
            first = self._stamps.get(data[_ID_END:_STAMP_END])
            at = _STAMP_END
            if first is None:
                first, at = read_long(data, _ID_END)
                if at == _STAMP_END:
                    _remember(self._stamps, data[_ID_END:at], first)
            if self._memo_longs == 1:
                lead: tuple[Any, ...] = (transaction_id, first)
            else:
                second, at = read_long(data, at)
                lead = (transaction_id, first, second)
        except (IndexError, ValueError):
            return None  # the long way says what is wrong
        tail = data[at:]
        row = self._tail_rows.get(tail)
        if row is None:
            whole = self._read(data)
            row = whole[len(lead) :]
            _remember(self._tail_rows, tail, row)
        return self._make(lead + row)

    def _write(self, row: tuple[Any, ...]) -> bytes:
        out = io.BytesIO()
        # strict: a missing field is an error, never a silent default.
        fastavro.schemaless_writer(
            out, self.schema, dict(zip(self._names, row, strict=True)), strict=True
        )
        return out.getvalue()

    def _read(self, data: bytes) -> tuple[Any, ...]:
        if data[:2] != MARKER or len(data) < HEADER_BYTES:
            raise DecodeError(f"{self._record.__name__}: not in single-object encoding", data)
        writer = self._writers.get(data[2:HEADER_BYTES])
        if writer is None:
            name = data[2:HEADER_BYTES].hex()
            raise UnknownSchemaError(
                f"{self._record.__name__}: unknown schema fingerprint {name}", data, name
            )
        body = io.BytesIO(data)
        body.seek(HEADER_BYTES)
        try:
            raw: Any = fastavro.schemaless_reader(body, writer, self.schema)
            row = tuple(self._field(name, raw[name]) for name in self._names)
        except Exception as error:
            # fastavro raises whatever its reader stumbles over (EOFError, IndexError,
            # UnicodeDecodeError, MemoryError on a forged length, ...).
            raise DecodeError(f"{self._record.__name__}: broken body: {error!r}", data) from error
        if body.read(1):
            raise DecodeError(f"{self._record.__name__}: bytes left behind the body", data)
        return row

    def _field(self, name: str, value: Any) -> Any:
        enum = self._enums.get(name)
        return value if enum is None else enum(value)


def half_metadata_series(first: HalfMetadata) -> Callable[[int], bytes]:
    """Return message index -> encoded RMQ_HALF, for messages that differ from `first` in it only.

    A tenth of what `HALF_METADATA.encode` costs: for whoever sends a transaction's messages in
    one go, from one moment to one real topic.

    Args:
        first: Of message 0, with a transaction id of 32 ASCII characters.

    Raises:
        ValueError: its message index is not 0; a bug in the caller.
    """
    if first.message_index:
        raise ValueError("the series begins with message 0")
    data = HALF_METADATA.encode(first)
    _, at = read_long(data, _ID_END)  # behind the birth
    _, at = read_long(data, at)  # behind the resume count
    head, tail = data[:at], data[at + 1 :]  # an index of 0 is one byte

    def encoded(index: int) -> bytes:
        return head + (_INDEXES[index] if index < _INDEXES_MAX else write_long(index)) + tail

    return encoded


def schema_fingerprint(schema: Any) -> bytes:
    """Return the 8-byte little-endian CRC-64-AVRO fingerprint of a parsed schema."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def schema_text(name: str) -> str:
    """Return the text of `schemas/<name>.avsc` (what Spark's from_avro takes)."""
    return resources.files("serde").joinpath(f"schemas/{name}.avsc").read_text("utf-8")


def _load_schema(name: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text(name)))


def _remember(memo: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memo) >= TAILS_MAX:
        memo.clear()
    memo[key] = value


HALF_METADATA: Codec[HalfMetadata] = Codec(HalfMetadata, ("half_metadata.v1",), memo_longs=1)
OP: Codec[Op] = Codec(Op, ("op.v1",), memo_longs=2)
CHECK_REQUEST: Codec[CheckRequest] = Codec(CheckRequest, ("check_request.v1",))
DEAD_LETTER: Codec[DeadLetter] = Codec(DeadLetter, ("dead_letter.v1",))
SINK_CONTEXT: Codec[SinkContext] = Codec(SinkContext, ("sink_context.v1",))

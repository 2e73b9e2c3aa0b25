"""Records to bytes and back: Avro in single-object encoding.

Layout: marker C3 01, the writer schema's CRC-64-AVRO fingerprint (8 bytes, little-endian), the Avro
body. A reader finds the writer's schema by the fingerprint, without a registry.

A memo in front of fastavro uses that an Avro record is the concatenation of its fields. Half and op
records share their tail (group, topic, kind, ...) with thousands of others, so fastavro handles
each tail once, and only the id and one or two longs are encoded for each record.
docs/evidence/benchmarks.md has the measurements.
"""

from __future__ import annotations

import io
import json
import sys
from enum import Enum
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.limits import METADATA_BYTES_MAX, OP_BYTES_MAX
from halfbridge.serde.records import (
    CheckRequest,
    DeadLetter,
    FenceContext,
    HalfMetadata,
    Op,
    SinkContext,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = b"\xc3\x01"
HEADER_BYTES = 10  # marker and fingerprint
# A tail is a few dozen bytes; more distinct ones than this means they do not repeat (one real
# topic per message, say), and then the memo is emptied rather than grown.
TAILS_MAX = 8192
# Bytes of the tails that one memo holds: 8,192 of 128 bytes. As text and with the objects around
# them they take at most nine times as much, so that the four memos of a process stay below 40 MB,
# whatever the names in a log are.
TAILS_BYTES_MAX = 1024 * 1024
# A longer tail is not remembered. Two names of Kafka's 249 characters, and the numbers, fit.
TAIL_BYTES_MAX = 512
_ID_CHARS = 32  # a UUIDv7 in hex; other ids take the long way
_ID_LENGTH = bytes([_ID_CHARS * 2])  # zigzag of 32, one byte
_ID_END = HEADER_BYTES + 1 + _ID_CHARS  # after the header, and the length of the id
# The first long is a time. In milliseconds it takes 6 bytes until 2039, and at high rates many
# records share it; the bytes delimit themselves, so a remembered run of 6 is the whole long.
_STAMP_END = _ID_END + 6
_ID_AND_STAMP = 2  # the fields in front of the remembered tail, where no second long is among them
_INTS = range(-(1 << 31), 1 << 31)
R = TypeVar("R", bound=tuple[Any, ...])
K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """A memo of encoded and decoded records, emptied when it would become too large."""

    size_bytes = 0

    def remember(self, key: K, value: V, size_bytes: int) -> None:
        """Hold `value`, which is `size_bytes` long when it is encoded, unless that is too long."""
        if size_bytes > TAIL_BYTES_MAX:
            return
        if len(self) >= TAILS_MAX or self.size_bytes + size_bytes > TAILS_BYTES_MAX:
            self.clear()
            self.size_bytes = 0
        self[key] = value
        self.size_bytes += size_bytes


# Message indexes as they are written: a transaction seldom has more messages.
_INDEXES_MAX = 1_000


def write_long(value: int) -> bytes:
    """Return `value` as an Avro long: zigzag, then 7 bits a byte, low bits first."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= _CONTINUE:
        out.append(rest & 0x7F | _CONTINUE)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_CONTINUE = 0x80  # set in each byte but the last
_INDEXES = tuple(write_long(index) for index in range(_INDEXES_MAX))


class Codec(Generic[R]):
    """Encodes and decodes one record type.

    Args:
        record: The named tuple; its fields equal the newest schema's, in order.
        schema_names: File stems in `schemas/`, oldest first; the last is written, all are read.
        memo_longs: How many longs (1 or 2, the first a time; no ints) follow the transaction id
            before the shared tail begins; None for records that are too rare to be worth a memo.
        bytes_max: Longest encoding that is decoded (halfbridge.serde.limits); None: any length.
    """

    def __init__(
        self,
        record: type[R],
        schema_names: tuple[str, ...],
        *,
        memo_longs: int | None = None,
        bytes_max: int | None = None,
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
        # fastavro reads a long where the schema says int. Avro libraries of other languages refuse
        # that, or read another number: no reader of the log may know more than the others.
        self._ints = [each["name"] for each in self.schema["fields"] if each["type"] == "int"]
        self._memo_longs = memo_longs
        self._bytes_max = sys.maxsize if bytes_max is None else bytes_max
        self._tail_bytes: Memo[tuple[Any, ...], bytes] = Memo()
        self._tail_rows: Memo[bytes, tuple[Any, ...]] = Memo()
        self._stamp_bytes: Memo[int, bytes] = Memo()
        self._stamps: Memo[bytes, int] = Memo()

    def encode(self, record: R) -> bytes:
        """Return `record` in single-object encoding. ValueError, TypeError: a bug in the caller."""
        row: tuple[Any, ...] = record
        if self._memo_longs is None or len(row[0]) != _ID_CHARS or not row[0].isascii():
            return self._prefix + self._write(row)
        tail_at = 1 + self._memo_longs
        stamp = self._stamp_bytes.get(row[1])
        if stamp is None:
            stamp = write_long(row[1])
            self._stamp_bytes.remember(row[1], stamp, len(stamp))
        lead: bytes = _ID_LENGTH + str(row[0]).encode() + stamp
        if tail_at > _ID_AND_STAMP:
            lead += write_long(row[2])
        tail = self._tail_bytes.get(row[tail_at:])
        if tail is None:
            tail = self._write(row)[len(lead) :]
            self._tail_bytes.remember(row[tail_at:], tail, len(tail))
        return self._prefix + lead + tail

    def decode(self, data: bytes) -> R:
        """Return the record in `data`.

        Raises:
            UnknownSchemaError: a newer writer; upgrade this reader.
            DecodeError: too long, or not valid by the schema; `data` keeps the bytes. The writer of
                the record is wrong.
        """
        if len(data) > self._bytes_max:
            raise DecodeError(
                f"{self._record.__name__}: {len(data)} bytes, at most {self._bytes_max}", data
            )
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
                    self._stamps.remember(data[_ID_END:at], first, at - _ID_END)
            if self._memo_longs == 1:
                lead: tuple[Any, ...] = (transaction_id, first)
            else:
                second, at = read_long(data, at)
                lead = (transaction_id, first, second)
        except (IndexError, ValueError):
            return None  # the slow path names the fault
        tail = data[at:]
        row = self._tail_rows.get(tail)
        if row is None:
            whole = self._read(data)
            row = whole[len(lead) :]
            self._tail_rows.remember(tail, row, len(tail))
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
            raise DecodeError(f"{self._record.__name__}: bytes after the body", data)
        if any(raw[name] not in _INTS for name in self._ints):
            raise DecodeError(f"{self._record.__name__}: an int of more than 32 bits", data)
        return row

    def _field(self, name: str, value: Any) -> Any:
        enum = self._enums.get(name)
        return value if enum is None else enum(value)


def half_metadata_series(first: HalfMetadata) -> Callable[[int], bytes]:
    """Return message index -> encoded RMQ_HALF, for messages that differ from `first` in it only.

    A tenth of the time of `HALF_METADATA.encode`, for messages sent in one go, from one moment to
    one real topic. The transaction id has 32 ASCII characters. Raises ValueError: its message index
    is not 0; a bug in the caller.
    """
    if first.message_index:
        raise ValueError("the series begins with message 0")
    data = HALF_METADATA.encode(first)
    _, at = read_long(data, _ID_END)  # after the birth
    _, at = read_long(data, at)  # after the resume count
    head, tail = data[:at], data[at + 1 :]  # an index of 0 is one byte

    def encoded(index: int) -> bytes:
        return head + (_INDEXES[index] if index < _INDEXES_MAX else write_long(index)) + tail

    return encoded


def schema_fingerprint(schema: Any) -> bytes:
    """Return the 8-byte little-endian CRC-64-AVRO fingerprint of a parsed schema."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def schema_text(name: str) -> str:
    """Return the text of `schemas/<name>.avsc` (what Spark's from_avro takes)."""
    return resources.files("halfbridge.serde").joinpath(f"schemas/{name}.avsc").read_text("utf-8")


def _load_schema(name: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text(name)))


HALF_METADATA: Codec[HalfMetadata] = Codec(
    HalfMetadata, ("half_metadata.v1",), memo_longs=1, bytes_max=METADATA_BYTES_MAX
)
OP: Codec[Op] = Codec(Op, ("op.v1",), memo_longs=2, bytes_max=OP_BYTES_MAX)
CHECK_REQUEST: Codec[CheckRequest] = Codec(CheckRequest, ("check_request.v1",))
DEAD_LETTER: Codec[DeadLetter] = Codec(DeadLetter, ("dead_letter.v1", "dead_letter.v2"))
FENCE_CONTEXT: Codec[FenceContext] = Codec(FenceContext, ("fence_context.v1",))
SINK_CONTEXT: Codec[SinkContext] = Codec(SinkContext, ("sink_context.v1",))
_LONG_BITS = 64  # of Avro's long


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the Avro long at `at` and the position after it.

    Raises IndexError, ValueError: damaged; the writer of the bytes is wrong.
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


# Bytes in UTF-8 of an operator's texts, in a mark and in its op: a name, and a sentence or a link.
# Together they are less than a fifth of OP_BYTES_MAX, so they do not crowd out the op's own fields.
ACTOR_BYTES_MAX = 256
REASON_BYTES_MAX = 512


class MarkAction(str, Enum):
    """What an operator did about a dead letter."""

    RESUMED = "RESUMED"
    REDELIVERED = "REDELIVERED"
    PURGED = "PURGED"


class DeadMark(NamedTuple):
    """Header RMQ_DEAD_MARK of a record in the dead-letter topic that is about a dead letter."""

    transaction_id: str
    timestamp: int
    action: MarkAction
    letter_offset: int
    resume_count: int
    actor: str
    reason: str


# The longest one has an id of 3,000 bytes (IDENTITY_BYTES_MAX) and both texts.
DEAD_MARK: Codec[DeadMark] = Codec(DeadMark, ("dead_mark.v1",), bytes_max=METADATA_BYTES_MAX)

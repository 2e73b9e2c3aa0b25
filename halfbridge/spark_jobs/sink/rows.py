"""Rows in the form of Spark's own Kafka sink: checks the schema, reads Arrow, computes the hash.

It also checks whether a real topic will accept a row in the form in which the daemon will write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, repeat
from struct import Struct
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa

from halfbridge.serde.headers import RESERVED, Headers, real_headers
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.record_size import bytes_alone, bytes_at_most
from halfbridge.serde.records import PARTITION_BY_KEY
from halfbridge.spark_jobs.sink.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row as SparkRow
    from pyspark.sql.types import StructType

    class _Header(TypedDict):
        key: str
        value: bytes | None


VALUE = "value"
KEY = "key"
TOPIC = "topic"
PARTITION = "partition"
HEADERS = "headers"
_HASH_BYTES = 16  # 128 bits: the sum tells two batches of rows apart
_HASH_MASK = (1 << 8 * _HASH_BYTES) - 1  # sums are taken modulo 2^128
_ABSENT = -1  # no length: an absent key differs from an empty one
_lengths = Struct("<iiiii").pack
_pair_lengths = Struct("<ii").pack
_BYTES_OR_TEXT = ("string", "binary")
_HEADERS_TYPE = "array<struct<key:string,value:binary>>"
# Types of each column, as in Spark's own sink.
_ALLOWED = {
    VALUE: _BYTES_OR_TEXT,
    KEY: _BYTES_OR_TEXT,
    TOPIC: ("string",),
    PARTITION: ("int",),
    HEADERS: (_HEADERS_TYPE,),
}
# The same of Arrow, where values alone do not tell it; a column of nulls has any.
_ARROW = {
    TOPIC: pa.string(),
    PARTITION: pa.int32(),
    HEADERS: pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
}
_RECORDS_MAX = 1_000  # rows of a batch: a tenth of Spark's own, for rows may have a megabyte
# Topic, partition (-1: by key), key, value, headers. A plain tuple: there is one for each row.
Row = tuple[str, int, "bytes | None", "bytes | None", Headers]


def check_schema(schema: StructType, *, topic: str | None) -> None:
    """Check that rows of `schema` can be sent; the error texts are those of Spark's own sink.

    Raises:
        RowError: a column is missing, unknown or of another type; the query must be changed.
    """
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    if VALUE not in types:
        raise RowError(f"required attribute '{VALUE}' not found; columns: {', '.join(types)}")
    if TOPIC not in types and topic is None:
        raise RowError(
            f"topic option required when no '{TOPIC}' attribute is present. Use the topic option"
            " for setting a topic."
        )
    for name, kind in types.items():
        allowed = _ALLOWED.get(name)
        if allowed is None:
            raise RowError(
                f"column {name} is none of {', '.join(_ALLOWED)}: select the columns to send, for"
                " example to_json(struct('*')) AS value"
            )
        if kind not in allowed:
            raise RowError(
                f"{name} attribute unsupported type {kind}; {name} must be a {' or '.join(allowed)}"
            )


def batches_of(records: Iterator[SparkRow]) -> Iterator[pa.RecordBatch]:
    """Yield PySpark's rows as Arrow batches, for `rows_of`. Lazy: one batch is in memory."""
    while chunk := list(islice(records, _RECORDS_MAX)):
        names = chunk[0].__fields__
        columns = zip(*chunk, strict=True)
        arrays = [
            pa.array(column, _ARROW.get(name)) for name, column in zip(names, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


def rows_of(batch: pa.RecordBatch, *, topic: str | None) -> Iterator[Row]:
    """Yield the rows of an Arrow batch; the option `topic` overrides the column.

    Raises:
        RowError: a row has no topic, a partition below 0 or a reserved header; the query must not
            make such rows.
    """
    names = batch.schema.names
    columns = {name: batch.column(at) for at, name in enumerate(names)}
    values = _bytes(columns[VALUE])
    keys = _bytes(columns[KEY]) if KEY in columns else repeat(None)
    topics = repeat(topic) if topic is not None else columns[TOPIC].to_pylist()
    partitions = columns[PARTITION].to_pylist() if PARTITION in columns else repeat(None)
    headers = columns[HEADERS].to_pylist() if HEADERS in columns else repeat(None)
    for given, partition, key, value, pairs in zip(  # noqa: B905 (endless ones are meant)
        topics, partitions, keys, values, headers
    ):
        if not given:
            raise RowError(
                f"null topic present in the data. Use the {TOPIC} option for setting a topic."
            )
        yield (
            given,
            PARTITION_BY_KEY if partition is None else _checked_partition(partition),
            key,
            value,
            _checked_headers(pairs) if pairs else [],
        )


class ContentHash:
    """Hash of rows that does not depend on their order: the sum of row hashes modulo 2^128.

    The hash is equal for equal rows in any order and division into tasks. So it distinguishes a
    batch that Spark runs again after a crash from a batch with other rows.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._topics: dict[str, bytes] = {}

    def add(self, row: Row) -> None:
        """Add a row."""
        topic, partition, key, value, headers = row
        name = self._topics.get(topic)
        if name is None:
            name = self._topics[topic] = topic.encode()
        lengths = _lengths(
            len(name),
            partition,
            _ABSENT if key is None else len(key),
            _ABSENT if value is None else len(value),
            len(headers),
        )
        whole = b"".join((lengths, name, key or b"", value or b""))
        hashed = blake2b(whole, digest_size=_HASH_BYTES)
        for header, content in headers:
            text = header.encode()
            hashed.update(_pair_lengths(len(text), _ABSENT if content is None else len(content)))
            hashed.update(text)
            hashed.update(content or b"")
        self._sum += int.from_bytes(hashed.digest(), "little")

    def add_sum(self, other: int) -> None:
        """Add the sum of another hash."""
        self._sum += other

    def sum(self) -> int:
        """Return the sum so far."""
        return self._sum & _HASH_MASK

    def hex(self) -> str:
        """Return the hash in hexadecimal, as manifests have it."""
        return f"{self.sum():0{2 * _HASH_BYTES}x}"


def _bytes(column: pa.Array) -> list[bytes | None]:
    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values: list[bytes | None] = column.cast(kind).to_pylist()
    return values


def _checked_partition(partition: int) -> int:
    if partition < 0:
        raise RowError(f"partition {partition} is below 0; leave it null to go by the key")
    return partition


def _checked_headers(pairs: list[_Header | None]) -> Headers:
    if None in pairs:
        raise RowError("a header that is null cannot be sent; leave it out: array_compact(headers)")
    headers = [(pair["key"], pair["value"]) for pair in pairs if pair is not None]
    for name, _ in headers:
        if not name:
            raise RowError("a header without a name cannot be sent")
        if name in RESERVED:
            raise RowError(f"header name {name} is reserved; choose another")
    return headers


# If a topic's settings cannot be read: the highest max.message.bytes that Kafka allows.
ANY_BYTES = (1 << 31) - 1
# The headers that the daemon adds: transaction id, birth and index. The largest index is assumed,
# because a row's index is not known yet when its size is checked.
_ADDED = real_headers([], "0" * 32, 10**12, TRANSACTION_MESSAGES_MAX - 1)
# Most bytes of a record besides key, value and the user's headers.
FRAME_BYTES_MAX = bytes_at_most(None, None, _ADDED)


@dataclass(frozen=True, slots=True)
class RealTopic:
    """The limits of a real topic."""

    record_bytes_max: int  # the topic's max.message.bytes; ANY_BYTES if that cannot be read
    is_compacted: bool  # the topic is compacted, and refuses null keys

    def refusal(self, row: Row) -> str:
        """Return why the topic would refuse a row; empty if it would not."""
        topic, _, key, _, _ = row
        if key is None and self.is_compacted:
            return f"topic {topic} is compacted and accepts no row without a key"
        size = delivered_bytes(row)
        if size > self.record_bytes_max:
            return (
                f"a row is {size} bytes as a record of topic {topic}, whose max.message.bytes is"
                f" {self.record_bytes_max}: make such rows smaller, or raise that setting"
            )
        return ""


def delivered_bytes(row: Row) -> int:
    """Return an upper bound of a row's size as an uncompressed batch of one."""
    _, _, key, value, headers = row
    return bytes_alone(key, value, [*headers, *_ADDED])

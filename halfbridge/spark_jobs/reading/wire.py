"""Kafka's records as columns: headers, and values in single-object encoding. All JVM-side.

A record's bytes are what serde writes; a row that cannot be read keeps its place with a reason,
as the daemon keeps it with a dead letter. No Python function ever sees a row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from halfbridge.serde.avro import HEADER_BYTES, MARKER, schema_fingerprint, schema_text
from halfbridge.serde.headers import BORN_TIMESTAMP, MESSAGE_INDEX, TRANSACTION_ID
from halfbridge.spark_jobs.capabilities import is_text, valid_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# File stems of the schemas, oldest first, as serde's codecs have them.
HALF_SCHEMAS = ("half_metadata.v1",)
OP_SCHEMAS = ("op.v1",)
DEAD_SCHEMAS = ("dead_letter.v1", "dead_letter.v2")
_TO_THE_END = 2**31 - 1  # the largest length of Spark's substring
_BORN_MS_MAX = 253_402_300_799_999  # the end of the year 9999
# Why a record cannot be read.
MISSING = "missing"
TOO_LONG = "longer than the protocol allows"
NOT_OURS = "not in single-object encoding"
UNKNOWN_SCHEMA = "unknown schema"
BROKEN = "broken body"


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes in single-object encoding, and the schemas that they may have."""

    data: Column
    schemas: tuple[str, ...]  # file stems of the schemas that are known, oldest first
    # Longest encoding that is read (halfbridge.serde.limits); None: any length.
    bytes_max: int | None = None

    def decoded(self) -> Column:
        """Return the record as a struct of the newest schema; null, or null fields: unreadable."""
        options = {"mode": "PERMISSIVE", "avroSchema": schema_text(self.schemas[-1])}
        first, *others = (
            (self._is_of(stem), from_avro(self._body(), schema_text(stem), options))
            for stem in self.schemas
        )
        return reduce(lambda made, each: made.when(*each), others, F.when(*first))

    def unread(self, decoded: Column, required: str) -> Column:
        """Return why the record cannot be read; null when it can.

        `decoded` is the column that `decoded()` became, by name: it must not be computed twice.
        Every record has the field `required`.
        """
        newest = self.schemas[-1]
        # Java's decoder ignores bytes after the body, and cuts an int of more than
        # 32 bits down to another number; the daemon refuses both.
        rewritten = to_avro(decoded, schema_text(newest))
        is_other = self._is_of(newest) & (rewritten != self._body())
        fields = json.loads(schema_text(newest))["fields"]
        texts = [decoded[each["name"]] for each in fields if each["type"] == "string"]
        are_text = reduce(and_, map(is_text, texts))
        is_known = reduce(or_, map(self._is_of, self.schemas))
        marked = F.substring(self.data, 1, len(MARKER)) == F.lit(MARKER)
        long_enough = F.length(self.data) >= HEADER_BYTES
        limit = _TO_THE_END if self.bytes_max is None else self.bytes_max
        return (
            F.when(self.data.isNull(), MISSING)
            .when(F.length(self.data) > limit, TOO_LONG)
            .when(~(marked & long_enough), NOT_OURS)
            .when(~is_known, UNKNOWN_SCHEMA)
            .when(decoded[required].isNull() | ~are_text, BROKEN)
            .when(is_other, BROKEN)
        )

    def _is_of(self, stem: str) -> Column:
        prefix = MARKER + schema_fingerprint(json.loads(schema_text(stem)))
        return F.substring(self.data, 1, HEADER_BYTES) == F.lit(prefix)

    def _body(self) -> Column:
        return F.substring(self.data, HEADER_BYTES + 1, _TO_THE_END)


# No lambda: Spark interprets those, and a plan that holds one is not compiled as a whole.
def last_header(headers: Column, name: str) -> Column:
    """Return the value of the last header of that name; null when there is none."""
    from_end = F.array_position(F.reverse(headers["key"]), name)
    return F.try_element_at(headers, -F.nullif(from_end, F.lit(0)).cast("int"))["value"]


def first_header(headers: Column, name: str) -> Column:
    """Return the value of the first header of that name; null when there is none."""
    place = F.array_position(headers["key"], name)
    return F.try_element_at(headers, F.nullif(place, F.lit(0)).cast("int"))["value"]


def without(headers: Column, *names: str) -> Column:
    """Return the headers but those of these names; null for none."""
    return F.filter(headers, lambda header: ~header["key"].isin(*names))


def header_map(headers: Column) -> Column:
    """Return the headers as a map; of headers with the same name the last one. Null for none.

    Give a column by its name: it is computed again for each header.
    """
    names = headers["key"]
    last = F.filter(
        headers,
        lambda header, at: ~F.array_contains(F.slice(names, at + 2, F.size(names)), header["key"]),
    )
    return F.map_from_entries(last)


def content_hash(
    *, topic: Column, key: Column, value: Column, headers: Column, born: Column
) -> Column:
    """Return 64 bits over all that must arrive unchanged.

    xxhash64 passes over nulls, so that each null adds its position: a null value and an
    empty one are different things.
    """
    each = F.transform(
        headers, lambda header: F.struct(header["key"], header["value"].isNull(), header["value"])
    )
    return F.xxhash64(topic, key.isNull(), key, value.isNull(), value, born, each)


def with_identity(records: DataFrame) -> DataFrame:
    """Return rows of a real topic with transaction id and birth, from the daemon's headers.

    Returns:
        The columns of `records`, then transaction_id string (null: the record is of another
        producer), born_timestamp timestamp (null: none, or the client's value is out of range).
    """
    # Named columns, so that each header is looked up once, however often its value is used.
    named = records.withColumns(
        {
            "transaction_id": header_text(TRANSACTION_ID),
            "born_text": header_text(BORN_TIMESTAMP),
        }
    ).withColumn("born_ms", F.expr("try_cast(born_text AS BIGINT)"))
    born_ms = F.col("born_ms")
    born = F.when(born_ms.between(0, _BORN_MS_MAX), F.timestamp_millis(born_ms))
    return named.select(*records.columns, "transaction_id", born.alias("born_timestamp"))


# As serde.headers.real_identity reads an index. Spark runs Java's regular expressions: their `$`
# also matches before a newline at the end, `\z` does not.
_INDEX = r"^[1-9][0-9]{0,9}\z"


def with_message_index(records: DataFrame) -> DataFrame:
    """Return rows of a real topic with the index of each message in its transaction.

    Returns:
        The columns of `records`, then message_index int (0 without the header; null: the header
        is not the daemon's). It has no meaning in a record of another producer.
    """
    headers = F.col("headers")
    named = records.withColumns(
        {
            "index_text": last_header(headers, MESSAGE_INDEX).cast("string"),
            "has_index": F.array_contains(headers["key"], MESSAGE_INDEX),
        }
    )
    index = F.when(F.col("has_index").isNull() | ~F.col("has_index"), 0).when(
        F.col("index_text").rlike(_INDEX), F.expr("try_cast(index_text AS INT)")
    )
    return named.select(*records.columns, index.alias("message_index"))


def header_text(name: str) -> Column:
    """Return the last header of that name as text; null when absent, empty or not UTF-8.

    Kafka allows a name twice. The daemon appends its headers to the user's, so the last is its.
    """
    last = last_header(F.col("headers"), name)
    return F.nullif(valid_text(last.cast("string")), F.lit(""))

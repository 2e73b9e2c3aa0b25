"""Avro payloads with schemas that the user gives: finds the schema of a value, and decodes it.

Two frames are known. Single-object encoding: `C3 01`, the schema's CRC-64-AVRO fingerprint (8
bytes, little-endian), the body. Confluent's: `00`, the schema's id (4 bytes, big-endian), the
body. All of it is decoded by the JVM. Values that cannot be decoded are marked, never dropped.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
from fastavro.schema import SchemaParseException
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from halfbridge.serde.avro import HEADER_BYTES, MARKER, schema_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

NOT_FRAMED = "no schema named: neither Avro single-object encoding nor Confluent's frame"
UNKNOWN_SCHEMA = "unknown schema "
BROKEN_BODY = "cannot be decoded with schema "

_CONFLUENT_MARKER = b"\x00"
_CONFLUENT_HEADER_BYTES = 5  # a magic byte 0 and four bytes of schema id
_ID_MAX = (1 << 32) - 1  # four bytes without a sign
_GIVEN = re.compile(r"(?:(?P<id>\d{1,10})=)?(?P<path>.+)", re.DOTALL)
PAYLOAD = "payload"
# What `with_payload` adds to the columns of the records.
DECODED = (
    "schema_name",  # string; null: the value names none
    PAYLOAD,  # struct; null: no value, or quarantined
    "quarantine_reason",  # string; null: all is well
)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """One schema with which values may have been written."""

    name: str  # how rows name it: `avro:<fingerprint in hex>` or `confluent:<id>`
    text: str  # the schema as JSON


def load_schema(given: str) -> WriterSchema:
    """Return the schema of `FILE` (single-object encoding) or `ID=FILE` (Confluent's frame).

    Raises:
        ValueError: the file cannot be read, or holds no Avro record schema; the user corrects it.
    """
    match = _GIVEN.fullmatch(given)
    if match is None:
        raise ValueError("an empty --schema: give FILE or ID=FILE")
    path = Path(match["path"])
    try:
        text = path.read_text(encoding="utf-8")
        schema = json.loads(text)
        fingerprint = schema_fingerprint(fastavro.parse_schema(schema))
    except (OSError, ValueError, KeyError, TypeError, SchemaParseException) as error:
        raise ValueError(f"{path} holds no Avro schema that can be read: {error}") from error
    # fastavro does without fields, Spark does not.
    if not isinstance(schema, dict) or schema.get("type") != "record" or "fields" not in schema:
        raise ValueError(f"{path} holds no schema of a record")
    if match["id"] is None:
        return WriterSchema(f"avro:{fingerprint.hex()}", text)
    if int(match["id"]) > _ID_MAX:
        raise ValueError(f"{match['id']} is no schema id of Confluent's: they have 32 bits")
    return WriterSchema(f"confluent:{int(match['id'])}", text)


def with_payload(records: DataFrame, schemas: Sequence[WriterSchema]) -> DataFrame:
    """Return the records, each with its value decoded, or with the reason why it is not.

    Values come out as the last of the schemas says (Avro's schema resolution), so give the newest
    one last.

    Returns:
        All columns of `records`, then DECODED. A null value is a record like any other: a tombstone
        has no schema.
    """
    named = records.withColumn("schema_name", schema_name(F.col("value")))
    decoded = named.withColumn(PAYLOAD, decoded_by(map(_branch, schemas), schemas[-1].text))
    known = [schema.name for schema in schemas]
    name = F.col("schema_name")
    reason = (
        F.when(F.col("value").isNull(), F.lit(None).cast("string"))
        .when(name.isNull(), F.lit(NOT_FRAMED))
        .when(~name.isin(known), F.concat(F.lit(UNKNOWN_SCHEMA), name))
        .when(F.col(PAYLOAD).isNull(), F.concat(F.lit(BROKEN_BODY), name))
    )
    return decoded.withColumn("quarantine_reason", reason).select(*records.columns, *DECODED)


def schema_name(value: Column) -> Column:
    """Return the name of the schema that a framed value names; null when it is not framed."""
    single = (F.substring(value, 1, 2) == F.lit(MARKER)) & (F.length(value) >= HEADER_BYTES)
    confluent = (F.substring(value, 1, 1) == F.lit(_CONFLUENT_MARKER)) & (
        F.length(value) >= _CONFLUENT_HEADER_BYTES
    )
    fingerprint = F.lower(F.hex(F.substring(value, 3, HEADER_BYTES - 2)))
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
    return F.when(single, F.concat(F.lit("avro:"), fingerprint)).when(
        confluent, F.concat(F.lit("confluent:"), number)
    )


def _wrapped(text: str) -> str:
    """Return a schema of the same bytes with one field, which is null when decoding fails.

    For a broken body Spark gives a struct of nulls, which a record of nulls is too. An Avro
    record is the concatenation of its fields, so a record around it adds no byte.
    """
    field = {"name": PAYLOAD, "type": json.loads(text)}
    return json.dumps({"type": "record", "name": "HalfbridgeFrame", "fields": [field]})


def decoded_by(branches: Iterable[tuple[Column, Column, str]], reader: str) -> Column:
    """Return the payload of the first branch whose condition holds.

    A branch is a condition, the encoded bytes, and the text of their schema. `reader` is the text
    of the schema that the payload has. Null: no condition holds, or decoding fails.
    """
    options = {"mode": "PERMISSIVE", "avroSchema": _wrapped(reader)}
    first, *others = (
        (condition, from_avro(body, _wrapped(text), options)[PAYLOAD])
        for condition, body, text in branches
    )
    return reduce(lambda made, each: made.when(*each), others, F.when(*first))


def _branch(schema: WriterSchema) -> tuple[Column, Column, str]:
    is_single = schema.name.startswith("avro:")
    skip = HEADER_BYTES if is_single else _CONFLUENT_HEADER_BYTES
    value = F.col("value")
    body = value.substr(F.lit(skip + 1), F.length(value) - F.lit(skip))
    return F.col("schema_name") == F.lit(schema.name), body, schema.text

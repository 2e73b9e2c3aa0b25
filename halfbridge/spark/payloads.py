"""Decodes the values of messages into columns, by a given schema or by a schema registry.

    from halfbridge.spark import RegistryPayload, read_messages

    orders = read_messages(
        spark,
        bootstrap_servers="localhost:9092",
        topics="orders",
        payload=RegistryPayload("http://localhost:8081"),
    )
    orders.select("payload.*", "payload_error").show()

Spark's from_avro and from_json decode, in the JVM, and Protobuf's Python package, on the executors.
A registry is asked by this process, while the frame is made. What cannot be decoded keeps its row,
with a reason: no query stops.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from halfbridge.kafka.schema_registry import HEAD, NO_PROTOBUF, SchemaRegistry
from halfbridge.spark_jobs.capabilities import is_text
from halfbridge.spark_jobs.reading.json_schema import spark_type
from halfbridge.spark_jobs.reading.schemas import PAYLOAD, decoded_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from halfbridge.spark.protobuf import ProtobufValues

ERROR = "payload_error"
# Why a value has no payload.
NOT_FRAMED = "not in a schema registry's format, which begins with a zero byte and a schema id"
UNDECODED = "cannot be decoded with "
_GIVEN = "the given schema"
_AVRO, _JSON, _PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_TO_THE_END = 2**31 - 1  # the largest length of Spark's substring
# Columns while values are decoded: from_json's result, and in it the text that is no JSON.
_PARSED, _CORRUPT = "halfbridge_parsed", "halfbridge_corrupt"
_JSON_OPTIONS = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}


@dataclass(frozen=True, slots=True)
class AvroPayload:
    """Values in Avro, all written with one schema.

    Attributes:
        schema: The schema as JSON.
        framed: A zero byte and a schema id come first, as serializers of a registry write them;
            the id is not looked at.
    """

    schema: str
    framed: bool = False


@dataclass(frozen=True, slots=True)
class JsonPayload:
    """Values in JSON, each of them one object.

    Attributes:
        columns: What to take of it, as Spark's DDL (`"id BIGINT, item STRING"`) or as a type. Other
            fields are left out; those that are missing are null.
        framed: As of `AvroPayload`.
    """

    columns: str | StructType
    framed: bool = False


@dataclass(frozen=True, slots=True)
class ProtobufPayload:
    """Values in Protobuf, all of them one message.

    Attributes:
        descriptors: A FileDescriptorSet, as `protoc --include_imports -o FILE` writes it.
        message: The message's full name, such as `shop.v1.Order`.
        framed: As of `AvroPayload`; after the id come the indexes of the message in its file, the
            last one of `descriptors`.
    """

    descriptors: bytes = field(repr=False)
    message: str
    framed: bool = False


@dataclass(frozen=True, slots=True)
class RegistryPayload:
    """Values written with schemas of a registry (Confluent's wire format).

    Attributes:
        url: The registry, `http://HOST:PORT`; a user and a password in it are sent to it.
        subject: Its versions are what values may be written with, and the last one is what columns
            have. Empty: the topic's name and `-value`.
        message: With Protobuf, the full name of the message to take; values with others are errors.
            Empty: the first message of the last version.
    """

    url: str = field(repr=False)  # it may have a password
    subject: str = ""
    message: str = ""


Payload: TypeAlias = AvroPayload | JsonPayload | ProtobufPayload | RegistryPayload


@dataclass(frozen=True, slots=True)
class _Schemas:
    """What values are written with.

    Attributes:
        decode: Adds the column payload, of a column with the bytes after the schema's id.
        known: Ids with which values may be written; empty: the id is not looked at.
    """

    decode: Callable[[DataFrame, Column], DataFrame]
    framed: bool
    known: Collection[int] = ()
    subject: str = ""


def decode_payload(
    frame: DataFrame, payload: Payload, *, topics: Collection[str] = ()
) -> DataFrame:
    """Return the rows of `frame`, each with its `value` decoded.

    Args:
        frame: Any rows with a binary column `value`, of a batch or a stream.
        payload: How values are written. A registry is asked now: values with schemas that are added
            later are errors until the frame is made again.
        topics: Where the values come from: one topic names the subject, if `payload` names none.

    Returns:
        All columns of `frame`, then payload, which has the schema's type, and payload_error string,
        which says why payload is null. Both are null for a null value.

    Raises:
        ValueError: the registry has no such subject, its last schema cannot be used, or no subject
            is named; the caller corrects it. A schema that Spark cannot read is Spark's error.
        RetriableError: the registry does not answer; call again later.
    """
    schemas = _schemas(payload, topics)
    kept = [each for each in frame.columns if each not in (PAYLOAD, ERROR)]
    decoded = schemas.decode(frame, _body(schemas))
    return decoded.withColumn(ERROR, _error(schemas)).select(*kept, PAYLOAD, ERROR)


def _schemas(payload: Payload, topics: Collection[str]) -> _Schemas:
    match payload:
        case AvroPayload():
            return _Schemas(partial(_with_avro, reader=payload.schema, writers={}), payload.framed)
        case JsonPayload():
            return _Schemas(partial(_with_json, reader=payload.columns), payload.framed)
        case ProtobufPayload():
            given = _protobuf().given(payload.descriptors, payload.message, framed=payload.framed)
            return _Schemas(partial(_with_protobuf, values=given), payload.framed)
    if not payload.subject and len(topics) != 1:
        raise ValueError("name the subject of RegistryPayload: values are not of one topic")
    return _registered(payload, payload.subject or f"{next(iter(topics))}-value")


def _registered(payload: RegistryPayload, subject: str) -> _Schemas:
    registry = SchemaRegistry(payload.url)
    versions = registry.versions(subject)
    if not versions:
        raise ValueError(f"the schema registry has no subject {subject}")
    last = versions[-1]
    kind, text = last.get("schemaType", _AVRO), str(last["schema"])
    of_kind = [each for each in versions if each.get("schemaType", _AVRO) == kind]
    if kind == _PROTOBUF:
        numbers = [int(each["id"]) for each in of_kind]
        try:
            found = _protobuf().registered(registry, numbers, payload.message)
        except ValueError as error:
            raise ValueError(f"the last schema of subject {subject}: {error}") from error
        decode = partial(_with_protobuf, values=found)
        return _Schemas(decode, framed=True, known=found.fronts, subject=subject)
    usable = {
        int(each["id"]): str(each["schema"]) for each in of_kind if not each.get("references")
    }
    if kind not in (_AVRO, _JSON) or last["id"] not in usable:
        what = "refers to other schemas" if kind in (_AVRO, _JSON) else f"is {kind}"
        raise ValueError(
            f"the last schema of subject {subject} {what}: read without a payload, and decode the"
            " column value with Spark's function for it"
        )
    if kind == _AVRO:
        decode = partial(_with_avro, reader=text, writers=usable)
    else:
        decode = partial(_with_json, reader=spark_type(json.loads(text)), known=usable)
    return _Schemas(decode, framed=True, known=usable, subject=subject)


def _with_avro(
    frame: DataFrame, body: Column, *, reader: str, writers: Mapping[int, str]
) -> DataFrame:
    branches = [(_schema_id() == F.lit(number), body, text) for number, text in writers.items()]
    is_any = F.lit(col=True)
    return frame.withColumn(PAYLOAD, decoded_by(branches or [(is_any, body, reader)], reader))


def _with_json(
    frame: DataFrame, body: Column, *, reader: str | DataType, known: Collection[int] = ()
) -> DataFrame:
    """Return the rows with their JSON.

    from_json takes the beginning of `{"a": 1} {"b": 2}` for the whole. A text is exactly one value
    if it is one in an object and one in an array: it closes neither, and has no comma outside.
    """
    text = body.cast("string")
    in_object = F.concat(F.lit(f'{{"{PAYLOAD}":'), text, F.lit("}"))
    in_array = F.concat(F.lit("["), text, F.lit("]"))
    parsed = F.from_json(in_object, _parsed_type(reader), _JSON_OPTIONS)
    is_one = is_text(text) & (F.json_array_length(in_array) == 1)
    is_whole = F.col(_PARSED)[_CORRUPT].isNull() & is_one & _is_known(known)
    return frame.withColumn(_PARSED, parsed).withColumn(
        PAYLOAD, F.when(is_whole, F.col(_PARSED)[PAYLOAD])
    )


def _parsed_type(reader: str | DataType) -> str | StructType:
    if isinstance(reader, str):
        return f"{PAYLOAD} STRUCT<{reader}>, {_CORRUPT} STRING"
    return StructType([StructField(PAYLOAD, reader), StructField(_CORRUPT, StringType())])


def _protobuf() -> type[ProtobufValues]:
    try:
        from halfbridge.spark.protobuf import ProtobufValues  # noqa: PLC0415  (not in every environment)
    except ImportError as error:
        raise ValueError(NO_PROTOBUF) from error
    return ProtobufValues


def _with_protobuf(frame: DataFrame, body: Column, *, values: ProtobufValues) -> DataFrame:
    return frame.withColumn(PAYLOAD, values.decoded(_schema_id(), body))


def _error(schemas: _Schemas) -> Column:
    value, number = F.col("value"), _schema_id().cast("string")
    error = F.when(value.isNull(), F.lit(None).cast("string"))
    if schemas.framed:
        error = error.when(~_is_framed(), NOT_FRAMED)
    name: Column = F.lit(_GIVEN)
    if schemas.known:
        name = F.concat(F.lit("schema "), number)
        unknown = F.concat(name, F.lit(f" is none of subject {schemas.subject} that is known"))
        error = error.when(~_is_known(schemas.known), unknown)
    return error.when(F.col(PAYLOAD).isNull(), F.concat(F.lit(UNDECODED), name))


def _body(schemas: _Schemas) -> Column:
    value = F.col("value")
    if not schemas.framed:
        return value
    return F.when(_is_framed(), F.substring(value, HEAD.size + 1, _TO_THE_END))


def _is_known(known: Collection[int]) -> Column:
    return _schema_id().isin(*known) if known else F.lit(col=True)


def _is_framed() -> Column:
    value = F.col("value")
    return (F.substring(value, 1, 1) == F.lit(b"\x00")) & (F.length(value) >= HEAD.size)


def _schema_id() -> Column:
    return F.conv(F.hex(F.substring(F.col("value"), 2, 4)), 16, 10).cast("bigint")

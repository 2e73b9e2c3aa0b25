"""Protobuf messages as Spark's rows, in Python on the executors, which need the package protobuf.

Spark's from_protobuf is in a jar that few sessions have, and gives a row of nulls for a message
that is broken.

| Protobuf | Spark |
|---|---|
| int32 and its like; int64; uint32; uint64 | int; bigint; bigint; decimal(20,0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: the name of the value, or its number where the schema has no name for it |
| google.protobuf.Timestamp | timestamp |
| other messages, maps, repeated fields | struct, map, array |

A field that is not there is its default value, and null where Protobuf tells the two apart.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timezone
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from halfbridge.kafka.protobuf_schemas import (
    FIRST_MESSAGE,
    chosen_message,
    indexes_of,
    pool_of,
    protobuf_schema,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.timestamp_pb2 import Timestamp
    from pyspark.sql import Column

    from halfbridge.kafka.schema_registry import SchemaRegistry

_PLAIN: Mapping[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),  # the largest has 20 digits
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_ANY_ID = -1
_SCHEMAS_MAX = 16  # that a Python worker keeps parsed: a query has one or two


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """What values that are one message of Protobuf are decoded with.

    Attributes:
        descriptors: A FileDescriptorSet whose files come after those that they import.
        message: The message's full name.
        fronts: By schema id, what may be in front of the message; _ANY_ID: whatever the id is.
    """

    descriptors: bytes
    message: str
    fronts: Mapping[int, tuple[bytes, ...]]

    @classmethod
    def given(cls, descriptors: bytes, message: str, *, framed: bool) -> ProtobufValues:
        """Return what decodes values without a registry; `framed`: indexes are in front.

        Raises:
            ValueError: the descriptors cannot be used, or lack the message; the caller corrects it.
        """
        _found(descriptors, message)
        main = FileDescriptorSet.FromString(descriptors).file[-1]
        fronts = indexes_of(main, message) if framed else (b"",)
        if not fronts:
            raise ValueError(f"{message} is not in the last file of the descriptors, {main.name}")
        return cls(descriptors, message, {_ANY_ID: fronts})

    @classmethod
    def registered(
        cls, registry: SchemaRegistry, numbers: Sequence[int], message: str
    ) -> ProtobufValues:
        """Return what decodes values of schemas of a registry: the last schema decodes them all.

        Fields are known by their numbers, and each schema says where the message is in its file.
        A schema that lacks the message, or that cannot be read, is not among `fronts`. An empty
        `message` stands for the first one of the last schema.

        Raises:
            ValueError: the last schema cannot be read, or lacks the message; the caller corrects
                it.
            RetriableError: the registry does not answer; call again later.
        """
        last = protobuf_schema(registry, numbers[-1])
        main = last.file[-1]
        if not message and not main.message_type:
            raise ValueError("it has no message")
        message = message or chosen_message(main, BytesIO(FIRST_MESSAGE))
        fronts = {numbers[-1]: indexes_of(main, message)}
        if not fronts[numbers[-1]]:
            raise ValueError(f"it has no message {message}")
        for number in numbers[:-1]:
            with suppress(ValueError):
                if found := indexes_of(protobuf_schema(registry, number).file[-1], message):
                    fronts[number] = found
        return cls(last.SerializeToString(), message, fronts)

    def decoded(self, schema_id: Column, body: Column) -> Column:
        """Return the message as a struct; null: it is broken, another one, or there is none.

        `body` has the bytes after the schema's id.

        Raises ValueError: the message contains itself; the caller corrects it.
        """
        kind = _struct(_found(self.descriptors, self.message), ())
        number = F.lit(_ANY_ID) if _ANY_ID in self.fronts else schema_id
        # Without Arrow, whose way for functions differs between Spark's versions.
        return F.udf(self._row, kind, useArrow=False)(number, body)

    def _row(self, number: int, body: bytes | None) -> tuple[object, ...] | None:
        if body is None:
            return None
        data = bytes(body)
        for front in self.fronts.get(number, ()):
            if data.startswith(front):
                return _decoded(_found(self.descriptors, self.message), data[len(front) :])
        return None


def _decoded(message: Descriptor, data: bytes) -> tuple[object, ...] | None:
    try:
        return _values(GetMessageClass(message).FromString(data))
    except (DecodeError, ValueError, OverflowError):  # the last two: a time beyond Python's
        return None


@lru_cache(_SCHEMAS_MAX)
def _found(descriptors: bytes, message: str) -> Descriptor:
    try:
        return pool_of(FileDescriptorSet.FromString(descriptors)).FindMessageTypeByName(message)
    except (DecodeError, TypeError) as error:
        raise ValueError(f"the descriptors of {message} cannot be used: {error}") from error
    except KeyError as error:
        raise ValueError(f"the descriptors have no message {message}") from error


def _struct(message: Descriptor, inside: tuple[str, ...]) -> StructType:
    """Return the type of a message; `inside` are the messages around it."""
    if message.full_name in inside:
        raise ValueError(
            f"the message {message.full_name} contains itself, and Spark has no type for that: read"
            " without a payload, and decode the column value with a function of your own"
        )
    around = (*inside, message.full_name)
    return StructType([StructField(each.name, _type(each, around)) for each in message.fields])


def _type(field: FieldDescriptor, around: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = field.message_type.fields
        return MapType(_type(key, around), _type(value, around))
    one = _type_of_one(field, around)
    return ArrayType(one) if _is_repeated(field) else one


def _type_of_one(field: FieldDescriptor, around: tuple[str, ...]) -> DataType:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType()
    if field.message_type is None:
        return _PLAIN[field.cpp_type]
    if field.message_type.full_name == _TIMESTAMP:
        return TimestampType()
    return _struct(field.message_type, around)


def _values(message: Message) -> tuple[object, ...]:
    return tuple(_value(each, message) for each in message.DESCRIPTOR.fields)


def _value(field: FieldDescriptor, message: Message) -> object:
    value = getattr(message, field.name)
    if _is_map(field):
        of_key, of_value = field.message_type.fields
        return {_one(of_key, key): _one(of_value, value[key]) for key in value}
    if _is_repeated(field):
        return [_one(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(field, value)


def _one(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Message):
        if field.message_type.full_name == _TIMESTAMP:
            return cast("Timestamp", value).ToDatetime(timezone.utc)
        return _values(value)
    if isinstance(value, int) and field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if isinstance(value, int) and field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal(value)
    return value


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: FieldDescriptor) -> bool:
    """Tell whether a field has many values, in versions of protobuf before and after 30."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)

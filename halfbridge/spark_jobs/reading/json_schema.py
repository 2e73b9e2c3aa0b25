"""The type that Spark gives values which a JSON Schema describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = {"integer": LongType, "number": DoubleType, "boolean": BooleanType, "string": StringType}
_ALTERNATIVES = ("anyOf", "oneOf")


def spark_type(schema: object) -> DataType:
    """Return the type of the values of a JSON Schema.

    What has no type of its own in Spark (alternatives, objects without named fields, recursion) is
    a string: from_json puts the JSON text of the value there.
    """
    return _Reader(schema).type_of(schema, ())


class _Reader:
    def __init__(self, root: object) -> None:
        self._root = root

    def type_of(  # noqa: PLR0911 (one for each kind of schema)
        self, schema: object, inside: tuple[str, ...]
    ) -> DataType:
        """Return a part's type; `inside` are the references that led to it."""
        if not isinstance(schema, dict):
            return StringType()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in inside:
                return StringType()
            return self.type_of(self._referred(reference), (*inside, reference))
        for name in _ALTERNATIVES:
            if isinstance(schema.get(name), list):
                real = [each for each in schema[name] if each != {"type": "null"}]
                return self.type_of(real[0], inside) if len(real) == 1 else StringType()
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, inside)
        if kind == "array":
            return ArrayType(self.type_of(schema.get("items"), inside))
        return _PLAIN.get(kind, StringType)()

    def _object(self, schema: Mapping[str, object], inside: tuple[str, ...]) -> DataType:
        fields, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(fields, dict) and fields:
            return StructType(
                [StructField(name, self.type_of(each, inside)) for name, each in fields.items()]
            )
        if isinstance(others, dict):
            return MapType(StringType(), self.type_of(others, inside))
        return StringType()

    def _referred(self, reference: str) -> object:
        """Return the part of this document that `#/definitions/NAME` names; None: no such part."""
        start, *path = reference.split("/")
        found = self._root if start == "#" else None
        for each in path:
            found = found.get(each) if isinstance(found, dict) else None
        return found


def _kind(schema: Mapping[str, object]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and "properties" in schema:
        return "object"
    return str(kind)

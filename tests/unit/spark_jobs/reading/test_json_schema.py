"""Types that Spark gives to what a JSON Schema describes."""

from typing import Any

import pytest

from halfbridge.spark_jobs.reading.json_schema import spark_type

LINES = {"type": "array", "items": {"$ref": "#/$defs/Line"}}
LINE = {"type": "object", "properties": {"price": {"type": "number"}, "of": {"$ref": "#"}}}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"type": ["integer", "string"]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "bigint"),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "string"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"type": "object"}, "string"),
        ({"type": "array"}, "array<string>"),
        ({"properties": {"a": {"enum": ["x"]}}}, "struct<a:string>"),
        ({"$ref": "https://example.com/order.json"}, "string"),
        (True, "string"),
    ],
)
def test_each_kind_has_a_type(schema: Any, wanted: str) -> None:
    """What Spark has no type for is a string."""
    assert spark_type(schema).simpleString() == wanted


def test_references_are_followed_once() -> None:
    """Within the document; a type that contains itself is a string there."""
    order = {"type": "object", "properties": {"lines": LINES}, "$defs": {"Line": LINE}}
    assert spark_type(order).simpleString() == (
        "struct<lines:array<struct<price:double,of:struct<lines:array<string>>>>>"
    )

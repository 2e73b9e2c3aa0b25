"""mapping.toml: what is taken, what is refused, and the messages that come of it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.bridge import Message
from halfbridge.bridge.errors import ConfigError
from halfbridge.sql.log_subscription.errors import InsertNotMappedError, MappingError
from halfbridge.sql.log_subscription.mapping import load_mapping, parse_mapping

if TYPE_CHECKING:
    from pathlib import Path

ROW: dict[str, Any] = {
    "id": 7,
    "kind": "orders",
    "customer": "c é",
    "body": b"\x00\xff",
    "price": Decimal("1.50"),
    "ratio": 0.5,
    "paid": True,
    "gone": None,
}


def _message(text: str, **changed: Any) -> Message:
    return parse_mapping(text, origin="m.toml").message({**ROW, **changed})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'topic = "t"\nvalue_column = "body"',
            Message("t", value=b"\x00\xff"),
        ),
        (
            'topic_column = "kind"\nkey_column = "customer"\nvalue_column = "customer"',
            Message("orders", key="c é".encode(), value="c é".encode()),
        ),
        (
            'topic = "t"\nkey_column = "id"\nvalue_column = "gone"',
            Message("t", key=b"7", value=None),
        ),
        (
            'topic = "t"\nkey_column = "gone"\nvalue_column = "paid"',
            Message("t", key=None, value=b"true"),
        ),
    ],
)
def test_columns_become_topic_key_and_value(text: str, message: Message) -> None:
    """Bytes stay as they are, other values are their text, null is no key or a tombstone."""
    assert _message(text) == message


def test_chosen_columns_are_a_json_object() -> None:
    """In the order of the mapping; decimals and bytes are strings that lose nothing."""
    columns = ["price", "id", "customer", "body", "ratio", "paid", "gone"]
    value = _message(f'topic = "t"\nvalue_columns = {json.dumps(columns)}').value or b""
    assert list(json.loads(value).items()) == [
        ("price", "1.50"),
        ("id", 7),
        ("customer", "c é"),
        ("body", "AP8="),
        ("ratio", 0.5),
        ("paid", True),
        ("gone", None),
    ]


def test_json_has_no_number_that_is_none() -> None:
    """NaN and infinities are strings: they are no JSON."""
    text = 'topic = "t"\nvalue_columns = ["ratio"]'
    assert _message(text, ratio=float("inf")).value == b'{"ratio":"inf"}'


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("topic", "mapping", "TOML"),
        ('tpoic = "t"', "tpoic", "did you mean topic?"),
        ('value_column = "body"', "topic, topic_column", "exactly one"),
        ('topic = "t"\ntopic_column = "k"', "topic, topic_column", "exactly one"),
        ('topic = "t"', "value_column, value_columns", "exactly one"),
        ('topic = "t"\nvalue_column = "b"\nvalue_columns = ["b"]', "value_column, ", "exactly one"),
        ("topic = 7", "topic", "name of a topic"),
        ('topic = "t"\nkey_column = ""', "key_column", "name of a column"),
        ('topic = "t"\nvalue_columns = []', "value_columns", "at least one"),
        ('topic = "t"\nvalue_columns = "id"', "value_columns", "list of names"),
        ('topic = "t"\nvalue_columns = ["id", 7]', "value_columns", "list of names"),
        ('topic = "t"\nvalue_columns = ["id", "id"]', "value_columns", "each column once"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str, says: str) -> None:
    """The error names the file, the field and what is allowed."""
    with pytest.raises(MappingError) as raised:
        parse_mapping(text, origin="m.toml")
    assert field in raised.value.field
    assert raised.value.origin == "m.toml"
    assert says in str(raised.value)
    assert isinstance(raised.value, ConfigError)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is a mistake on the command line."""
    with pytest.raises(MappingError, match=r"no\.toml"):
        load_mapping(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("text", "changed", "field"),
    [
        ('topic = "t"\nkey_column = "other"\nvalue_column = "body"', {}, "key_column"),
        ('topic = "t"\nvalue_columns = ["id", "other"]', {}, "value_columns"),
        ('topic_column = "kind"\nvalue_column = "body"', {"kind": None}, "topic_column"),
    ],
)
def test_a_row_that_does_not_fit_is_no_message(
    text: str, changed: dict[str, Any], field: str
) -> None:
    """A missing column or a null topic names the mapping's field; nothing is left out."""
    with pytest.raises(InsertNotMappedError) as raised:
        _message(text, **changed)
    assert raised.value.field == field

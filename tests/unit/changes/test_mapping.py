"""mapping.toml: what is wrong is named, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfbridge.changes.mapping import MappingError, load_mapping, parse_mapping


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        ("", "topic", "the name of a topic"),
        ("topic = 3", "topic", "the name of a topic"),
        ('topic = "o"\nkey_colum = "id"', "key_colum", "did you mean key_column?"),
        ('topic = "o"\nkey_column = "a"\nkey_columns = ["b"]', "key_column, key_columns", "one of"),
        ('topic = "o"\nvalue_columns = []', "value_columns", "at least one"),
        ('topic = "o"\nvalue_columns = ["a", "a"]', "value_columns", "each once"),
        ('topic = "o"\noperations = ["upsert"]', "operations", "insert"),
        ('topic = "o"\nsnapshot = "no"', "snapshot", "true or false"),
        ('topic = "o"\ndeletes = "drop"', "deletes", "row, tombstone"),
        ('topic = "o"\nlayout = "flat"', "layout", "table, outbox, routed"),
        ('topic = "o"\nheaders = { RMQ_HALF = "id" }', "headers", "reserved"),
        ('topic = "o"\nwhere = { a = 1.5 }', "where", "whole number"),
        ('topic = "o"\nlayout = "routed"\nkey_column = "a"', "key_column", "no such field"),
        ('topic = "{a}"\nlayout = "routed"', "topic", "without columns"),
        ('layout = "outbox"\noperations = ["delete"]', "operations", "of an outbox"),
        ("topic =", "mapping", "TOML"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str, allowed: str) -> None:
    """The error names the field, its value, the file and what is allowed."""
    with pytest.raises(MappingError) as raised:
        parse_mapping(text, origin="mapping.toml")
    assert raised.value.field == field
    assert allowed in raised.value.allowed
    assert raised.value.origin == "mapping.toml"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """As is a file that is not UTF-8."""
    with pytest.raises(MappingError, match="readable file"):
        load_mapping(tmp_path / "none.toml")


def test_an_outbox_may_have_other_columns() -> None:
    """What the file says counts more than Debezium's defaults."""
    made = parse_mapping('layout = "outbox"\nkey_columns = ["a", "b"]', origin="mapping.toml")
    assert (made.key_column, made.key_columns) == ("", ("a", "b"))
    assert made.value_column == "payload"

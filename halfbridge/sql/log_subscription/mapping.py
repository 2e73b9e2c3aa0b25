"""mapping.toml: defines how the columns of an inserted row become a message.

    topic = "orders"                      # or topic_column = "kind"
    key_column = "customer_id"            # without it messages have no key
    value_columns = ["id", "item", "at"]  # a JSON object; or value_column = "body", its bytes

In a JSON object, integers and floats are numbers, and booleans are booleans. A decimal is a string
with all its digits, and bytes are a string in base64. A domain is written as its base type. Every
other type is the string that the database writes (times in UTC). A key, a topic, or a value from
one column is the column's bytes, or its text in UTF-8. A null key means no key, and a null value
means a tombstone.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from base64 import b64encode
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.errors import InvalidMessageError
from halfbridge.bridge.message import Message
from halfbridge.sql.log_subscription.errors import InsertNotMappedError, MappingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from halfbridge.sql.log_subscription.changes import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMapping:
    """How the message of an inserted row is made.

    Attributes:
        topic: The real topic of all messages; empty: the topic comes from `topic_column`.
        topic_column: The column with the real topic; empty if `topic` is given.
        key_column: The column with the key; empty: messages have no key.
        value_column: The column with the value; empty: the value comes from `value_columns`.
        value_columns: The columns in the value, a JSON object, in this order.
    """

    topic: str = ""
    topic_column: str = ""
    key_column: str = ""
    value_column: str = ""
    value_columns: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, str]:
        """Every column that is needed, with the field that names it first."""
        named = {
            self.topic_column: "topic_column",
            self.key_column: "key_column",
            self.value_column: "value_column",
        }
        named.update((each, "value_columns") for each in self.value_columns if each not in named)
        named.pop("", None)
        return named

    def message(self, values: Mapping[str, Value]) -> Message:
        """Return the message of a row.

        Raises:
            InsertNotMappedError: A column is missing, or its value is not possible there.
        """
        for column, field in self.columns.items():
            if column not in values:
                raise InsertNotMappedError(f"a row has no column {column}", field=field)
        topic = self.topic
        if self.topic_column:
            topic = (_bytes(values[self.topic_column]) or b"").decode("utf-8", "replace")
        key = _bytes(values[self.key_column]) if self.key_column else None
        if self.value_column:
            value = _bytes(values[self.value_column])
        else:
            chosen = {each: _json(values[each]) for each in self.value_columns}
            value = json.dumps(chosen, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            return Message(topic, key=key, value=value)
        except InvalidMessageError as error:
            field = "topic_column" if self.topic_column else "topic"
            raise InsertNotMappedError(f"a row makes no message: {error}", field=field) from error


def load_mapping(path: Path) -> MessageMapping:
    """Return the mapping in a file.

    Raises:
        MappingError: The file cannot be read, or a field is wrong; the text names file and field.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _error("--map", str(path), "command line", f"a readable file ({error})") from error
    return parse_mapping(text, origin=str(path))


def parse_mapping(text: str, *, origin: str) -> MessageMapping:
    """Return the mapping that `text` describes.

    Args:
        text: TOML.
        origin: The text's origin, for errors.

    Raises:
        MappingError: A field is wrong; the error names the field and what is allowed.
    """
    try:
        given: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error("mapping", f"({error})", origin, "TOML") from error
    names = [each.name for each in fields(MessageMapping)]
    unknown = next((each for each in given.items() if each[0] not in names), None)
    if unknown is not None:
        allowed = f"one of {', '.join(names)}"
        raise _error(unknown[0], repr(unknown[1]), origin, allowed, among=names)
    for field in names:
        _check_type(field, given.get(field), origin)
    _check_choice(given, "topic", "topic_column", origin)
    _check_choice(given, "value_column", "value_columns", origin)
    chosen = tuple(given.pop("value_columns", ()))
    if len(set(chosen)) < len(chosen):
        raise _error("value_columns", repr(list(chosen)), origin, "each column once")
    return MessageMapping(**given, value_columns=chosen)


def _check_type(field: str, value: object, origin: str) -> None:
    if value is None:
        return
    if field == "value_columns":
        names = value if isinstance(value, list) else [None]
        if not names or not all(isinstance(each, str) and each for each in names):
            raise _error(field, repr(value), origin, "a list of names of columns, at least one")
    elif not isinstance(value, str) or not value:
        what = "the name of a topic" if field == "topic" else "the name of a column"
        raise _error(field, repr(value), origin, what)


def _check_choice(given: Mapping[str, object], one: str, other: str, origin: str) -> None:
    if (one in given) == (other in given):
        shown = "both" if one in given else "neither"
        raise _error(f"{one}, {other}", shown, origin, "exactly one of the two")


def _error(
    field: str, value: str, origin: str, allowed: str, *, among: list[str] | None = None
) -> MappingError:
    near = difflib.get_close_matches(field, among or (), 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return MappingError(field=field, value=value, origin=origin, allowed=allowed + hint)


def _bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode("utf-8", "surrogatepass")


def _json(value: Value) -> bool | int | float | str | None:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value

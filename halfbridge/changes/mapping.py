"""mapping.toml: which changes become messages, and how. Pure but for `load_mapping`.

    topic = "orders"                       # "{kind}" is replaced by the text of column kind
    key_column = "customer_id"             # or key_columns = [...]: a JSON object; none: no key
    value_columns = ["id", "item"]         # or value_column = "body": its bytes; none: all columns
    operations = ["insert", "update"]      # and "delete"; ["insert"] if missing
    deletes = "tombstone"                  # or "row": what the log has of the deleted row
    snapshot = true                        # whether rows of a snapshot become messages
    headers = { tenant = "tenant_id" }     # name of a header -> column
    where = { kind = ["order", "refund"] } # column -> a value, or a list of values

`layout = "outbox"` is a table of Debezium's outbox layout; `layout = "routed"` is a topic that
Debezium's EventRouter has written, whose keys and values are sent on.
"""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.headers import RESERVED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OPERATIONS = ("insert", "update", "delete")
TABLE, OUTBOX, ROUTED = LAYOUTS = ("table", "outbox", "routed")
ROW, TOMBSTONE = DELETES = ("row", "tombstone")
# Headers that the relay adds: what happened to the row, unless it was inserted; a snapshot's row.
OPERATION_HEADER, SNAPSHOT_HEADER = "__operation__", "__snapshot__"
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# Debezium's EventRouter, by its own defaults.
_OUTBOX: Mapping[str, object] = {
    "topic": "outbox.event.{aggregatetype}",
    "key_column": "aggregateid",
    "value_column": "payload",
    "headers": {"id": "id", "eventType": "type"},
}
_TEXTS = {"layout": LAYOUTS, "deletes": DELETES}
_NAMES = ("topic", "key_column", "value_column")
_LISTS = ("key_columns", "value_columns", "operations")
_FIELDS = (*_TEXTS, *_NAMES, *_LISTS, "headers", "where", "snapshot")


class MappingError(ConfigError):
    """A mapping is wrong; the user corrects the field that the error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMapping:
    """How a change becomes a message. The module's text documents each field."""

    topic: str
    layout: str = TABLE
    key_column: str = ""
    key_columns: tuple[str, ...] = ()
    value_column: str = ""
    value_columns: tuple[str, ...] = ()
    operations: tuple[str, ...] = ("insert",)
    deletes: str = TOMBSTONE
    snapshot: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_mapping(path: Path) -> ChangeMapping:
    """Return the mapping in a file.

    Raises MappingError: the user corrects the file or field that it names.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _error("--map", str(path), "command line", f"a readable file ({error})") from error
    return parse_mapping(text, origin=str(path))


def parse_mapping(text: str, *, origin: str) -> ChangeMapping:
    """Return the mapping in `text`, TOML from `origin`.

    Raises MappingError: the user corrects the field that it names.
    """
    try:
        given: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error("mapping", f"({error})", origin, "TOML") from error
    for name, value in given.items():
        allowed = _flaw(name, value)
        if allowed:
            raise _error(name, repr(value), origin, allowed)
    given = _checked_together(given, origin)
    where = {
        column: tuple(map(_word, wanted if isinstance(wanted, list) else [wanted]))
        for column, wanted in given.pop("where", {}).items()
    }
    for name in _LISTS:
        if name in given:
            given[name] = tuple(given[name])
    return ChangeMapping(**given, where=where)


def _checked_together(given: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the fields with the defaults of their layout."""
    layout, defaults = given.get("layout", TABLE), dict(_OUTBOX)
    for one, other in (("key_column", "key_columns"), ("value_column", "value_columns")):
        if one in given and other in given:
            raise _error(f"{one}, {other}", "both", origin, "one of the two")
        if other in given:
            defaults.pop(one)
    if layout == ROUTED:
        useless = next((each for each in given if each not in ("layout", "topic")), None)
        if useless is not None:
            raise _error(useless, repr(given[useless]), origin, "no such field with layout routed")
    if layout == OUTBOX:
        given = {**defaults, **given}
        if set(given.get("operations", ("insert",))) != {"insert"}:
            raise _error("operations", repr(given["operations"]), origin, '["insert"] of an outbox')
    if "topic" not in given:
        raise _error("topic", "missing", origin, "the name of a topic")
    if layout == ROUTED and PLACEHOLDER.search(given["topic"]):
        raise _error("topic", repr(given["topic"]), origin, "a name without columns")
    return given


def _flaw(name: str, value: Any) -> str:  # noqa: PLR0911  (one for each kind of field)
    """Return the allowed values if the value of a field is wrong; empty if it is right."""
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"one of {', '.join(_FIELDS)}{hint}"
    if name in _TEXTS:
        return "" if value in _TEXTS[name] else f"one of {', '.join(_TEXTS[name])}"
    if name == "snapshot":
        return "" if isinstance(value, bool) else "true or false"
    if name in _NAMES:
        what = "the name of a topic" if name == "topic" else "the name of a column"
        return "" if isinstance(value, str) and value and "{}" not in value else what
    if name == "operations":
        return "" if _is_list(value) and set(value) <= {*OPERATIONS} else f"of {OPERATIONS}"
    if name in _LISTS:
        return "" if _is_list(value) else "a list of names of columns, each once, at least one"
    if not isinstance(value, dict):
        return "a table"
    if name == "where":
        wanted = [each for one in value.values() for each in (one if type(one) is list else [one])]
        is_good = all(isinstance(each, (str, int)) for each in wanted) and all(
            one != [] for one in value.values()
        )
        return "" if is_good else "column = text, whole number, true or false, or a list of these"
    if not all(isinstance(each, str) and each for each in value.values()):
        return "name of a header = name of a column"
    taken = value.keys() & {*RESERVED, OPERATION_HEADER, SNAPSHOT_HEADER}
    return f"another name than {min(taken)}, which is reserved" if taken else ""


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, str) and each for each in value)
        and len(set(value)) == len(value)
    )


def _word(value: object) -> str:
    """Return the text that a column's value is compared with."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(name: str, value: str, origin: str, allowed: str) -> MappingError:
    return MappingError(field=name, value=value, origin=origin, allowed=allowed)

"""Keys and JSON values as bytes, by one rule for each type. No I/O.

A type without a rule is refused. Were it turned into some text, consumers would notice, after the
commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from halfbridge.kafka.errors import InvalidMessageError

# Objects and arrays in one another, as deep as protobuf's default allows; a value that contains
# itself reaches it, well before Python's recursion limit of 1,000.
DEPTH_MAX = 100
# Digits on either side of the point: Decimal("1e999999999") would be a gigabyte of zeros. As the
# largest precision that PostgreSQL lets a column of type numeric declare.
DECIMAL_PLACES_MAX = 1_000
_SHOWN_MAX = 200  # characters of a path or of somebody else's error: two lines of a terminal


def key_bytes(key: object) -> bytes | None:
    """Return a key as bytes: bytes as they are, text in UTF-8, an int as its decimal digits.

    None is no key. InvalidMessageError: another type, bool too; the caller converts it.
    """
    if key is None or type(key) is bytes:
        return key
    try:
        if type(key) is str:
            return key.encode()
        if type(key) is int:
            return b"%d" % key
    except ValueError as error:  # no UTF-8 form; an int of more digits than Python converts
        raise InvalidMessageError(f"key: {error}", field="key") from error
    raise InvalidMessageError(
        f"key must be str, bytes, int or None, not {type(key).__name__}: convert it, for example "
        "str(key)",
        field="key",
    )


def json_bytes(value: object) -> bytes | None:
    """Return a value as compact JSON in UTF-8; None, a tombstone, stays None.

    A datetime or date is its `isoformat()`, a UUID its text, an Enum its value, a Decimal a string
    of all its digits. A model of pydantic is what its `model_dump_json()` says, a dataclass an
    object of its fields.

    Raises InvalidMessageError with the path of a field: no rule for its type, no finite number, a
    datetime without a time zone, a name that is not text; the caller converts it.
    """
    if value is None:
        return None
    plain = _plain(value, "value", 0)
    try:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:  # an int of more digits than Python converts
        raise _refused("value", str(error)) from error


def _plain(value: Any, path: str, depth: int) -> Any:  # noqa: PLR0911  (one for each type)
    """Return a value as what `json` writes."""
    if value is None or isinstance(value, (bool, Enum)):
        return _plain(value.value, path, depth + 1) if isinstance(value, Enum) else value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(path, f"{value} has no form in JSON")
        return value
    if depth >= DEPTH_MAX:
        raise _refused(path, f"nested more than {DEPTH_MAX} deep, or contains itself")
    if isinstance(value, Mapping):
        return {
            _name(name, path): _plain(each, f"{path}.{name}", depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{path}[{at}]", depth + 1) for at, each in enumerate(value)]
    return _object(value, path, depth)


def _object(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise _refused(path, "a datetime without a time zone: give it one, such as timezone.utc")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return _digits(value, path)
    if not isinstance(value, type):
        if hasattr(value, "model_dump_json"):
            return _plain(_dumped(value, path), path, depth + 1)
        if is_dataclass(value):
            return {
                each.name: _plain(getattr(value, each.name), f"{path}.{each.name}", depth + 1)
                for each in fields(value)
            }
    raise _refused(
        path,
        f"there is no rule for {type(value).__name__} in JSON: convert it, for example to text, a"
        " list or a dict",
    )


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _refused(path, "the text has no UTF-8 form") from error
    return value


def _name(name: object, path: str) -> str:
    if not isinstance(name, str):
        raise _refused(path, f"a name must be text, not {type(name).__name__}")
    return _text(name, path)


def _digits(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise _refused(path, f"{value} has no form in JSON")
    exponent = value.as_tuple().exponent
    if max(value.adjusted(), -int(exponent)) > DECIMAL_PLACES_MAX:
        raise _refused(path, f"a Decimal of more than {DECIMAL_PLACES_MAX} places")
    return format(value, "f")


def _dumped(model: Any, path: str) -> Any:
    """Return what a model of pydantic writes, so that it can be a part of a larger value."""
    try:
        return json.loads(model.model_dump_json())
    except Exception as error:  # serializers of the user's
        raise _refused(path, f"model_dump_json() of {type(model).__name__}: {error}") from error


def _refused(path: str, why: str) -> InvalidMessageError:
    path, why = (" ".join(each.split())[:_SHOWN_MAX] for each in (path, why))
    return InvalidMessageError(f"{path}: {why}", field=path)

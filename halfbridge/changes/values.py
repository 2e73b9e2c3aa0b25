"""Decodes keys and values of change events to plain values. Pure.

JSON with and without schemas (Kafka Connect's JsonConverter), and Confluent's wire format with Avro
or JSON. With a schema, each value keeps its meaning: decimals are Decimal with all their digits,
dates and times are ISO 8601 text, bytes are bytes. Without a schema a value is what JSON says.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro

from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # Schema id -> the registry's answer; None: the registry has no such schema.
    Schemas = Callable[[int], Mapping[str, object] | None]

_HEAD = struct.Struct(">bI")  # Confluent's wire format: a zero byte, and the schema's id
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (a column without a time zone)
# Before the point; PostgreSQL's numeric, the longest number of a database, has no more.
_PLACES_MAX = 131_072
# A connector's tables, each with a key, in some versions: 64 tables in two versions.
_PARSED_MAX = 256


class UndecodedError(ValueError):
    """Bytes are not what a converter of Kafka Connect writes; their writer must act."""


def decoded(data: bytes, schemas: Schemas) -> Any:
    """Return what a key or a value says, as plain values.

    Raises:
        UndecodedError: no converter of Kafka Connect writes such bytes; their writer must act.
        BridgeError: the schema registry does not answer; try again later.
    """
    try:
        if len(data) >= _HEAD.size and data[0] == 0:
            return _registered(data, schemas)
        return _unwrapped(json.loads(data, parse_float=Decimal))
    except (UndecodedError, BridgeError):  # the second: the registry does not answer now
        raise
    except RecursionError as error:
        raise UndecodedError("nested too deeply") from error
    except Exception as error:  # a stranger's bytes: decoders raise whatever they meet
        raise UndecodedError(f"{type(error).__name__}: {error}") from error


def has_json_frame(data: bytes) -> bool:
    """Return whether bytes are JSON in the frame of Kafka Connect's JsonConverter."""
    if data[:1] != b"{" or b'"schema"' not in data:
        return False
    try:
        value = json.loads(data, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return value.keys() == {"schema", "payload"} and isinstance(value["schema"], (dict, type(None)))


def text_of(value: Any) -> bytes | None:
    """Return a single value as bytes: bytes are themselves, others are their text in UTF-8.

    UndecodedError: a number of which no database has as many places; its writer must act.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, (dict, list)):
        return json_of(value)
    return str(_json(value)).encode("utf-8", "surrogatepass")


def json_of(value: Any) -> bytes:
    """Return a value as compact JSON; a decimal is a string of all its digits, bytes are base64."""
    return json.dumps(_json(value), ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _json(value: Any) -> Any:  # noqa: PLR0911  (one for each type)
    if isinstance(value, dict):
        return {str(name): _json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json(each) for each in value]
    if isinstance(value, Decimal):
        if abs(value.adjusted()) > _PLACES_MAX:
            raise UndecodedError(f"a number of more than {_PLACES_MAX:,} places")
        return format(value, "f")  # never 0E-8
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    return value


# --- JSON ----------------------------------------------------------------------------------------


def _unwrapped(value: Any) -> Any:
    """Return the payload of JSON with a schema, converted; other JSON with its numbers only."""
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        schema = value["schema"]
        if isinstance(schema, dict):
            return _by_schema(schema, value["payload"])
        value = value["payload"]
    return _numbers(value)


def _by_schema(schema: Mapping[str, Any], value: Any) -> Any:  # noqa: PLR0911  (one for each type)
    if value is None:
        return None
    name, kind = str(schema.get("name")), schema["type"]
    if kind == "bytes" and isinstance(value, str):
        value = b64decode(value, validate=True)
    if kind == "struct":
        value = {
            each["field"]: _by_schema(each, value.get(each["field"])) for each in schema["fields"]
        }
    if name in _MEANINGS:  # also of a struct, such as VariableScaleDecimal
        scale = (schema.get("parameters") or {}).get("scale", 0)
        return _MEANINGS[name](value, int(scale))
    if kind == "struct":
        return value
    if kind == "array":
        return [_by_schema(schema["items"], each) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {each: _by_schema(schema["values"], value[each]) for each in value}
    if kind in ("float", "double") and isinstance(value, Decimal):
        return float(value)
    return _numbers(value)


def _numbers(value: Any) -> Any:
    """Return JSON's numbers as float where that keeps all digits, else as Decimal."""
    if isinstance(value, Decimal):
        number = float(value)
        return number if math.isfinite(number) and Decimal(repr(number)) == value else value
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return value


# --- registry ------------------------------------------------------------------------------------


def _registered(data: bytes, schemas: Schemas) -> Any:
    _, number = _HEAD.unpack_from(data)
    found = schemas(number)
    if found is None:
        raise UndecodedError(f"the schema registry has no schema {number}")
    kind = found.get("schemaType", "AVRO")
    if kind == "JSON":
        return _numbers(json.loads(data[_HEAD.size :], parse_float=Decimal))
    if kind != "AVRO":
        raise UndecodedError(
            f"the event's schema {number} is {kind}; only Avro and JSON can be decoded"
        )
    parsed, names = _parsed(found["schema"])
    value = fastavro.schemaless_reader(BytesIO(data[_HEAD.size :]), parsed, None)
    return _by_avro(parsed, value, names)


@lru_cache(_PARSED_MAX)
def _parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """Return a parsed Avro schema, and the records in it by their full names."""
    parsed = fastavro.parse_schema(json.loads(text))
    names: dict[str, Any] = {}
    _collect(parsed, names)
    return parsed, names


def _collect(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _collect(each, names)
    elif isinstance(schema, dict):
        if "name" in schema:
            names[schema["name"]] = schema
        for each in schema.get("fields", ()):
            _collect(each["type"], names)
        for part in ("items", "values"):
            _collect(schema.get(part), names)
        if isinstance(schema.get("type"), (dict, list)):
            _collect(schema["type"], names)


def _by_avro(schema: Any, value: Any, names: Mapping[str, object]) -> Any:
    """Return a decoded value of Avro by what Connect's converter noted in the schema."""
    if value is None:
        return None
    if isinstance(schema, str):
        schema = names.get(schema, schema)
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        return _by_avro(branches[0], value, names) if len(branches) == 1 else value
    if not isinstance(schema, dict):
        return value
    if isinstance(schema["type"], (dict, list)):
        return _by_avro(schema["type"], value, names)
    if schema["type"] == "record" and isinstance(value, dict):
        value = {
            each["name"]: _by_avro(each["type"], value[each["name"]], names)
            for each in schema["fields"]
        }
    elif schema["type"] == "array":
        value = [_by_avro(schema["items"], each, names) for each in value]
    elif schema["type"] == "map":
        value = {each: _by_avro(schema["values"], value[each], names) for each in value}
    meaning = _MEANINGS.get(schema.get("connect.name", ""))
    if meaning is None or isinstance(value, (Decimal, date, time)):  # fastavro knows some of them
        return value
    scale = (schema.get("connect.parameters") or {}).get("scale", 0)
    return meaning(value, int(scale))


# --- what Connect's and Debezium's types mean ----------------------------------------------------


def _decimal(value: Any, scale: int) -> Decimal:
    if isinstance(value, bytes):
        number = int.from_bytes(value, "big", signed=True)
        digits = tuple(int(each) for each in str(abs(number)))
        return Decimal((int(number < 0), digits, -scale))
    return Decimal(value)  # decimal.format=NUMERIC


def _variable(value: Any, _scale: int) -> Decimal:
    return _decimal(value["value"], value["scale"])


def _day(value: int, _scale: int) -> str:
    return (_EPOCH + timedelta(days=value)).date().isoformat()


def _moment(digits: int) -> Callable[[int, int], str]:
    def convert(value: int, _scale: int) -> str:
        seconds, rest = divmod(value, 10**digits)
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
        return f"{text}.{rest:0{digits}d}" if rest else text

    return convert


def _clock(digits: int) -> Callable[[int, int], str]:
    """Return a converter of times; MySQL's may be negative, and longer than a day."""

    def convert(value: int, _scale: int) -> str:
        seconds, rest = divmod(abs(value), 10**digits)
        text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return ("-" if value < 0 else "") + (f"{text}.{rest:0{digits}d}" if rest else text)

    return convert


def _year(value: int, _scale: int) -> int:
    """Return MySQL's year; Debezium adds 1900 to the log's number, and 0 is the year 0."""
    return 0 if value == _YEAR_0 else value


_YEAR_0 = 1900  # no other YEAR is below 1901
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_MEANINGS: Mapping[str, Callable[[Any, int], object]] = {
    f"{_CONNECT}Decimal": _decimal,
    "io.debezium.data.VariableScaleDecimal": _variable,
    f"{_CONNECT}Date": _day,
    f"{_CONNECT}Time": _clock(3),
    f"{_CONNECT}Timestamp": _moment(3),
    f"{_TIME}Date": _day,
    f"{_TIME}Year": _year,
    f"{_TIME}Time": _clock(3),
    f"{_TIME}MicroTime": _clock(6),
    f"{_TIME}NanoTime": _clock(9),
    f"{_TIME}Timestamp": _moment(3),
    f"{_TIME}MicroTimestamp": _moment(6),
    f"{_TIME}NanoTimestamp": _moment(9),
}

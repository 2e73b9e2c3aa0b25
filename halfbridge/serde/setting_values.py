"""The types that a setting may have, and how text and TOML values become values of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))


def is_kind(value: object, kind: type) -> bool:
    """Tell whether `value` is one of a setting of this type."""
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(text, str) for name, text in value.items()
        )
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _parse_int(raw: object) -> object:
    return int(raw.replace("_", "")) if isinstance(raw, str) else raw


def _parse_float(raw: object) -> object:
    return float(raw) if isinstance(raw, (str, int)) and not isinstance(raw, bool) else raw


def _parse_bool(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    word = raw.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(raw)


def _parse_path(raw: object) -> object:
    return Path(raw) if isinstance(raw, str) else raw


def _parse_words(raw: object) -> object:
    if isinstance(raw, str):
        return tuple(word.strip() for word in raw.split(",") if word.strip())
    return tuple(raw) if isinstance(raw, list) else raw


def _parse_pairs(raw: object) -> object:
    """Read "k=v,k=v", ("k=v", "k=v") or a table; a value with a comma needs one of the latter."""
    if isinstance(raw, str):
        raw = tuple(part for part in raw.split(",") if part.strip())
    if isinstance(raw, (tuple, list)):
        pairs = [str(part).partition("=") for part in raw]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError(raw)
        return {name.strip(): value.strip() for name, _, value in pairs}
    if isinstance(raw, Mapping):
        return {str(name): _scalar(value) for name, value in raw.items()}
    return raw


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(value)


# Type -> what it is called in errors.
KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    tuple: "words, separated by commas",
    Mapping: "name=value pairs, separated by commas",
}
PARSERS: dict[Any, Callable[[object], object]] = {
    int: _parse_int,
    float: _parse_float,
    str: lambda raw: raw,
    bool: _parse_bool,
    Path: _parse_path,
    tuple: _parse_words,
    Mapping: _parse_pairs,
}

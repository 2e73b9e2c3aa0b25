"""Settings from flags, environment and a TOML file into a frozen dataclass, checked once.

A field made by `setting` carries its own documentation and bounds, so the loader, the errors
and the command line's options all come from the one declaration.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from halfbridge.bridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "HALFBRIDGE_"
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_HIDDEN = "***"

T = TypeVar("T")


def setting(
    default: Any,
    *,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """Return a dataclass field that `load`, `check` and the command line understand.

    Args:
        default: Used where flags, environment and file say nothing.
        doc: One sentence with the unit, shown by `--help`.
        minimum: Least number allowed.
        maximum: Greatest number allowed.
        secret: Keep the value out of errors and `repr`.
    """
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "secret": secret}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known about one setting.

    Attributes:
        name: Field name; the TOML key too.
        kind: int, float, str, bool, Path, tuple (of str) or Mapping (str to str).
        optional: None is a value (`int | None`).
        default: Value where nobody says anything.
        doc: One sentence with the unit.
        minimum: Least number, or None.
        maximum: Greatest number, or None.
        secret: Never shown.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    doc: str
    minimum: float | None
    maximum: float | None
    secret: bool

    @property
    def environment(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Name of the command-line option."""
        return "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """What values are allowed, in words."""
        words = _WORDS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{words} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{words}, at least {self.minimum:g}"
        if self.maximum is not None:
            return f"{words}, at most {self.maximum:g}"
        return words


def describe(cls: type) -> tuple[Setting, ...]:
    """Return the settings of a dataclass in declaration order; fields without `setting` left out.

    Raises:
        TypeError: a field of a type that settings cannot have (a bug in the dataclass).
    """
    hints = get_type_hints(cls)
    return tuple(
        _describe(each, hints[each.name]) for each in fields(cls) if "doc" in each.metadata
    )


def load(
    cls: type[T],
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Mapping[str, object],
) -> T:
    """Return `cls` made of flags, else environment, else file, else defaults.

    Args:
        cls: A dataclass whose fields are made by `setting`.
        flags: Field name to value; None and an empty tuple mean not given. Text is parsed.
        environ: The environment; an empty variable counts as not given.
        file: What `read_toml` returned (one table; keys are field names).

    Raises:
        ConfigError: a bad value, or a key in `file` that no field has; the user corrects it.
    """
    settings = describe(cls)
    _refuse_unknown(file, settings)
    values: dict[str, Any] = {}
    for each in settings:
        origin, raw = _first_given(each, flags, environ, file)
        if origin:
            values[each.name] = _parse(each, raw, origin)
    return cls(**values)


def check(config: Any) -> None:
    """Check types and bounds of a settings dataclass made by hand; call from `__post_init__`.

    Raises:
        ConfigError: a field has a wrong type or is out of bounds; the programmer corrects it.
    """
    for each in describe(type(config)):
        value = getattr(config, each.name)
        if value is None and each.optional:
            continue
        if not (_is_kind(value, each.kind) and _in_bounds(each, value)):
            raise _error(each, value, "argument")


def read_toml(path: Path) -> Mapping[str, object]:
    """Return the table in a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; the user corrects it.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            field="config", value=str(path), origin=str(error), allowed="a readable TOML file"
        ) from error


def _describe(each: Field[Any], hint: Any) -> Setting:
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    # `X | None` has a None arm; tuple[str, ...] and Mapping[str, str] have none.
    optional = type(None) in get_args(hint)
    kind = arms[0] if optional else hint
    kind = get_origin(kind) or kind
    if kind not in _WORDS:
        raise TypeError(f"{each.name}: a setting cannot be of type {hint}")
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    return Setting(name=each.name, kind=kind, optional=optional, default=default, **each.metadata)


def _refuse_unknown(file: Mapping[str, object], settings: tuple[Setting, ...]) -> None:
    names = [each.name for each in settings]
    for key in file:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            allowed = f"did you mean {near[0]}?" if near else ", ".join(names)
            raise ConfigError(field=key, value="this key", origin="the TOML file", allowed=allowed)


def _first_given(
    each: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Mapping[str, object],
) -> tuple[str, object]:
    flag = flags.get(each.name)
    if flag is not None and flag != ():
        return each.flag, flag
    variable = environ.get(each.environment)
    if variable:
        return each.environment, variable
    if each.name in file:
        return f"key {each.name} of the TOML file", file[each.name]
    return "", None


def _parse(each: Setting, raw: object, origin: str) -> Any:
    try:
        value = _PARSERS[each.kind](raw)
    except (ValueError, TypeError) as error:
        raise _error(each, raw, origin) from error
    if not (_is_kind(value, each.kind) and _in_bounds(each, value)):
        raise _error(each, raw, origin)
    return value


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


def _is_kind(value: object, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(text, str) for name, text in value.items()
        )
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _in_bounds(each: Setting, value: Any) -> bool:
    if each.kind not in (int, float):
        return True
    # Written so that NaN is out of bounds.
    above = each.minimum is None or value >= each.minimum
    return above and (each.maximum is None or value <= each.maximum)


def _error(each: Setting, value: object, origin: str) -> ConfigError:
    shown = _HIDDEN if each.secret else repr(value)
    return ConfigError(field=each.name, value=shown, origin=origin, allowed=each.allowed)


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    tuple: "words, separated by commas",
    Mapping: "name=value pairs, separated by commas",
}
_PARSERS: dict[Any, Callable[[object], object]] = {
    int: _parse_int,
    float: _parse_float,
    str: lambda raw: raw,
    bool: _parse_bool,
    Path: _parse_path,
    tuple: _parse_words,
    Mapping: _parse_pairs,
}

"""Settings from flags, environment, a TOML file or Spark options into a frozen dataclass.

A field made by `setting` carries its documentation and bounds, for the loader, the errors and the
command line's options. A class names the error that its users catch, as `refusal = ConfigError`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ENVIRONMENT_PREFIX = "HALFBRIDGE_"
# Origin in errors of a class, which does not know who set its fields; `load` knows.
UNKNOWN_ORIGINS = ("argument", "the configuration")
_HIDDEN = "***"
# The Kafka property that Python code may set to a function (`halfbridge.kafka.tokens`).
_FUNCTION = "oauth_cb"
T = TypeVar("T")


class SettingError(ValueError):
    """A setting is wrong; its author corrects it.

    Attributes:
        field: Name of the setting, as in the dataclass.
        value: The bad value as text; `***` where it is secret.
        origin: Where it came from, such as `HALFBRIDGE_CHECK_COUNT_MAX` or `--check-count-max`.
        allowed: The allowed values.
    """

    def __init__(self, *, field: str, value: str, origin: str, allowed: str) -> None:
        super().__init__(f"{field}: {value} (from {origin}) is not allowed; allowed: {allowed}")
        self.field = field
        self.value = value
        self.origin = origin
        self.allowed = allowed


def setting(default: Any, *, doc: str, secret: bool = False, **more: object) -> Any:
    """Return a dataclass field with one sentence (`doc`, with the unit) for `--help`.

    A `secret` value is kept out of errors and `repr`. `more` are further attributes of `Setting`.
    """
    metadata = {"doc": doc, "secret": secret, **more}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    Attributes:
        name: Field name; the TOML key too.
        kind: int, float, str, bool, Path, tuple (of str) or Mapping (str to str).
        optional: None is a value (`int | None`).
        refusal: Makes the error of the class.
        doc: One sentence with the unit.
        secret: Never shown.
        words: The only words allowed, or (); of a bool, those for False and for True.
        holds: Says of a value of the right type whether it is allowed; None: it is.
        in_words: The allowed values, if the other fields do not define them.
        option: Name of the Spark option, or "".
    """

    name: str
    kind: type
    optional: bool
    default: Any
    refusal: Callable[..., Exception]
    doc: str
    secret: bool
    minimum: float | None = None
    maximum: float | None = None
    words: tuple[str, ...] = ()
    holds: Callable[[Any], bool] | None = None
    in_words: str = ""
    option: str = ""

    @property
    def environment(self) -> str:
        """Name of the environment variable."""
        return variable(self.name)

    @property
    def flag(self) -> str:
        """Name of the command-line option."""
        return "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """What values are allowed, in words."""
        if self.in_words:
            return self.in_words
        if self.words:
            return (" or " if self.kind is bool else ", ").join(self.words)
        kind = KINDS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{kind} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{kind}, at least {self.minimum}"
        if self.maximum is not None:
            return f"{kind}, at most {self.maximum}"
        return kind

    def takes(self, value: Any) -> bool:
        """Tell whether `value` has the type and keeps the bounds."""
        if not is_kind(value, self.kind) or (self.holds is not None and not self.holds(value)):
            return False
        if self.kind is str:
            return not self.words or value in self.words
        if self.kind not in (int, float):
            return True
        # Written so that NaN is out of bounds.
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)

    def error_of(self, value: object, origin: str) -> Exception:
        """Return the error of a bad value."""
        shown = _HIDDEN if self.secret else repr(value)
        return self.refusal(field=self.name, value=shown, origin=origin, allowed=self.allowed)


def variable(name: str) -> str:
    """Return the environment variable of the setting `name`."""
    return ENVIRONMENT_PREFIX + name.upper()


def nearest(name: str, known: Collection[str]) -> str:
    """Return "did you mean <the nearest known name>?", or nothing where none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def describe(cls: type) -> tuple[Setting, ...]:
    """Return a dataclass's `setting` fields in order; TypeError: a bug in the dataclass."""
    hints = get_type_hints(cls)
    refusal = getattr(cls, "refusal", SettingError)
    return tuple(
        _describe(each, hints[each.name], refusal) for each in fields(cls) if "doc" in each.metadata
    )


def load(
    cls: type[T],
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
    options: Mapping[str, str] | None = None,
) -> T:
    """Return `cls` made of flags, else environment, else file, else options, else defaults.

    Args:
        cls: A dataclass whose fields are made by `setting`.
        flags: Field name to value; None and an empty tuple mean not given. Text is parsed.
        environ: The environment; an empty variable counts as not given.
        file: One table of a TOML file; keys are field names.
        options: Spark's options, by name; an empty one counts as not given.

    Raises:
        SettingError: or what `cls.refusal` names: a bad value, or a key in `file` that no field
            has; the user corrects it.
    """
    settings = describe(cls)
    if file:
        _refuse_unknown(file, settings)
    values: dict[str, object] = {}
    origins = {
        each.name: f"the default; set {each.flag} or {each.environment}" for each in settings
    }
    for each in settings:
        for raw, origin in (
            ((flags or {}).get(each.name), each.flag),
            ((environ or {}).get(each.environment) or None, each.environment),
            ((file or {}).get(each.name), f"key {each.name} of the TOML file"),
            ((options or {}).get(each.option) or None, f"option {each.option}"),
        ):
            if raw is not None and raw != ():
                values[each.name] = _parse(each, raw, origin)
                origins[each.name] = origin
                break
    try:
        return cls(**values)
    except SettingError as error:  # of a value that does not fit the other values
        if error.origin not in UNKNOWN_ORIGINS or error.field not in origins:
            raise
        raise type(error)(
            field=error.field,
            value=error.value,
            origin=origins[error.field],
            allowed=error.allowed,
        ) from error


def check(config: Any) -> None:
    """Check a hand-made settings dataclass in `__post_init__`.

    Raises SettingError: or what the class's `refusal` names: a bad value; the user corrects it.
    """
    for each in describe(type(config)):
        value = getattr(config, each.name)
        if not (each.takes(value) or (value is None and each.optional)):
            raise each.error_of(value, "argument")


def to_plain(config: Any) -> dict[str, object]:
    """Return a settings dataclass as values for JSON, which `load` accepts as flags.

    Raises:
        SettingError: or what the class's `refusal` names: a Kafka property is a function; the user
            names it as text.
    """
    plain: dict[str, object] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, Path):
            value = str(value)
        if isinstance(value, Mapping) and callable(value.get(_FUNCTION)):
            raise getattr(type(config), "refusal", SettingError)(
                field=each.name,
                value=f"a function {_FUNCTION}",
                origin="argument",
                allowed='"package.module:function", since another process must call it',
            )
        plain[each.name] = dict(value) if isinstance(value, Mapping) else value
    return plain


def _describe(each: Field[Any], hint: Any, refusal: Callable[..., Exception]) -> Setting:
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    # `X | None` has a None arm; tuple[str, ...] and Mapping[str, str] have none.
    optional = type(None) in get_args(hint)
    kind = arms[0] if optional else hint
    kind = get_origin(kind) or kind
    if kind not in KINDS:
        raise TypeError(f"{each.name}: a setting cannot be of type {hint}")
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    return Setting(
        name=each.name,
        kind=kind,
        optional=optional,
        default=default,
        **{"refusal": refusal, **each.metadata},
    )


def _refuse_unknown(file: Mapping[str, object], settings: tuple[Setting, ...]) -> None:
    names = [each.name for each in settings]
    for key in file:
        if key not in names:
            allowed = nearest(key, names) or ", ".join(names)
            raise settings[0].refusal(
                field=key, value="this key", origin="the TOML file", allowed=allowed
            )


def _parse(each: Setting, raw: object, origin: str) -> Any:
    try:
        value = PARSERS[each.kind](_meant(each, raw))
    except (ValueError, TypeError) as error:
        raise each.error_of(raw, origin) from error
    if not each.takes(value):
        raise each.error_of(raw, origin)
    return value


def _meant(each: Setting, raw: object) -> object:
    """Return False or True where a bool has words of its own, and one of the two was given."""
    if each.kind is not bool or not each.words or not isinstance(raw, str):
        return raw
    return bool(each.words.index(raw.lower()))


_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))


def is_kind(value: object, kind: type) -> bool:
    """Tell whether `value` is one of a setting of this type."""
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            isinstance(name, str)
            and (isinstance(text, str) or (name == _FUNCTION and callable(text)))
            for name, text in value.items()
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
    """Read "k=v,k=v", ("k=v", "k=v"), a JSON object or a table; a comma needs one of the latter."""
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        raw = json.loads(raw)
    elif isinstance(raw, str):
        raw = tuple(part for part in raw.split(",") if part.strip())
    if isinstance(raw, (tuple, list)):
        pairs = [str(part).partition("=") for part in raw]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError(raw)
        return {name.strip(): value.strip() for name, _, value in pairs}
    if isinstance(raw, Mapping):
        return {
            str(name): value if name == _FUNCTION and callable(value) else _scalar(value)
            for name, value in raw.items()
        }
    return raw


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(value)


# Type -> its name in errors.
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
# A property -> librdkafka's second name of it.
_SECOND_NAMES = {
    "acks": "request.required.acks",
    "bootstrap.servers": "metadata.broker.list",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "enable.auto.commit": "auto.commit.enable",
    "linger.ms": "queue.buffering.max.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "retries": "message.send.max.retries",
}
# What no client of halfbridge's may have otherwise, and why.
GUARANTEED: Mapping[str, str] = {
    "acks": "a half message must be durable",
    "enable.idempotence": "a retry must not store twice",
    "enable.gapless.guarantee": "a lost message must not be passed over",
    "max.in.flight": "a retry must not change the order",
    "partitioner": "the half partition is part of the protocol",
    "allow.auto.create.topics": "nothing relies on auto-creation",
}


def under_all_names(owned: Mapping[str, str]) -> dict[str, str]:
    """Return `owned` with the second names of its properties, which it says the same of."""
    seconds = {_SECOND_NAMES[name]: why for name, why in owned.items() if name in _SECOND_NAMES}
    return {**owned, **seconds}

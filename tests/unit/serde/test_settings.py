"""Settings: precedence, parsing and errors that say what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from halfbridge.serde.settings import SettingError, check, describe, load, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of every type."""

    count: int = setting(5, doc="How many.", minimum=1, maximum=9)
    ratio: float = setting(0.5, doc="Share.", minimum=0)
    name: str = setting("x", doc="Name.")
    on: bool = setting(default=False, doc="Switch.")
    words: tuple[str, ...] = setting((), doc="Words.")
    place: Path | None = setting(None, doc="Where.")  # noqa: RUF009  (`setting` is `field`)
    kafka: Mapping[str, str] = setting({}, doc="Pass-through.", secret=True)

    def __post_init__(self) -> None:
        """Check bounds."""
        check(self)


def _load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
) -> Sample:
    return load(Sample, flags=flags or {}, environ=environ or {}, file=file or {})


def test_flags_win_over_environment_over_file_over_default() -> None:
    """The nearest source to the user's fingers wins; None and () mean not given."""
    file = {"count": 2}
    environ = {"HALFBRIDGE_COUNT": "3"}
    assert _load().count == 5
    assert _load(file=file).count == 2
    assert _load(environ=environ, file=file).count == 3
    assert _load({"count": None, "words": ()}, environ, file).count == 3
    assert _load({"count": 4}, environ, file).count == 4
    assert _load(environ={"HALFBRIDGE_COUNT": ""}, file=file).count == 2


def test_every_type_is_read_from_text() -> None:
    """Environment text becomes the field's type."""
    environ = {
        "HALFBRIDGE_COUNT": "7",
        "HALFBRIDGE_RATIO": "0.25",
        "HALFBRIDGE_ON": "Yes",
        "HALFBRIDGE_WORDS": "a, b,",
        "HALFBRIDGE_PLACE": "some/dir",
        "HALFBRIDGE_KAFKA": "a.b=1,c=d=e",
    }
    assert _load(environ=environ) == Sample(
        count=7,
        ratio=0.25,
        on=True,
        words=("a", "b"),
        place=Path("some/dir"),
        kafka={"a.b": "1", "c": "d=e"},
    )


def test_toml_types_and_repeated_flags() -> None:
    """TOML lists, tables and whole numbers for floats are taken, and --kafka k=v repeated."""
    file = {"words": ["a"], "ratio": 1, "kafka": {"linger.ms": 5, "x": True}}
    loaded = _load({"kafka": ("a=1", "b=x,y")}, file=file)
    assert loaded == Sample(words=("a",), ratio=1.0, kafka={"a": "1", "b": "x,y"})
    assert _load(file=file).kafka == {"linger.ms": "5", "x": "true"}


@pytest.mark.parametrize(
    ("environ", "field", "allowed"),
    [
        ({"HALFBRIDGE_COUNT": "ten"}, "count", "a whole number from 1 to 9"),
        ({"HALFBRIDGE_COUNT": "10"}, "count", "a whole number from 1 to 9"),
        ({"HALFBRIDGE_RATIO": "-1"}, "ratio", "a number, at least 0"),
        ({"HALFBRIDGE_RATIO": "nan"}, "ratio", "a number, at least 0"),
        ({"HALFBRIDGE_ON": "maybe"}, "on", "true or false"),
        ({"HALFBRIDGE_KAFKA": "novalue"}, "kafka", "name=value pairs, separated by commas"),
    ],
)
def test_errors_name_field_value_origin_and_what_is_allowed(
    environ: dict[str, str], field: str, allowed: str
) -> None:
    """A bad value says all four things, in fields and in text."""
    with pytest.raises(SettingError) as caught:
        _load(environ=environ)
    ((variable, value),) = environ.items()
    assert (caught.value.field, caught.value.origin) == (field, variable)
    assert caught.value.allowed == allowed
    assert caught.value.value == ("***" if field == "kafka" else repr(value))
    assert variable in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_unknown_toml_key_names_the_nearest() -> None:
    """A typing slip in the file is an error, not a silent default."""
    with pytest.raises(SettingError, match="did you mean count"):
        _load(file={"coutn": 1})
    with pytest.raises(SettingError, match="count, ratio"):
        _load(file={"zzzzzz": 1})


@pytest.mark.parametrize(
    "bad", [{"count": "5"}, {"count": True}, {"count": 0}, {"words": "a"}, {"kafka": {"a": 1}}]
)
def test_check_guards_a_config_made_by_hand(bad: dict[str, object]) -> None:
    """Direct construction is held to the same bounds, with the argument named."""
    with pytest.raises(SettingError) as caught:
        Sample(**bad)  # type: ignore[arg-type]
    assert caught.value.origin == "argument"
    assert [caught.value.field] == list(bad)


def test_secrets_stay_hidden() -> None:
    """Neither repr nor an error shows a secret setting."""
    assert "hush" not in repr(Sample(kafka={"sasl.password": "hush"}))
    with pytest.raises(SettingError) as caught:
        _load(environ={"HALFBRIDGE_KAFKA": "hush"})
    assert "hush" not in str(caught.value)


def test_describe_gives_the_command_line_what_it_needs() -> None:
    """Each setting knows its names, type, default and documentation."""
    count = describe(Sample)[0]
    assert (count.flag, count.environment, count.kind) == ("--count", "HALFBRIDGE_COUNT", int)
    assert (count.default, count.doc) == (5, "How many.")
    place = next(each for each in describe(Sample) if each.name == "place")
    assert (place.kind, place.optional) == (Path, True)


def test_describe_refuses_types_it_cannot_read() -> None:
    """A dataclass with an unreadable type fails when it is described, not when it is used."""

    @dataclass
    class Bad:
        when: complex = setting(0j, doc="No.")

    with pytest.raises(TypeError, match="when"):
        describe(Bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Settings with names, words and an error of their own."""

    refusal = LookupError

    level: str = setting("low", words=("low", "high"), option="its.level", doc="Level.")
    keeps: bool = setting(default=False, words=("fail", "keep"), option="on.error", doc="Keep.")
    size: int | None = setting(
        None, holds=lambda n: n % 2 == 0, in_words="an even number", option="size", doc="Size."
    )


def test_spark_options_have_names_of_their_own() -> None:
    """An empty option is not given; a bool may have two words of its own, in any case."""
    assert load(Named, options={"its.level": "high", "on.error": "Keep", "size": ""}) == Named(
        level="high", keeps=True
    )
    assert load(Named, options={"size": "1_000"}).size == 1000


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"its.level": "HIGH"}, "low, high"),
        ({"on.error": "true"}, "fail or keep"),
        ({"size": "3"}, "an even number"),
    ],
)
def test_a_class_names_its_error(options: dict[str, str], allowed: str) -> None:
    """The error of a class is made of the same four things, here by a function."""
    told: list[dict[str, str]] = []

    def refusal(**said: str) -> LookupError:
        told.append(said)
        return LookupError()

    class Told(Named):
        pass

    Told.refusal = staticmethod(refusal)  # type: ignore[assignment]
    with pytest.raises(LookupError):
        load(Told, options=options)
    ((name, value),) = options.items()
    assert told[0]["value"] == repr(value)
    assert (told[0]["origin"], told[0]["allowed"]) == (f"option {name}", allowed)


def test_large_bounds_are_shown_in_digits() -> None:
    """129600000, not 1.296e+08."""

    @dataclass
    class Wide:
        age: int = setting(1, maximum=129_600_000, doc="Age.")

    with pytest.raises(SettingError, match="at most 129600000"):
        load(Wide, environ={"HALFBRIDGE_AGE": "129600001"})

"""Settings: precedence, parsing and errors that say what to change."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import fastavro
import pytest

from halfbridge.serde.avro import HEADER_BYTES, MARKER, schema_fingerprint, schema_text
from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings import SettingError, check, describe, load, setting
from halfbridge.serde.settings_topic import (
    SETTINGS_BYTES_MAX,
    decode_daemon_settings,
    encode_daemon_settings,
)


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


def test_a_property_with_a_comma_is_given_as_json() -> None:
    """A variable that begins with a brace is a JSON object."""
    given = '{"a": "x,y", "b": "1=2", "c": 3}'
    assert _load(environ={"HALFBRIDGE_KAFKA": given}).kafka == {"a": "x,y", "b": "1=2", "c": "3"}


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
        ({"HALFBRIDGE_KAFKA": '{"a": "b"'}, "kafka", "name=value pairs, separated by commas"),
        ({"HALFBRIDGE_KAFKA": '{"a": ["b"]}'}, "kafka", "name=value pairs, separated by commas"),
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
        Sample(**bad)
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
    reported: list[dict[str, str]] = []

    def refusal(**said: str) -> LookupError:
        reported.append(said)
        return LookupError()

    class Refusing(Named):
        pass

    Refusing.refusal = staticmethod(refusal)
    with pytest.raises(LookupError):
        load(Refusing, options=options)
    ((name, value),) = options.items()
    assert reported[0]["value"] == repr(value)
    assert (reported[0]["origin"], reported[0]["allowed"]) == (f"option {name}", allowed)


def test_large_bounds_are_shown_in_digits() -> None:
    """129600000, not 1.296e+08."""

    @dataclass
    class Wide:
        age: int = setting(1, maximum=129_600_000, doc="Age.")

    with pytest.raises(SettingError, match="at most 129600000"):
        load(Wide, environ={"HALFBRIDGE_AGE": "129600001"})


# --- the record of the daemon's limits: golden bytes, and what a reader refuses ------------

SETTINGS_V1 = DaemonSettings(
    worker="host-0",
    timestamp=1_700_000_000_123,
    transaction_timeout_ms=5_000,
    check_interval_ms=20_000,
    check_count_max=10,
    transaction_age_ms_max=86_400_000,
    metadata_bytes_max=4_096,
    op_bytes_max=4_096,
    transaction_messages_max=1_000,
    transaction_bytes_max=8_388_608,
    further={"answers_max": 7},
)

# Never changed: what was written once must be readable for ever.
GOLDEN = (
    "c3014c88d8d6e41639fa0c686f73742d30f6a1abfef962904ec0b8021480f0b25280408040d00f80808008021661"
    "6e73776572735f6d61780e00"
)


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_daemon_settings(SETTINGS_V1).hex() == GOLDEN
    assert decode_daemon_settings(bytes.fromhex(GOLDEN)) == SETTINGS_V1


def test_the_schema_has_the_records_fields() -> None:
    """Any Avro library reads them under these names."""
    schema = json.loads(schema_text("daemon_settings.v1"))
    assert [field["name"] for field in schema["fields"]] == list(SETTINGS_V1._fields)
    body = io.BytesIO(bytes.fromhex(GOLDEN)[HEADER_BYTES:])
    row = fastavro.schemaless_reader(body, fastavro.parse_schema(schema), None)
    assert row == SETTINGS_V1._asdict()


def test_defaults_survive_the_wire() -> None:
    """A daemon with default settings writes what a reader assumes without a record."""
    assert decode_daemon_settings(encode_daemon_settings(DaemonSettings())) == DaemonSettings()


def test_limits_are_all_but_who_and_when() -> None:
    """With the further ones among them, which cannot hide one that version 1 knows."""
    limits = SETTINGS_V1.limits()
    assert limits["answers_max"] == 7
    assert limits["check_count_max"] == 10
    assert not limits.keys() & {"worker", "timestamp", "further"}
    assert limits == SETTINGS_V1._replace(worker="other-1", timestamp=5).limits()
    forged = SETTINGS_V1._replace(further={"check_count_max": 99})
    assert forged.limits()["check_count_max"] == 10


def test_a_newer_schema_is_no_damage() -> None:
    """Its reader must upgrade; nobody wrote anything wrong."""
    schema = json.loads(schema_text("daemon_settings.v1"))
    schema["fields"].append({"name": "motto", "type": "string", "default": ""})
    parsed = fastavro.parse_schema(schema)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, {**SETTINGS_V1._asdict(), "motto": "festina lente"})
    with pytest.raises(UnknownSchemaError):
        decode_daemon_settings(MARKER + schema_fingerprint(parsed) + body.getvalue())


@pytest.mark.parametrize("length", range(len(GOLDEN) // 2))
def test_truncated_bytes_are_reported(length: int) -> None:
    """Cut off anywhere, the bytes are refused."""
    with pytest.raises(DecodeError):
        decode_daemon_settings(bytes.fromhex(GOLDEN)[:length])


def test_a_record_that_is_too_long_is_not_read() -> None:
    """However right its beginning is."""
    names = {f"limit-{number:04}": 1 for number in range(2_000)}
    value = encode_daemon_settings(SETTINGS_V1._replace(further=names))
    assert len(value) > SETTINGS_BYTES_MAX
    with pytest.raises(DecodeError, match=f"more than {SETTINGS_BYTES_MAX}"):
        decode_daemon_settings(value)


@pytest.mark.parametrize("name", [*DaemonSettings().limits(), "further"])
def test_a_limit_below_1_is_no_limit(name: str) -> None:
    """No error says that an age of -1 ms is too long."""
    value: object = {"later": 0} if name == "further" else 0
    with pytest.raises(DecodeError, match="is 0, less than 1"):
        decode_daemon_settings(encode_daemon_settings(SETTINGS_V1._replace(**{name: value})))

"""Keys and JSON values by one rule for each type; what has none is refused with its path."""

import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, field_serializer

from halfbridge import InvalidMessageError, Message

CET = timezone(timedelta(hours=1))


HUGE = pytest.param(10**5000, id="huge")


class Size(str, Enum):
    """Its values are text."""

    LARGE = "L"


class Level(IntEnum):
    """Its values are ints."""

    HIGH = 3


class Nested(Enum):
    """A value that has a rule of its own."""

    PRICE = Decimal("1.50")


@dataclass
class Line:
    """A line of an order."""

    article: str
    price: Decimal
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A dataclass with others in it."""

    number: int
    lines: list[Line] = field(default_factory=list)


class Customer(BaseModel):
    """A model of pydantic."""

    name: str
    since: date
    limit: Decimal
    seen: datetime


class Silent(BaseModel):
    """A model that cannot be written."""

    name: str

    @field_serializer("name")
    def _never(self, _name: str) -> str:
        raise LookupError("no name\nfor now")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Grüße", '"Grüße"'),
        (7, "7"),
        (True, "true"),
        (0.1, "0.1"),
        ({"a": None, "b": [1, (2.5,)]}, '{"a":null,"b":[1,[2.5]]}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (datetime(2026, 11, 28, 9, 30, tzinfo=CET), '"2026-11-28T09:30:00+01:00"'),
        (date(2026, 11, 28), '"2026-11-28"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("12.50"), '"12.50"'),
        (Decimal("0E-8"), '"0.00000000"'),
        (Decimal("1E+3"), '"1000"'),
        (Size.LARGE, '"L"'),
        (Level.HIGH, "3"),
        (Nested.PRICE, '"1.50"'),
        (
            Order(1, [Line("hat", Decimal("9.90"), ("red",))]),
            '{"number":1,"lines":[{"article":"hat","price":"9.90","tags":["red"]}]}',
        ),
    ],
)
def test_each_type_has_one_rule(value: object, text: str) -> None:
    """Compact JSON in UTF-8, in the order of the value."""
    assert Message.json("t", value=value).value == text.encode()


def test_models_of_pydantic_write_themselves() -> None:
    """By model_dump_json, alone and as part of another value."""
    ada = Customer(
        name="Ada",
        since=date(2026, 1, 2),
        limit=Decimal("1.10"),
        seen=datetime(2026, 1, 2, tzinfo=timezone.utc),
    )
    alone = Message.json("t", value=ada).value
    assert alone == ada.model_dump_json().encode()
    beside = Message.json("t", value={"customers": [ada], "line": Line("hat", Decimal(1))}).value
    assert beside is not None
    assert json.loads(beside)["customers"] == [json.loads(alone)]


def test_none_is_a_tombstone() -> None:
    """And no key is no key."""
    assert Message.json("t", value=None) == Message("t")


def test_all_else_is_as_in_a_message() -> None:
    """Headers, partition and immunity, of both ways to make a value."""
    given: Any = {"headers": {"trace": b"1"}, "partition": 3, "immunity_ms": 20_000}
    whole = Message("t", key=b"k", value=b"1", **given)
    assert Message.json("t", key="k", value=1, **given) == whole
    made = Message.serialized("t", key="k", value=1, serializer=lambda *_: b"1", **given)
    assert made.header_pairs == whole.header_pairs
    assert (made.partition, made.immunity_ms) == (3, 20_000)


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("Zoë", "Zoë".encode()),
        ("", b""),
        (b"\xff", b"\xff"),
        (42, b"42"),
        (-1, b"-1"),
        (None, None),
    ],
)
def test_keys_have_rules_too(key: str | bytes | int | None, sent: bytes | None) -> None:
    """Text in UTF-8, an int as decimal digits, bytes as they are."""
    assert Message.json("t", key=key, value={}).key == sent


@pytest.mark.parametrize("key", [True, 1.0, UUID(int=1), Level.HIGH, "\ud800", HUGE])
def test_other_keys_are_refused(key: Any) -> None:
    """They would be turned into text that nobody chose."""
    with pytest.raises(InvalidMessageError, match=r"^key") as caught:
        Message.json("t", key=key, value={})
    assert caught.value.field == "key"


def nested(depth: int) -> Any:
    """Return lists within one another."""
    return [] if not depth else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        ({"at": datetime(2026, 11, 28)}, "value.at", "time zone"),  # noqa: DTZ001  (the fault)
        (Order(1, [Line("hat", Decimal("NaN"))]), "value.lines[0].price", "NaN"),
        ({"a": [0, {"b": {1, 2}}]}, "value.a[1].b", "no rule for set"),
        ({"a": float("inf")}, "value.a", "inf"),
        ({"a": {1: "one"}}, "value.a", "must be text, not int"),
        ({"a": b"x"}, "value.a", "bytes"),
        ({"a": time(9)}, "value.a", "time"),
        ({"a": Order}, "value.a", "type"),
        ({"a": Customer}, "value.a", "class"),
        ({"a": "\ud800"}, "value.a", "UTF-8"),
        ({"\ud800": 1}, "value", "UTF-8"),
        ({"a": Decimal("1e999999999")}, "value.a", "places"),
        ({"a": Decimal("1e-999999999")}, "value.a", "places"),
        ({"a": Silent(name="x")}, "value.a", "no name for now"),
        ({"a": object()}, "value.a", "object"),
        (nested(101), "value" + "[0]" * 65, "nested"),
        pytest.param(10**5000, "value", "digits", id="huge"),
    ],
)
def test_what_has_no_rule_is_refused_with_its_path(value: object, path: str, why: str) -> None:
    """In one line; nothing is made that could be sent."""
    with pytest.raises(InvalidMessageError, match=why) as caught:
        Message.json("t", value=value)
    assert caught.value.field.startswith(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    """As one that is nested too deeply."""
    value: dict[str, Any] = {}
    value["me"] = value
    with pytest.raises(InvalidMessageError, match="contains itself"):
        Message.json("t", value=value)


def test_a_timestamp_is_refused_with_the_reason() -> None:
    """The time of an event belongs in a header; a copy of a message needs no timestamp."""
    with pytest.raises(InvalidMessageError, match="header") as caught:
        Message("t", timestamp_ms=1_700_000_000_000)
    assert caught.value.field == "timestamp_ms"
    assert replace(Message("t", value=b"1"), value=b"2") == Message("t", value=b"2")

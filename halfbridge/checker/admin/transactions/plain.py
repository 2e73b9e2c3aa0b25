"""Transactions, lives and groups as JSON values. Pure."""

from __future__ import annotations

import base64
import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, TypedDict

from halfbridge.checker.admin.real_topics import fix_command
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from halfbridge.checker.admin.transactions.find import Found
    from halfbridge.checker.admin.transactions.groups import GroupFacts, Groups
    from halfbridge.checker.admin.transactions.life import Event, Life, Payload
    from halfbridge.checker.admin.transactions.undecided import Listing
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.checker.core.deferred import Lack


class StoppedJson(TypedDict):
    """A partition that the daemon does not serve, and why."""

    partition: int
    why: str


class ListingJson(TypedDict):
    """The undecided transactions."""

    transactions: list[dict[str, object]]
    undecided: int
    stopped: list[StoppedJson]
    at_ms: int


class GroupsJson(TypedDict):
    """The producer groups."""

    groups: list[dict[str, object]]
    since_ms: int
    is_whole: bool
    stopped: list[StoppedJson]
    at_ms: int


def listing(found: Listing, *, with_keys: bool = False) -> ListingJson:
    """Return `{"transactions": [...], "undecided": n, "stopped": [...], "at_ms": n}`.

    The key of each first message is a part of its payload; it is left out without `with_keys`.
    """
    return {
        "transactions": [
            {**undecided(each), **(key(each.key) if with_keys else {})}
            for each in found.transactions
        ],
        "undecided": found.undecided,
        "stopped": [{"partition": each.partition, "why": each.why} for each in found.stopped],
        "at_ms": found.at_ms,
    }


def undecided(each: Undecided) -> dict[str, object]:
    """Return one undecided transaction; unknown values are None."""
    body = each._asdict()
    body["wait"] = each.wait.value
    del body["key"]
    return body


def key(data: bytes | None) -> dict[str, object]:
    """Return `{"key", "key_base64"}`: as text, escaped where it is no UTF-8, and exactly."""
    text = None if data is None else data.decode("utf-8", "backslashreplace")
    return {"key": text, "key_base64": _base64(data)}


def groups(found: Groups) -> GroupsJson:
    """Return `{"groups": [...], "since_ms", "is_whole", "stopped": [...], "at_ms"}`."""
    return {
        "groups": [group(each) for each in found.groups],
        "since_ms": found.since_ms,
        "is_whole": found.is_whole,
        "stopped": [{"partition": each.partition, "why": each.why} for each in found.stopped],
        "at_ms": found.at_ms,
    }


def group(each: GroupFacts) -> dict[str, object]:
    """Return one producer group; unknown values are None."""
    body = {name: _plain(getattr(each, name)) for name in _fields(type(each))}
    body["members"] = None if each.members is None else list(each.members)
    body["real_topics"] = list(each.real_topics)
    body["last_answer"] = None if each.last_answer is None else each.last_answer._asdict()
    return body


def life(found: Life) -> dict[str, object]:
    """Return `{"id", "state", "events": [...], ...}` of one transaction.

    Plain values and enums of `Life` need no line here; a tuple or a dataclass needs one.
    """
    body = {name: _plain(getattr(found, name)) for name in _fields(type(found))}
    body["events"] = [event(each) for each in found.events]
    body["decided_by"] = None if found.decided_by is None else event(found.decided_by)
    body["undecided"] = None if found.undecided is None else undecided(found.undecided)
    body["lacks"] = [_lack(each) for each in found.lacks]
    body["notes"] = list(found.notes)
    return body


def _lack(lack: Lack) -> dict[str, object]:
    number = None if lack.partition == PARTITION_BY_KEY else lack.partition
    return {"topic": lack.topic, "partition": number, "why": lack.why, "fix": fix_command(lack)}


def found(result: Found) -> dict[str, object]:
    """Return `{"transactions": [...], "total", "records", "unread", ...}` of a search by key."""
    names = ("total", "records", "unread", "read_from_ms", "unreadable")
    return {
        "transactions": [
            {
                "id": each.id,
                "state": each.state,
                "outcome": each.outcome,
                "half": event(each.half),
                "end": None if each.end is None else event(each.end),
            }
            for each in result.hits
        ],
        **{name: getattr(result, name) for name in names},
    }


def event(each: Event) -> dict[str, object]:
    """Return one event. `kind`, `at_ms` and the place are there always, other fields if known."""
    always = ("kind", "at_ms", "topic", "partition", "offset")
    body = {name: _plain(getattr(each, name)) for name in always}
    for name in _fields(type(each)):
        value = getattr(each, name)
        if name not in always and name != "payload" and value is not None:
            body[name] = _plain(value)
    if each.payload is not None:
        body["payload"] = payload(each.payload)
    return body


def payload(found: Payload) -> dict[str, object]:
    """Return a record's own bytes in base64; None stays None."""
    return {
        "key": _base64(found.key),
        "value": _base64(found.value),
        "headers": [[name, _base64(value)] for name, value in found.headers],
    }


def _fields(cls: type[Event | Life | GroupFacts]) -> list[str]:
    return [each.name for each in dataclasses.fields(cls)]


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()

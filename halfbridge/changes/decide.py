"""What becomes of a change event: messages, a dead letter, or nothing. Pure.

Example: an insert into `orders` with the mapping `topic = "orders"`, `key_column = "customer"`
becomes one message of the topic orders. Its `__transactionId__` is
`change-<topic id>-<partition>-<offset>`, of the change event: the same however often the event is
read, and another one for each event, also if the change topic is deleted and created again.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from halfbridge.changes.mapping import (
    OPERATION_HEADER,
    PLACEHOLDER,
    ROUTED,
    SNAPSHOT_HEADER,
    TOMBSTONE,
    ChangeMapping,
)
from halfbridge.changes.values import UndecodedError, decoded, has_json_frame, json_of, text_of
from halfbridge.serde.headers import RESERVED, Headers, real_headers
from halfbridge.serde.identity import CHANGE_ID_PREFIX
from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.serde.records import DeadReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.changes.values import Schemas
    from halfbridge.serde.topics import TopicNames

_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}")
_SHOWN_CHARS_MAX = 300  # shows that a name is longer than TOPIC_CHARS_MAX
_OPERATIONS = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}
# What Debezium writes for a large value that the log does not have (PostgreSQL's TOAST).
_UNAVAILABLE = "__debezium_unavailable_value"
_NOT_THERE = (
    _UNAVAILABLE,
    _UNAVAILABLE.encode(),
    b64encode(_UNAVAILABLE.encode()).decode(),
)


class Event(NamedTuple):
    """A record of a change topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.partition, self.offset


class Message(NamedTuple):
    """A message of a real topic, with all its headers. Its partition is chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Skip(NamedTuple):
    """Nothing is written for an event.

    `why`: `tombstone`, `schema change`, `operation`, `snapshot`, `where`, `other`.
    """

    why: str


class Dead(NamedTuple):
    """An event goes to the dead-letter topic; `detail`: the problem, and who must act."""

    reason: DeadReason
    detail: str


Decision: TypeAlias = Message | Skip | Dead


class _Unmapped(Exception):  # noqa: N818  (becomes a Dead)
    """A row does not have what the mapping needs."""


def message_id(topic_id: str, partition: int, offset: int) -> str:
    """Return the id of the message that an event becomes, at most 71 characters."""
    return f"{CHANGE_ID_PREFIX}{topic_id}-{partition}-{offset}"


def decide(  # noqa: PLR0911  (one for each outcome)
    event: Event, mapping: ChangeMapping, *, topic_id: str, names: TopicNames, schemas: Schemas
) -> Decision:
    """Return what becomes of an event.

    `topic_id` of the change topic, or its substitute, is part of the message's id. Internal topics
    of `names` are refused. `schemas` may raise, if the registry does not answer.
    """
    if event.value is None:
        return Skip("tombstone")
    try:
        made = _made(event, event.value, mapping, schemas)
    except UndecodedError as error:
        return Dead(DeadReason.INVALID, f"the change event cannot be decoded: {error}")
    except _Unmapped as error:
        return Dead(DeadReason.INVALID, str(error))
    if isinstance(made, Skip):
        return made
    message, born_ms = made
    if not _TOPIC.fullmatch(message.topic) or message.topic in (".", ".."):
        return Dead(
            DeadReason.INVALID,
            f"{message.topic[:_SHOWN_CHARS_MAX]!r} cannot be the name of a topic",
        )
    if names.is_internal(message.topic):
        return Dead(DeadReason.NOT_ALLOWED, f"{message.topic} is an internal topic")
    marked = real_headers(
        message.headers,
        message_id(topic_id, event.partition, event.offset),
        event.timestamp_ms if born_ms is None else born_ms,
    )
    return message._replace(headers=marked)


def decide_held(
    decision: Decision, unavailable: str, *, waited_s: float, gone_s: float, letters_fit: bool
) -> Decision | None:
    """Return what is written for a held event; None: it waits on.

    `decision` is what becomes of the event, `unavailable` why its topic takes no records now (empty
    if it does). After `gone_s` it becomes a dead letter, if their topic takes one (`letters_fit`).
    """
    if not unavailable:
        return decision
    if waited_s <= gone_s or not letters_fit:
        return None
    return Dead(DeadReason.UNDELIVERABLE, unavailable)


def _made(
    event: Event, value: bytes, mapping: ChangeMapping, schemas: Schemas
) -> tuple[Message, int | None] | Skip:
    """Return the message of an event, and when it was born; None: the event does not say when."""
    if mapping.layout == ROUTED:
        return _routed(event, mapping, schemas)
    change = _change(decoded(value, schemas))
    return change if isinstance(change, Skip) else _mapped(change, mapping)


class _Change(NamedTuple):
    operation: str
    is_snapshot: bool
    row: Mapping[str, object]
    born_ms: int | None


def _change(envelope: Any) -> _Change | Skip:
    """Return the change that an envelope describes; UndecodedError: it is not Debezium's."""
    if not isinstance(envelope, dict):
        raise UndecodedError("not an object, so no event of Debezium")
    if "op" not in envelope:
        if "ddl" in envelope or "tableChanges" in envelope or "databaseName" in envelope:
            return Skip("schema change")
        if envelope.get("status") in ("BEGIN", "END") or set(envelope) == {"ts_ms"}:
            return Skip("other")  # transaction metadata, heartbeats
        raise UndecodedError(
            "no field op: halfbridge reads Debezium's envelope, not unwrapped rows"
        )
    code = envelope["op"]
    if not isinstance(code, str):
        raise UndecodedError("field op is not text")
    operation = _OPERATIONS.get(code)
    if operation is None:
        return Skip("other")  # truncate, and messages in the log
    row = envelope.get("before" if operation == "delete" else "after")
    if not isinstance(row, dict):
        if operation == "delete" and row is None:
            row = {}
        else:
            raise UndecodedError(f"op {code!r} without the row")
    source = envelope.get("source")
    born_ms = source.get("ts_ms") if isinstance(source, dict) else None
    is_time = isinstance(born_ms, int) and born_ms >= 0
    return _Change(operation, code == "r", row, born_ms if is_time else None)


def _mapped(change: _Change, mapping: ChangeMapping) -> tuple[Message, int | None] | Skip:
    if change.operation not in mapping.operations:
        return Skip("operation")
    if change.is_snapshot and not mapping.snapshot:
        return Skip("snapshot")
    row = change.row
    for column, wanted in mapping.where.items():
        found = text_of(_column(row, column, "where"))
        if found is None or found.decode("utf-8", "replace") not in wanted:
            return Skip("where")

    def topic_part(found: re.Match[str]) -> str:
        return (text_of(_column(row, found[1], "topic")) or b"").decode("utf-8", "replace")

    topic = PLACEHOLDER.sub(topic_part, mapping.topic)
    key: bytes | None = None
    if mapping.key_column:
        key = text_of(_column(row, mapping.key_column, "key_column"))
    elif mapping.key_columns:
        key = json_of({each: _column(row, each, "key_columns") for each in mapping.key_columns})
    headers: Headers = [
        (name, text_of(_column(row, column, "headers"))) for name, column in mapping.headers.items()
    ]
    if change.operation != "insert":
        headers.append((OPERATION_HEADER, change.operation.encode()))
    if change.is_snapshot:
        headers.append((SNAPSHOT_HEADER, b"true"))
    is_gone = change.operation == "delete" and mapping.deletes == TOMBSTONE
    value = None if is_gone else _value(row, mapping)
    return Message(topic, key, value, headers), change.born_ms


def _value(row: Mapping[str, object], mapping: ChangeMapping) -> bytes | None:
    if mapping.value_column:
        return text_of(_column(row, mapping.value_column, "value_column"))
    columns = mapping.value_columns or tuple(row)
    return json_of({each: _column(row, each, "value_columns") for each in columns})


def _column(row: Mapping[str, object], column: str, field: str) -> Any:
    if column not in row:
        raise _Unmapped(f"{field}: the event has no column {column}; correct the mapping")
    value = row[column]
    if isinstance(value, (str, bytes)) and value in _NOT_THERE:
        raise _Unmapped(
            f"{field}: the database's log does not have the value of column {column}, which did not"
            " change (ALTER TABLE ... REPLICA IDENTITY FULL writes it to the log)"
        )
    return value


def _routed(event: Event, mapping: ChangeMapping, schemas: Schemas) -> tuple[Message, int | None]:
    """Return what Debezium's EventRouter has made of an outbox row, without its converter."""
    headers = [each for each in event.headers if each[0] not in RESERVED]
    key, value = _plain(event.key, schemas), _plain(event.value, schemas)
    return Message(mapping.topic, key, value, headers), None


def _plain(data: bytes | None, schemas: Schemas) -> bytes | None:
    """Return a key or value without the converter's frame; what no converter framed, unchanged."""
    if data is None:
        return None
    if data[:1] not in (b"\0", b'"') and not has_json_frame(data):
        return data
    try:
        value = decoded(data, schemas)
    except UndecodedError:
        if data[:1] == b"\0":
            raise
        return data
    return text_of(value)

"""What becomes of change events, in each form that Debezium 3 writes."""

import json
import struct
import zlib
from base64 import b64encode
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from halfbridge.changes.decide import Dead, Event, Message, Skip, decide, decide_held
from halfbridge.changes.held import HELD_MAX, METADATA_CHARS_MAX, Held, Position, position_of
from halfbridge.changes.mapping import MappingError, load_mapping, parse_mapping
from halfbridge.changes.service import PositionLostError
from halfbridge.kafka.errors import BridgeError, RetriableError
from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID, real_identity
from halfbridge.serde.records import DeadReason
from halfbridge.serde.topics import TopicNames
from tests.kit.debezium import SOURCE, envelope, plain, with_schema
from tests.kit.examples import given, st

TOPIC_ID = "0123456789abcdef0123456789abcdef"
ROW = {"id": 7, "customer": "c1", "item": "shirt", "price": "0.00000000"}


def decided(
    value: bytes | None,
    text: str = 'topic = "orders"',
    *,
    key: bytes | None = b'{"id":7}',
    headers: Any = (),
    schemas: Any = None,
) -> Message | Skip | Dead:
    """Return what becomes of one event under a mapping."""
    return decide(
        Event(2, 41, key, value, list(headers), 1_000),
        parse_mapping(text, origin="mapping.toml"),
        topic_id=TOPIC_ID,
        names=TopicNames(),
        schemas=schemas or (lambda _number: None),
    )


def message(value: bytes | None, text: str = 'topic = "orders"', **more: Any) -> Message:
    """Return the message that one event becomes."""
    found = decided(value, text, **more)
    assert isinstance(found, Message), found
    return found


def test_an_insert_becomes_a_message_whose_id_is_that_of_the_event() -> None:
    """The inbox reads the identity; the birth is when the database committed."""
    made = message(plain("c", after=ROW), 'topic = "orders"\nkey_column = "customer"')
    assert (made.topic, made.key) == ("orders", b"c1")
    assert json.loads(made.value or b"") == ROW
    assert real_identity(made.headers) == (f"change-{TOPIC_ID}-2-41", 0)
    assert dict(made.headers)[BORN_TIMESTAMP] == b"%d" % SOURCE["ts_ms"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "tombstone"),
        (json.dumps({"ddl": "ALTER", "databaseName": "shop", "tableChanges": []}), "schema change"),
        (json.dumps({"status": "BEGIN", "id": "555:1", "event_count": None}), "other"),
        (json.dumps({"ts_ms": 1}), "other"),
        (plain("u", before=None, after=ROW), "operation"),
        (plain("d", before=ROW), "operation"),
        (plain("t"), "other"),
        (plain("m"), "other"),
    ],
)
def test_what_is_no_insert_is_skipped(value: Any, why: str) -> None:
    """Tombstones, schema changes, heartbeats, and operations that the mapping leaves out."""
    given = value.encode() if isinstance(value, str) else value
    assert decided(given) == Skip(why)


def test_updates_and_deletes_are_marked_if_the_mapping_wants_them() -> None:
    """A delete is a tombstone with the key of the row before, or that row."""
    text = 'topic = "orders"\nkey_column = "customer"\noperations = ["update", "delete"]\n'
    assert ("__operation__", b"update") in message(plain("u", after=ROW), text).headers
    gone = message(plain("d", before=ROW), text)
    assert (gone.key, gone.value) == (b"c1", None)
    assert ("__operation__", b"delete") in gone.headers
    assert message(plain("d", before=ROW), text + 'deletes = "row"').value is not None
    assert decided(plain("c", after=ROW), text) == Skip("operation")


def test_a_moved_row_is_a_second_message_of_a_mapping_of_inserts() -> None:
    """Debezium writes a move between partitions as a delete and an insert, which has its own id."""
    made, gone, again = (
        decide(
            Event(0, offset, b'{"id":7}', event, [], 1_000),
            parse_mapping('topic = "orders"', origin="mapping.toml"),
            topic_id=TOPIC_ID,
            names=TopicNames(),
            schemas=lambda _number: None,
        )
        for offset, event in enumerate(
            (plain("c", after=ROW), plain("d", before=ROW), plain("c", after={**ROW, "day": 2}))
        )
    )
    assert isinstance(made, Message)
    assert gone == Skip("operation")
    assert isinstance(again, Message)
    assert real_identity(made.headers) == (f"change-{TOPIC_ID}-0-0", 0)
    assert real_identity(again.headers) == (f"change-{TOPIC_ID}-0-2", 0)


def test_rows_of_a_snapshot_are_marked_or_left_out() -> None:
    """`r` is a row that a snapshot, initial or incremental, has read."""
    assert ("__snapshot__", b"true") in message(plain("r", after=ROW)).headers
    left_out = decided(plain("r", after=ROW), 'topic = "orders"\nsnapshot = false')
    assert left_out == Skip("snapshot")


def test_where_topic_headers_and_columns_come_from_the_row() -> None:
    """A column's text is compared, and put in the topic's name and in headers."""
    text = (
        'topic = "shop.{item}"\nvalue_columns = ["id"]\nkey_columns = ["id", "customer"]\n'
        'headers = { who = "customer" }\nwhere = { id = [7, 8] }'
    )
    made = message(plain("c", after=ROW), text)
    assert (made.topic, made.value) == ("shop.shirt", b'{"id":7}')
    assert made.key == b'{"id":7,"customer":"c1"}'
    assert ("who", b"c1") in made.headers
    assert decided(plain("c", after={**ROW, "id": 9}), text) == Skip("where")


FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "field": "day", "name": "io.debezium.time.Date"},
    {"type": "int64", "field": "at", "name": "io.debezium.time.MicroTimestamp"},
    {"type": "int64", "field": "took", "name": "io.debezium.time.MicroTime"},
    {
        "type": "bytes",
        "field": "price",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "8"},
    },
    {"type": "bytes", "field": "body"},
    {"type": "double", "field": "weight"},
    {"type": "int32", "field": "never", "name": "io.debezium.time.Year"},
    {"type": "int32", "field": "first", "name": "io.debezium.time.Year"},
]


def test_a_schema_tells_decimals_and_times() -> None:
    """Decimals are all their digits, never 0E-8; times are ISO text, negative ones too."""
    row = {
        "day": 20_000,
        "at": 1_764_300_000_000_001,
        "took": -3_600_000_001,
        "price": b64encode(b"\0").decode(),
        "body": b64encode(b"\xff").decode(),
        "weight": 0.1,
        "never": 1900,
        "first": 1901,
    }
    made = message(with_schema("c", FIELDS, after=row))
    assert json.loads(made.value or b"") == {
        "day": "2024-10-04",
        "at": "2025-11-28T03:20:00.000001",
        "took": "-01:00:00.000001",
        "price": "0.00000000",
        "body": "/w==",
        "weight": 0.1,
        "never": 0,
        "first": 1901,
    }
    raw = message(with_schema("c", FIELDS, after=row), 'topic = "o"\nvalue_column = "body"')
    assert raw.value == b"\xff"


def test_numbers_without_a_schema_keep_their_digits() -> None:
    """A number that a double cannot hold is text."""
    value = plain("c", after=ROW).replace(b'"0.00000000"', b"12345678901234567890.12")
    made = json.loads(message(value).value or b"")
    assert made["price"] == "12345678901234567890.12"


AVRO = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "int"},
                        {
                            "name": "day",
                            "type": ["null", {"type": "int", "connect.name": FIELDS[0]["name"]}],
                        },
                        {
                            "name": "price",
                            "type": {
                                "type": "bytes",
                                "logicalType": "decimal",
                                "precision": 20,
                                "scale": 8,
                                "connect.name": FIELDS[3]["name"],
                            },
                        },
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ],
}


def test_avro_of_a_registry_is_read() -> None:
    """Confluent's wire format; `after` refers to the record of `before` by its name."""
    out = BytesIO()
    after = {"id": 7, "day": 0, "price": Decimal("0.00000000")}
    event = {"before": None, "after": after, "op": "c"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), event)
    value = struct.pack(">bI", 0, 5) + out.getvalue()
    known = {5: {"schema": json.dumps(AVRO)}}
    made = message(value, schemas=known.get)
    assert json.loads(made.value or b"") == {"id": 7, "day": "1970-01-01", "price": "0.00000000"}
    unknown = decided(value)
    assert isinstance(unknown, Dead)
    assert "no schema 5" in unknown.detail


def test_a_registry_that_does_not_answer_makes_no_dead_letter() -> None:
    """The error reaches the relay, which tries again."""

    def ask(_number: int) -> None:
        raise RetriableError("the schema registry does not answer")

    with pytest.raises(RetriableError, match="does not answer"):
        decided(struct.pack(">bI", 0, 5) + b"x", schemas=ask)


OUTBOX = {
    "id": "e5",
    "aggregatetype": "order",
    "aggregateid": "c1",
    "type": "Placed",
    "payload": '{"item":"shirt"}',
}


def test_a_row_of_an_outbox_becomes_its_event() -> None:
    """Topic, key, payload and headers as Debezium's EventRouter makes them."""
    made = message(plain("c", after=OUTBOX), 'layout = "outbox"')
    assert (made.topic, made.key) == ("outbox.event.order", b"c1")
    assert made.value == b'{"item":"shirt"}'
    assert made.headers[:2] == [("id", b"e5"), ("eventType", b"Placed")]
    assert decided(plain("d", before=OUTBOX), 'layout = "outbox"') == Skip("operation")


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b'{"item":"shirt"}', b'{"item":"shirt"}'),
        (b"\xff\xfe", b"\xff\xfe"),
        (b'"{\\"item\\":1}"', b'{"item":1}'),
        (json.dumps({"schema": {"type": "string"}, "payload": "x"}).encode(), b"x"),
        (b'{"schema":1,"item":2}', b'{"schema":1,"item":2}'),
        (b'{"kind": "schema", "price": 1.10}', b'{"kind": "schema", "price": 1.10}'),
        (b'{"a":{"schema":"v2"},"n":0.1234567890123456789}',) * 2,
        (b'{"schema":"v2","payload":{"n":1.10}}',) * 2,
        (b'{"schema":',) * 2,
    ],
)
def test_what_the_event_router_wrote_is_sent_on(value: bytes, sent: bytes) -> None:
    """Without the frame of the JSON converter; reserved headers are left out."""
    headers = [("id", b"e5"), (TRANSACTION_ID, b"forged")]
    text = 'topic = "orders"\nlayout = "routed"'
    made = message(value, text, key=b'"c1"', headers=headers)
    assert (made.topic, made.key, made.value) == ("orders", b"c1", sent)
    assert made.headers[0] == ("id", b"e5")
    assert dict(made.headers)[TRANSACTION_ID] != b"forged"


@pytest.mark.parametrize(
    ("value", "text", "reason", "says"),
    [
        (b"\xff", "", DeadReason.INVALID, "cannot be decoded"),
        (b"[1]", "", DeadReason.INVALID, "no event of Debezium"),
        (b'{"id": 1}', "", DeadReason.INVALID, "no field op"),
        (b'{"op": []}', "", DeadReason.INVALID, "op is not text"),
        (b'{"op": "c", "after": {"id": 1e999999}}', "", DeadReason.INVALID, "more than 131,072"),
        (b"[" * 200_000, "", DeadReason.INVALID, "cannot be decoded"),
        (plain("c", after=None), "", DeadReason.INVALID, "without the row"),
        (plain("c", after=ROW), 'key_column = "gone"', DeadReason.INVALID, "no column gone"),
        (
            plain("u", after={**ROW, "item": "__debezium_unavailable_value"}),
            'operations = ["update"]',
            DeadReason.INVALID,
            "REPLICA IDENTITY FULL",
        ),
    ],
)
def test_a_poison_event_says_what_is_wrong(
    value: bytes, text: str, reason: DeadReason, says: str
) -> None:
    """It becomes a dead letter, and stops nobody."""
    found = decided(value, f'topic = "orders"\n{text}')
    assert isinstance(found, Dead)
    assert found.reason is reason
    assert says in found.detail


def test_internal_and_impossible_topics_are_refused() -> None:
    """A row cannot write into the installation's own topics."""
    text = 'topic = "{item}"'
    names = (
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", DeadReason.NOT_ALLOWED),
        ("__consumer_offsets", DeadReason.NOT_ALLOWED),
        ("no topic", DeadReason.INVALID),
        (None, DeadReason.INVALID),
    )
    for item, reason in names:
        found = decided(plain("c", after={**ROW, "item": item}), text)
        assert isinstance(found, Dead)
        assert found.reason is reason


def test_the_envelope_of_the_tests_is_debeziums() -> None:
    """The fields that Debezium 3 writes beside the row."""
    assert {"before", "after", "source", "op", "ts_ms", "transaction"} <= envelope("c").keys()


# --- the committed position of a relay, and the events that it holds -----------------------


def _event(offset: int, partition: int = 0, value: bytes = b"") -> Event:
    return Event(partition, offset, None, value, [], 0)


@given(st.sets(st.integers(0, 2**50)), st.integers(2**50 + 1, 2**62))
def test_a_position_is_read_as_it_was_committed(due: set[int], end: int) -> None:
    """Offset and metadata tell all of it, and the offset is the first that is still needed."""
    position = Position("AbC-_1", end, tuple(sorted(due)))
    assert position_of(position.offset, position.metadata) == position
    assert position.offset == min({*due, end})


def test_metadata_of_the_usual_cases_fit() -> None:
    """All events of a topic, or every tenth event, may be held up to the limit of their number."""
    alone = Position("x" * 22, 10**15, tuple(range(10**14, 10**14 + HELD_MAX)))
    tenth = Position("x" * 22, 10**15, tuple(range(10**14, 10**14 + 10 * HELD_MAX, 10)))
    assert max(len(alone.metadata), len(tenth.metadata)) < METADATA_CHARS_MAX


WHOLE = Position("id", 9, (3, 5)).metadata
MANY = b64encode(zlib.compress(b"1+2000000")).decode()


@pytest.mark.parametrize(
    "metadata",
    ["v1;3", "c1;id;9", "c1;id;9;!", WHOLE[:-8], WHOLE.replace("9", "x", 1), f"c1;id;9;{MANY}"],
)
def test_strange_metadata_are_an_error(metadata: str) -> None:
    """They are never taken for a position."""
    with pytest.raises(ValueError, match=r"metadata|invalid literal"):
        position_of(5, metadata)


def test_metadata_of_earlier_commits_have_no_id() -> None:
    """An operator, or another tool, may have committed an offset without metadata."""
    assert position_of(7, None) == position_of(7, "") == Position("", 7)


def test_a_topic_takes_its_events_in_order() -> None:
    """And is waited for until it has taken the last one."""
    held = Held()
    for offset, topic in enumerate("abab"):
        held.add(topic, _event(offset, partition=offset // 3))
    assert held.topics == ("a", "b")
    assert held.offsets() == {0: (0, 1, 2), 1: (3,)}
    held.were_passed = True
    assert [held.take("a").offset for _ in range(2)] == [0, 2]
    assert not held.holds("a")
    assert held.were_passed
    assert [held.take("b").offset for _ in range(2)] == [1, 3]
    assert (len(held), held.were_passed, held.is_full) == (0, False, False)


def test_bytes_are_limited_too() -> None:
    """Large events fill the memory before their number does."""
    held = Held()
    for offset in range(64):
        assert not held.is_full
        held.add("a", _event(offset, value=b"x" * 1024 * 1024))
    assert held.is_full


# --- mapping.toml: what is wrong is named, with what is allowed ----------------------------


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        ("", "topic", "the name of a topic"),
        ("topic = 3", "topic", "the name of a topic"),
        ('topic = "o"\nkey_colum = "id"', "key_colum", "did you mean key_column?"),
        ('topic = "o"\nkey_column = "a"\nkey_columns = ["b"]', "key_column, key_columns", "one of"),
        ('topic = "o"\nvalue_columns = []', "value_columns", "at least one"),
        ('topic = "o"\nvalue_columns = ["a", "a"]', "value_columns", "each once"),
        ('topic = "o"\noperations = ["upsert"]', "operations", "insert"),
        ('topic = "o"\nsnapshot = "no"', "snapshot", "true or false"),
        ('topic = "o"\ndeletes = "drop"', "deletes", "row, tombstone"),
        ('topic = "o"\nlayout = "flat"', "layout", "table, outbox, routed"),
        ('topic = "o"\nheaders = { RMQ_HALF = "id" }', "headers", "reserved"),
        ('topic = "o"\nwhere = { a = 1.5 }', "where", "whole number"),
        ('topic = "o"\nlayout = "routed"\nkey_column = "a"', "key_column", "no such field"),
        ('topic = "{a}"\nlayout = "routed"', "topic", "without columns"),
        ('layout = "outbox"\noperations = ["delete"]', "operations", "of an outbox"),
        ("topic =", "mapping", "TOML"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str, allowed: str) -> None:
    """The error names the field, its value, the file and what is allowed."""
    with pytest.raises(MappingError) as raised:
        parse_mapping(text, origin="mapping.toml")
    assert raised.value.field == field
    assert allowed in raised.value.allowed
    assert raised.value.origin == "mapping.toml"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """As is a file that is not UTF-8."""
    with pytest.raises(MappingError, match="readable file"):
        load_mapping(tmp_path / "none.toml")


def test_an_outbox_may_have_other_columns() -> None:
    """What the file says counts more than Debezium's defaults."""
    made = parse_mapping('layout = "outbox"\nkey_columns = ["a", "b"]', origin="mapping.toml")
    assert (made.key_column, made.key_columns) == ("", ("a", "b"))
    assert made.value_column == "payload"


def test_a_lost_position_names_the_partition_and_the_offset() -> None:
    """An alert can show where events are missing, without parsing the text."""
    error = PositionLostError("shop[2]: offset 7 is gone", topic="shop", partition=2, offset=7)
    assert isinstance(error, BridgeError)
    assert (error.topic, error.partition, error.offset) == ("shop", 2, 7)
    assert str(error).startswith("shop[2]: offset 7 is gone. Events may be missing")


WAITING = Message("orders", None, b"1", [])


@pytest.mark.parametrize(
    ("unavailable", "waited_s", "letters_fit", "expected"),
    [
        ("", 0.0, True, WAITING),
        ("", 11.0, False, WAITING),
        ("orders is away", 10.0, True, None),
        ("orders is away", 11.0, False, None),
        ("orders is away", 11.0, True, Dead(DeadReason.UNDELIVERABLE, "orders is away")),
    ],
)
def test_a_held_event_is_written_when_its_topic_is_back_or_its_time_is_over(
    unavailable: str, waited_s: float, letters_fit: bool, expected: object
) -> None:
    """A dead letter needs a topic of dead letters that takes it; until then the event waits."""
    made = decide_held(
        WAITING, unavailable, waited_s=waited_s, gone_s=10.0, letters_fit=letters_fit
    )
    assert made == expected

"""What each record says, on frames with the Kafka source's columns: decoded by the JVM alone."""

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from halfbridge.checker.core.events import HalfRead, append_ms_of
from halfbridge.serde import headers as names
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP, Codec
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import parse_half, user_bytes
from halfbridge.serde.limits import (
    IDENTITY_BYTES_MAX,
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    ORIGINAL_METADATA_BYTES_MAX,
)
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.spark_jobs.audit import facts as columns
from halfbridge.spark_jobs.audit.facts import FACTS, facts_of_halves, facts_of_ops, facts_of_reals
from halfbridge.spark_jobs.reading import wire
from halfbridge.spark_jobs.reading.topics import LOG_APPEND_TIME
from tests.kit.records import AN_OP
from tests.spark.marks import INTERPRETED
from tests.spark.tape import BORN_MS, GROUP, NAMES, ORDERS, Tape

pytestmark = INTERPRETED


BROKEN = bytes(10)
NOT_TEXT = b"\xff" * len(GROUP)
# The last two take five bytes: Java reads 0 and 3 instead.
BEYOND_32_BITS = (1 << 40, -(1 << 40), 1 << 32, (1 << 32) + 3)


def read(spark: SparkSession, tape: Tape) -> list[Row]:
    """Return all facts, in the order half, op, real, dead-letter topic and of offsets."""
    return tape.facts(spark).collect()


def test_contract(spark: SparkSession) -> None:
    """All four kinds of topics give the same columns, an empty topic too."""
    frame = Tape().facts(spark)
    assert dict(frame.dtypes) == {
        name: {"long": "bigint"}.get(kind, kind) for name, kind in FACTS.items()
    }
    assert frame.collect() == []


def test_schemas_are_those_of_the_codecs() -> None:
    """Every schema that serde reads is read here: a new version must not be forgotten."""
    codecs: list[tuple[Codec[Any], tuple[str, ...]]] = [
        (HALF_METADATA, wire.HALF_SCHEMAS),
        (OP, wire.OP_SCHEMAS),
    ]
    for codec, stems in codecs:
        assert len(codec._writers) == len(stems)


def test_every_field_of_half_op_real_and_dead_letter(spark: SparkSession) -> None:
    """Each says who and where; content is one hash, equal all the way."""
    tape = Tape()
    user = [("trace", b"\x00\xff"), ("trace", None), ("", b"")]
    half = tape.half(pair=1, user=user, real_partition=3, message_index=2, resume_count=1)
    copy = tape.put_back(half)
    tape.op(OpKind.COMMIT, half, half_offset=9, message_count=3)
    tape.real(half, partition=3)
    tape.dead(copy, DeadReason.EXTRA)
    original, again, op, real, letter = read(spark, tape)
    assert [row["record_type"] for row in (original, again, op, real, letter)] == [
        columns.IS_HALF, columns.IS_HALF, columns.IS_OP, columns.IS_REAL, columns.IS_DEAD_LETTER,
    ]  # fmt: skip
    assert {row["transaction_id"] for row in (original, again, op, real, letter)} == {half.txn}
    assert len({row["life_hash"] for row in (original, again, op, letter)}) == 1
    assert {row["pair"] for row in (original, again, op, letter)} == {1}
    assert {row["resume_count"] for row in (original, again, op, letter)} == {1}
    assert {row["message_index"] for row in (original, again, letter)} == {2}
    assert len({row["content_hash"] for row in (original, again, real, letter)}) == 1
    assert [(row["offset"], row["origin_offset"]) for row in (original, again)] == [(0, 0), (1, 0)]
    assert original["first_ms"] == again["first_ms"] == original["append_ms"]
    assert (original["requested_partition"], original["topic"]) == (3, ORDERS)
    assert (op["kind"], op["source"], op["op_half_offset"], op["message_count"]) == (
        "COMMIT",
        "PRODUCER",
        9,
        3,
    )
    assert (real["partition"], real["offset"], real["topic"], real["first_ms"]) == (
        3,
        0,
        ORDERS,
        BORN_MS,
    )
    assert (letter["kind"], letter["origin_offset"], letter["source"]) == ("EXTRA", 1, NAMES.half)


def test_append_times_are_those_of_the_ledger(spark: SparkSession) -> None:
    """A half, copy or op has what the ledger says; a writer's time is no append time."""
    tape = Tape()
    claims = (-1, 0, 5, tape.clock_ms + 10**9, 2**63 - 1, -(2**63))
    for kind in (LOG_APPEND_TIME, 0, -1):
        tape.timestamp_type = kind
        half = tape.half()
        for claimed_ms in claims:
            tape.half(half.txn, origin_offset=half.at, first_append_timestamp=claimed_ms)
        tape.half(first_append_timestamp=5)
        tape.op(OpKind.COMMIT, half)
    # Kafka's own numbers are one higher than Spark's.
    reads = [
        HalfRead(at, append_ms_of(kind + 1, round(time.timestamp() * 1000)), meta, "", 0, None)
        for (at, meta, *_), (*_, time, kind, _) in zip(
            tape.halves(), tape.read(NAMES.half), strict=True
        )
    ]
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert [(row["append_ms"], row["first_ms"]) for row in rows] == [
        (read.append_ms, read.first_append_ms) for read in reads
    ]
    ops = facts_of_ops(tape.frame(spark, NAMES.op)).collect()
    assert [row["append_ms"] >= 0 for row in ops] == [True, False, False]


def test_every_byte_counts(spark: SparkSession) -> None:
    """Null and empty, key and value, header names, order and repetition: no two are alike."""
    tape = Tape()
    variants: list[dict[str, Any]] = [
        {},
        {"key": None},
        {"key": b""},
        {"value": None},
        {"value": b""},
        {"key": b"value", "value": b"key"},
        {"key": b"", "value": None},
        {"key": None, "value": b""},
        {"user": [("a", b"b")]},
        {"user": [("b", b"a")]},
        {"user": [("a", None)]},
        {"user": [("a", b"")]},
        {"user": [("a", None), ("b", None)]},
        {"user": [("a", b"b"), ("a", b"b")]},
        {"user": [("ab", b"")]},
        {"user": [("", b"")]},
        {"user": [("", None)]},
        {"born_timestamp": BORN_MS + 1},
        {"real_topic": "order"},
    ]
    for given in variants:
        tape.half(**given)
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert len({row["content_hash"] for row in rows}) == len(variants)


def test_unreadable_halves_are_kept_with_the_reason(spark: SparkSession) -> None:
    """What serde refuses is refused here, for the same records: nothing is dropped."""
    good = tape_half()
    junk: list[tuple[list[tuple[str, bytes | None]] | None, str]] = [
        (None, wire.MISSING),
        ([("other", good)], wire.MISSING),
        ([(names.HALF, None)], wire.MISSING),
        ([(names.HALF, b"")], wire.NOT_OURS),
        ([(names.HALF, good[:9])], wire.NOT_OURS),
        ([(names.HALF, BROKEN + good[10:])], wire.NOT_OURS),
        ([(names.HALF, good[:2] + bytes(8) + good[10:])], wire.UNKNOWN_SCHEMA),
        ([(names.HALF, good[:-1])], wire.BROKEN),
        ([(names.HALF, good + b"\x00")], wire.BROKEN),
        ([(names.HALF, good[:10])], wire.BROKEN),
        ([(names.HALF, tape_half(transaction_id=""))], wire.BROKEN),
        ([(names.HALF, tape_half(producer_group=""))], wire.BROKEN),
        ([(names.HALF, tape_half(producer_group="RMQ_SYS_TRANS"))], wire.BROKEN),
        ([(names.HALF, tape_half(real_topic=""))], wire.BROKEN),
        ([(names.HALF, tape_half(message_index=-1))], wire.BROKEN),
        ([(names.HALF, good.replace(GROUP.encode(), NOT_TEXT))], wire.BROKEN),
        (
            [(names.HALF, tape_half(real_topic=GROUP).replace(GROUP.encode(), NOT_TEXT))],
            wire.BROKEN,
        ),
        *(
            ([(names.HALF, tape_half(**{name: number}))], wire.BROKEN)
            for name in ("resume_count", "message_index", "real_partition", "check_times")
            for number in BEYOND_32_BITS
        ),
        ([(names.HALF, tape_half(producer_group="g" * METADATA_BYTES_MAX))], wire.TOO_LONG),
        ([(names.CONTEXT, bytes(METADATA_BYTES_MAX + 1)), (names.HALF, good)], wire.TOO_LONG),
    ]
    tape = Tape()
    for headers, _ in junk:
        with pytest.raises(ValueError, match=r"."):
            parse_half(headers)
        tape.write(NAMES.half, 0, headers=headers)
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert [(row["record_type"], row["kind"]) for row in rows] == [
        (columns.IS_UNREADABLE_HALF, reason) for _, reason in junk
    ]
    assert {row["transaction_id"] for row in rows} == {None}


def test_flaws_of_halves(spark: SparkSession) -> None:
    """Two RMQ_HALF, or a reserved name among the user's headers; the last RMQ_HALF speaks."""
    tape = Tape()
    forged = tape_half(transaction_id="f" * 32)
    tape.half()
    tape.half(user=[(names.HALF, forged)])
    tape.half(user=[(names.TRANSACTION_ID, b"x")])
    tape.half(user=[(names.DEAD, b"x")])
    tape.half(user=[(names.CONTEXT, b"x")])
    tape.half(user=[(names.CONTEXT, b"x"), (names.CONTEXT, b"y")])
    tape.write(NAMES.half, 0, headers=[(names.HALF, forged), ("other", b"")])
    frame = tape.frame(spark, NAMES.half)
    rows = facts_of_halves(frame).collect()
    assert [row["is_flawed"] for row in rows] == [False, True, True, True, False, True, False]
    assert [row["is_flawed"] for row in rows] == [
        bool(parse_half(row[-1])[1]) for row in tape.all()
    ]
    assert [row["transaction_id"] for row in rows] == [f"{n:032x}" for n in range(1, 7)] + [
        "f" * 32
    ]


def test_a_context_is_not_delivered(spark: SparkSession) -> None:
    """What a sender leaves for its checker is no part of what must arrive."""
    tape = Tape()
    half = tape.half(user=[("trace", b"1"), (names.CONTEXT, b"x")])
    headers = names.real_headers([("trace", b"1")], half.txn, BORN_MS)
    tape.real(half, headers=headers)
    assert len({row["content_hash"] for row in read(spark, tape)}) == 1


def test_bytes_are_counted_as_by_the_daemon(spark: SparkSession) -> None:
    """Key, value and the user's headers in UTF-8; of a flawed record the internal ones too."""
    tape = Tape()
    tape.half(key=None, value=None)
    tape.half(user=[("trace", None), ("\u00e4\u00f6", b"\xff\xff")])
    tape.half(user=[(names.CONTEXT, b"not counted")])
    tape.half(user=[(names.HALF, tape_half()), ("n", b"")])
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    wanted = [
        user_bytes(key, value, headers, has_flaw=bool(parse_half(headers)[1]))
        for key, value, *_, headers in tape.all()
    ]
    assert [row["size_bytes"] for row in rows] == wanted


def test_the_longest_metadata_context_and_op(spark: SparkSession) -> None:
    """As many bytes as may be are read, one more makes a record unreadable."""
    tape = Tape()
    # The length of the topic's name takes a byte more.
    spare = ORIGINAL_METADATA_BYTES_MAX - len(tape_half(real_topic="t")) - 1
    for more in (0, 1):
        half = tape.half(real_topic="t" * (1 + spare + more), user=[(names.CONTEXT, bytes(4_000))])
        short = len(tape.rows[NAMES.half, 0][-1][-1][-1][1])
        assert short == ORIGINAL_METADATA_BYTES_MAX + more
        assert half.at == more
    spare = IDENTITY_BYTES_MAX - 32  # an id
    for more in (0, 1):
        tape.half(producer_group="g" * (spare + more))
    tape.half(user=[(names.CONTEXT, bytes(METADATA_BYTES_MAX))])
    op = tape.half()
    tape.op(OpKind.COMMIT, op)
    spare = OP_BYTES_MAX - len(tape.rows[NAMES.op, 0][-1][1]) - 1
    for more in (0, 1):
        tape.op(OpKind.COMMIT, op, actor=AN_OP.actor + "a" * (spare + more))
        assert len(tape.rows[NAMES.op, 0][-1][1]) == OP_BYTES_MAX + more
    rows = read(spark, tape)
    assert [row["record_type"] for row in rows] == [
        *(columns.IS_HALF, columns.IS_UNREADABLE_HALF, columns.IS_HALF, columns.IS_UNREADABLE_HALF),
        *(columns.IS_HALF, columns.IS_HALF),
        *(columns.IS_OP, columns.IS_OP, columns.IS_UNREADABLE_OP),
    ]


def test_unreadable_ops_and_dead_letters(spark: SparkSession) -> None:
    """They are facts of their own, a dead letter of something unreadable with what it is of.

    So is a mark, whatever its bytes: it says nothing of what the daemon did.
    """
    tape = Tape()
    half = tape.half()
    tape.write(NAMES.op, 0, value=None)
    tape.write(NAMES.op, 0, value=b"\xc3\x01junk")
    tape.write(NAMES.dead, 0, value=b"foreign")
    tape.write(NAMES.dead, 0, headers=[(names.DEAD, b"junk")])
    tape.dead(half, DeadReason.INVALID)
    letter = tape.rows[NAMES.dead, 0][-1][-1][-1]
    tape.write(NAMES.dead, 0, value=b"junk", headers=[letter])
    dead = DEAD_LETTER.decode(letter[1])
    of_change = dead._replace(reason=DeadReason.UNDELIVERABLE, source_topic="shop.orders")
    tape.write(NAMES.dead, 0, headers=[(names.DEAD, DEAD_LETTER.encode(of_change))])
    tape.write(NAMES.dead, 0, headers=[(names.DEAD_MARK, b"junk")])
    rows = read(spark, tape)[1:]
    assert [row["record_type"] for row in rows] == [
        *[columns.IS_UNREADABLE_OP] * 2,
        *[columns.IS_UNREADABLE_DEAD_LETTER] * 2,
        columns.IS_DEAD_LETTER,
        *[columns.IS_DEAD_LETTER_OF_UNREADABLE] * 2,
        columns.IS_MARK,
    ]
    assert (rows[-3]["source"], rows[-3]["pair"], rows[-3]["origin_offset"]) == (
        NAMES.half,
        0,
        half.at,
    )


def test_ops_that_the_daemon_refuses(spark: SparkSession) -> None:
    """A text that is none, in any field, and an int of more than 32 bits."""
    tape = Tape()
    half = tape.half(producer_group="others")
    for name in ("producer_group", "actor", "reason"):
        tape.op(OpKind.COMMIT, half, **{name: GROUP})
        data = tape.rows[NAMES.op, 0].pop()[1].replace(GROUP.encode(), NOT_TEXT)
        tape.write(NAMES.op, 0, value=data)
    for name in ("resume_count", "message_count", "check_number"):
        for number in BEYOND_32_BITS:
            tape.op(OpKind.COMMIT, half, **{name: number})
    values = [row[1] for row in tape.read(NAMES.op)]
    for data in values:
        with pytest.raises(DecodeError):
            OP.decode(data)
    rows = facts_of_ops(tape.frame(spark, NAMES.op)).collect()
    assert [row["kind"] for row in rows] == [wire.BROKEN] * len(values)


def test_foreign_real_records(spark: SparkSession) -> None:
    """Without an id, with one that is no text, or with a change's; the last id counts."""
    tape = Tape()
    changes = [(names.TRANSACTION_ID, b"change-0-0-7")]  # of a relay of changes
    for headers in (None, [], changes, [(names.TRANSACTION_ID, b"\xff")]):
        tape.write(ORDERS, 0, headers=headers)
    tape.write(ORDERS, 0, headers=names.real_headers([(names.TRANSACTION_ID, b"x")], "a1", 5))
    rows = facts_of_reals(tape.frame(spark, ORDERS)).collect()
    assert [row["record_type"] for row in rows] == [columns.IS_FOREIGN] * 4 + [columns.IS_REAL]
    assert rows[-1]["transaction_id"] == "a1"


def tape_half(**given: Any) -> bytes:
    """Return RMQ_HALF as the client writes it, but for what is given."""
    metadata = Tape().half().metadata._replace(producer_group=GROUP)
    return HALF_METADATA.encode(metadata._replace(**given))

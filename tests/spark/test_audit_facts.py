"""What each record says, on frames with the Kafka source's columns: decoded by the JVM alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from serde import headers as names
from serde.avro import HALF_METADATA, OP, Codec
from serde.headers import parse_half
from serde.records import DeadReason, OpKind
from spark_jobs import wire
from spark_jobs.audit import facts as columns
from spark_jobs.audit.facts import FACTS, facts_of_halves, facts_of_reals
from tests.spark.tape import BORN_MS, GROUP, NAMES, ORDERS, Tape

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("interpreted"),
]


BROKEN = bytes(10)


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
    assert [row["what"] for row in (original, again, op, real, letter)] == [
        columns.IS_HALF, columns.IS_HALF, columns.IS_OP, columns.IS_REAL, columns.IS_LETTER,
    ]  # fmt: skip
    assert {row["txn"] for row in (original, again, op, real, letter)} == {half.txn}
    assert len({row["ident"] for row in (original, again, op, letter)}) == 1
    assert {row["pair"] for row in (original, again, op, letter)} == {1}
    assert {row["resume"] for row in (original, again, op, letter)} == {1}
    assert {row["index"] for row in (original, again, letter)} == {2}
    assert len({row["hash"] for row in (original, again, real, letter)}) == 1
    assert [(row["at"], row["origin"]) for row in (original, again)] == [(0, 0), (1, 0)]
    assert original["first_ms"] == again["first_ms"] == original["ms"]
    assert (original["to_part"], original["topic"]) == (3, ORDERS)
    assert (op["kind"], op["source"], op["half_to"], op["count"]) == ("COMMIT", "PRODUCER", 9, 3)
    assert (real["part"], real["at"], real["topic"], real["first_ms"]) == (3, 0, ORDERS, BORN_MS)
    assert (letter["kind"], letter["origin"], letter["source"]) == ("EXTRA", 1, NAMES.half)


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
    assert len({row["hash"] for row in rows}) == len(variants)


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
        ([(names.HALF, tape_half(producer_group=""))], wire.BROKEN),
        ([(names.HALF, tape_half(real_topic=""))], wire.BROKEN),
        ([(names.HALF, tape_half(message_index=-1))], wire.BROKEN),
    ]
    tape = Tape()
    for headers, _ in junk:
        with pytest.raises(ValueError, match=r"."):
            parse_half(headers)
        tape.write(NAMES.half, 0, headers=headers)
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert [(row["what"], row["kind"]) for row in rows] == [
        (columns.IS_JUNK_HALF, reason) for _, reason in junk
    ]
    assert {row["txn"] for row in rows} == {None}


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
    assert [row["flaw"] for row in rows] == [False, True, True, True, False, True, False]
    assert [row["flaw"] for row in rows] == [bool(parse_half(row[-1])[1]) for row in tape.all()]
    assert [row["txn"] for row in rows] == [f"{n:032x}" for n in range(1, 7)] + ["f" * 32]


def test_a_context_is_not_delivered(spark: SparkSession) -> None:
    """What a sender leaves for its checker is no part of what must arrive."""
    tape = Tape()
    half = tape.half(user=[("trace", b"1"), (names.CONTEXT, b"x")])
    headers = names.real_headers([("trace", b"1")], half.txn, BORN_MS)
    tape.real(half, headers=headers)
    assert len({row["hash"] for row in read(spark, tape)}) == 1


def test_unreadable_ops_and_dead_letters(spark: SparkSession) -> None:
    """They are facts of their own, a dead letter of something unreadable with what it is of."""
    tape = Tape()
    half = tape.half()
    tape.write(NAMES.op, 0, value=None)
    tape.write(NAMES.op, 0, value=b"\xc3\x01junk")
    tape.write(NAMES.dead, 0, value=b"foreign")
    tape.write(NAMES.dead, 0, headers=[(names.DEAD, b"junk")])
    tape.dead(half, DeadReason.INVALID)
    letter = tape.rows[NAMES.dead, 0][-1][-1][-1]
    tape.write(NAMES.dead, 0, value=b"junk", headers=[letter])
    rows = read(spark, tape)[1:]
    assert [row["what"] for row in rows] == [
        columns.IS_JUNK_OP, columns.IS_JUNK_OP, columns.IS_JUNK_LETTER, columns.IS_JUNK_LETTER,
        columns.IS_LETTER, columns.IS_JUNK_COPY,
    ]  # fmt: skip
    assert (rows[-1]["source"], rows[-1]["pair"], rows[-1]["origin"]) == (NAMES.half, 0, half.at)


def test_foreign_real_records(spark: SparkSession) -> None:
    """Without an id, or with one that is no text: another producer's; the last id is ours."""
    tape = Tape()
    for headers in (None, [], [("trace", b"")], [(names.TRANSACTION_ID, b"\xff")]):
        tape.write(ORDERS, 0, headers=headers)
    tape.write(ORDERS, 0, headers=names.real_headers([(names.TRANSACTION_ID, b"x")], "a1", 5))
    rows = facts_of_reals(tape.frame(spark, ORDERS)).collect()
    assert [row["what"] for row in rows] == [columns.IS_FOREIGN] * 4 + [columns.IS_REAL]
    assert rows[-1]["txn"] == "a1"


def tape_half(**given: Any) -> bytes:
    """Return RMQ_HALF as the client writes it, but for what is given."""
    metadata = Tape().half().metadata._replace(producer_group=GROUP)
    return HALF_METADATA.encode(metadata._replace(**given))

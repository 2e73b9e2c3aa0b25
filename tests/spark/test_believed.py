"""Signed records in the facts of the audit, and in what waits for a decision."""

from pathlib import Path

from pyspark.sql import SparkSession

from halfbridge.serde.headers import CONTEXT, SIGN
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.serde.signatures import Signer
from halfbridge.serde.signing_keys import Role
from halfbridge.spark.transactions import transactions
from halfbridge.spark_jobs.audit.facts import (
    IS_DEAD_LETTER_OF_UNREADABLE,
    IS_HALF,
    IS_OP,
    IS_UNREADABLE_HALF,
    IS_UNREADABLE_OP,
    facts_of_dead_letters,
    facts_of_halves,
    facts_of_ops,
)
from halfbridge.spark_jobs.reading.decisions import SignatureJudge, signature_judge
from tests.kit.signing import a_ring, a_table, write_key_file
from tests.spark.marks import INTERPRETED
from tests.spark.tape import GROUP, NAMES, Tape

pytestmark = INTERPRETED

RING = a_ring()
JUDGE = SignatureJudge(RING, NAMES)


def sign_last(tape: Tape, topic: str, role: Role, pair: int = 0) -> None:
    """Sign the record that was written last, as `role` does."""
    rows = tape.rows[topic, pair]
    key, value, *middle, headers = rows[-1]
    signer, now_ms = Signer(RING, role, NAMES), tape.clock_ms
    if topic == NAMES.half:
        headers = signer.half(GROUP, pair, headers, key=key, value=value, now_ms=now_ms)
    else:
        headers = signer.op(GROUP, pair, key=key, value=value, now_ms=now_ms)
    rows[-1] = (key, value, *middle, headers)


def written() -> Tape:
    """Return signed and forged records: a copy and an op of a stranger's among them."""
    tape = Tape()
    half = tape.half(user=[(CONTEXT, b"context")])
    sign_last(tape, NAMES.half, Role.CLIENT)
    tape.put_back(half)
    sign_last(tape, NAMES.half, Role.DAEMON)
    tape.put_back(half)  # a stranger's
    tape.half()  # a stranger's
    tape.put_back(half)
    sign_last(tape, NAMES.half, Role.CLIENT)  # a client's, who may write no copy
    tape.op(OpKind.ROLLBACK, half)  # a stranger's
    tape.op(OpKind.COMMIT, half)
    sign_last(tape, NAMES.op, Role.CLIENT)
    return tape


def test_facts_are_as_the_daemon_judges(spark: SparkSession) -> None:
    """What is not believed is a fact about a record that cannot be read, with the reason."""
    tape = written()
    halves = facts_of_halves(tape.frame(spark, NAMES.half), JUDGE).orderBy("offset").collect()
    assert [row["record_type"] for row in halves] == [IS_HALF, IS_HALF, *[IS_UNREADABLE_HALF] * 3]
    assert ["unsigned" in (row["kind"] or "") for row in halves[2:]] == [True, True, False]
    assert not any(row["is_flawed"] for row in halves[:2])
    assert halves[0]["content_hash"] == halves[1]["content_hash"]
    ops = facts_of_ops(tape.frame(spark, NAMES.op), JUDGE).orderBy("offset").collect()
    assert [row["record_type"] for row in ops] == [IS_UNREADABLE_OP, IS_OP]
    assert ops[0]["transaction_id"] is None


def test_without_a_key_file_all_are_believed(spark: SparkSession) -> None:
    """As in a daemon without one."""
    tape = written()
    halves = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert {row["record_type"] for row in halves} == {IS_HALF}
    assert not any(row["is_flawed"] for row in halves)


def test_two_signatures_make_a_half_unreadable(spark: SparkSession) -> None:
    """As serde.headers has it, with a key file or without."""
    tape = Tape()
    tape.half(user=[(SIGN, b"a"), (SIGN, b"b")])
    tape.half(user=[(SIGN, b"x" * 257)])
    rows = facts_of_halves(tape.frame(spark, NAMES.half)).collect()
    assert [row["record_type"] for row in rows] == [IS_UNREADABLE_HALF] * 2


def test_a_letter_of_what_is_not_believed_is_one_of_an_unreadable_record(
    spark: SparkSession,
) -> None:
    """Its RMQ_HALF can be read, and says nothing of a transaction."""
    tape = Tape()
    half = tape.half()
    tape.dead(half, DeadReason.INVALID)
    (row,) = facts_of_dead_letters(tape.frame(spark, NAMES.dead), JUDGE).collect()
    assert (row["record_type"], row["transaction_id"]) == (IS_DEAD_LETTER_OF_UNREADABLE, None)


def test_a_forged_decision_leaves_a_transaction_undecided(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`halfbridge spark stuck --key-file` shows it."""
    judge = signature_judge(write_key_file(tmp_path / "keys.toml", a_table()), NAMES)
    assert signature_judge(None, NAMES) is None
    tape = Tape()
    half = tape.half()
    sign_last(tape, NAMES.half, Role.CLIENT)
    tape.op(OpKind.COMMIT, half)
    halves, ops = tape.frame(spark, NAMES.half), tape.frame(spark, NAMES.op)
    nothing = halves.limit(0)
    found = transactions(halves=halves, ops=ops, letters=nothing, reals=nothing, judge=judge)
    assert [(row["transaction_id"], row["state"]) for row in found.collect()] == [
        (half.txn, "undecided")
    ]

"""Real records of other installations are theirs to judge; what nobody knows is a phantom."""

from typing import Any

from pyspark.sql import SparkSession

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import SKEW_MS, OtherInstallations
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.reading.offsets import Range
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, Half, Tape

pytestmark = INTERPRETED

THEIRS = TopicNames("eu.").half


def found(
    spark: SparkSession, tape: Tape, known: list[str], start_ms: int = -1
) -> tuple[dict[str, str], Any]:
    """Return transaction -> kind of finding where another installation knows these, and the audit.

    Args:
        spark: A session.
        tape: The records of the logs.
        known: Transaction ids in the other's half topic.
        start_ms: Append time of the first record left there; -1: all are.
    """

    def find_others() -> OtherInstallations:
        ranges = {THEIRS: {0: Range(0 if start_ms < 0 else 1, 9, start_ms)}}
        return OtherInstallations(
            ranges, spark.createDataFrame([(each,) for each in known], "transaction_id string")
        )

    with audited(tape.facts(spark), tape.bounds(), find_others=find_others) as audit:
        return {row["transaction_id"]: row["kind"] for row in audit.findings.collect()}, audit


def delivered_by_others(tape: Tape) -> Half:
    """Write a delivery of a transaction that this half topic never had."""
    half = tape.half(born_timestamp=tape.clock_ms)
    tape.drop(NAMES.half, 0, half.at)
    tape.real(half)
    return half


def test_what_another_installation_knows_is_no_finding(spark: SparkSession) -> None:
    """Its transactions are counted apart; one that nobody knows, and one of both, are phantoms."""
    tape = Tape()
    own = tape.delivered()
    theirs = [delivered_by_others(tape) for _ in range(2)]
    nobodys = delivered_by_others(tape)
    of_both = tape.half()
    tape.real(of_both)
    kinds, audit = found(spark, tape, [of_both.txn, own.txn, *(each.txn for each in theirs)])
    assert kinds == {nobodys.txn: "phantom", of_both.txn: "phantom"}
    assert audit.of_others == 2
    assert audit.states == {"delivered": 1, "undecided": 1}
    assert list(audit.bounds.snapshot.others) == [THEIRS]


def test_only_others_beside_plain_transactions(spark: SparkSession) -> None:
    """Then nothing is looked at for longer."""
    tape = Tape()
    tape.delivered()
    theirs = delivered_by_others(tape)
    kinds, audit = found(spark, tape, [theirs.txn])
    assert (kinds, audit.examined, audit.of_others) == ({}, 0, 1)


def test_nobody_is_asked_where_all_is_known(spark: SparkSession) -> None:
    """The half topics of others may be large, or not for this user to read."""
    tape = Tape()
    tape.delivered()
    asked = False

    def find_others() -> OtherInstallations:
        nonlocal asked
        asked = True
        return OtherInstallations()

    with audited(tape.facts(spark), tape.bounds(), find_others=find_others) as audit:
        assert audit.findings.collect() == []
    assert not asked


def test_others_half_messages_that_may_be_deleted(spark: SparkSession) -> None:
    """A delivery as old as what their half topic has lost is expired, a later one a phantom."""
    tape = Tape()
    old = delivered_by_others(tape)
    start_ms = tape.clock_ms
    tape.clock_ms += SKEW_MS + 1_000
    new = delivered_by_others(tape)
    kinds, _ = found(spark, tape, [], start_ms)
    assert kinds == {old.txn: "expired", new.txn: "phantom"}

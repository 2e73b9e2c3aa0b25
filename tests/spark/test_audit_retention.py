"""What retention has deleted is expired, a class of its own; what it cannot have, is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serde.records import OpKind
from spark_jobs.audit.bounds import SKEW_MS, Bounds
from spark_jobs.audit.run import audited
from tests.spark.tape import NAMES, ORDERS, Half, Tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("interpreted"),
]


def found(spark: SparkSession, tape: Tape) -> set[tuple[str, str]]:
    """Return kind and transaction of each finding."""
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        rows = audit.findings.collect()
    return {(row["kind"], row["transaction_id"]) for row in rows}


def undelivered(tape: Tape) -> Half:
    """Write a transaction whose delivery is not there."""
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    return half


def test_deliveries_below_the_start(spark: SparkSession) -> None:
    """Whose record may have been deleted is expired, by whatever clock; much later ones are lost.

    The daemon stamps deliveries with the time of their own partition pair, and pairs differ.
    """
    tape = Tape()
    deleted = tape.delivered()
    behind = undelivered(tape)
    tape.delivered()
    tape.clock_ms += SKEW_MS - 1_000
    beside = undelivered(tape)
    tape.clock_ms += 2_000
    lost = undelivered(tape)
    tape.delete_before(ORDERS, 0, 1)
    assert found(spark, tape) == {
        ("expired", deleted.txn),
        ("expired", behind.txn),
        ("expired", beside.txn),
        ("lost", lost.txn),
    }


def test_halves_below_the_start(spark: SparkSession) -> None:
    """A delivery that outlived its half message is expired, also when its client's clock is fast.

    One of a transaction that began long after the start is a phantom.
    """
    tape = Tape()
    deleted = tape.half(born_timestamp=tape.clock_ms + 1_000)
    tape.op(OpKind.COMMIT, deleted)
    tape.delivered()
    tape.real(deleted)
    tape.clock_ms += 2 * SKEW_MS
    forged = tape.half(born_timestamp=tape.clock_ms)
    tape.drop(NAMES.half, 0, forged.at)
    tape.real(forged)
    tape.delete_before(NAMES.half, 0, 1)
    assert found(spark, tape) == {("expired", deleted.txn), ("phantom", forged.txn)}


def test_a_birth_before_all_times(spark: SparkSession) -> None:
    """A forged time of birth hides nothing where nothing was deleted."""
    tape = Tape()
    forged = tape.half(born_timestamp=-(2**62))
    tape.drop(NAMES.half, 0, forged.at)
    tape.real(forged)
    tape.delivered()
    assert found(spark, tape) == {("phantom", forged.txn)}

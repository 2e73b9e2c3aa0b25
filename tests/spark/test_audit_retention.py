"""What retention has deleted is expired, a class of its own; what it cannot have, is not."""

from pyspark.sql import SparkSession

from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.spark_jobs.audit.bounds import SKEW_MS, Bounds
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.reading.take_snapshot import first_times
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, ORDERS, Half, Tape

pytestmark = INTERPRETED


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


def equals(tape: Tape, *parts: int) -> list[Half]:
    """Write a transaction of as many equal messages, bound for these partitions (-1: any)."""
    txn = tape.new_id()
    halves = [
        tape.half(txn, message_index=index, real_partition=part) for index, part in enumerate(parts)
    ]
    tape.op(OpKind.COMMIT, halves[-1])
    return halves


def test_an_equal_that_is_not_to_be_seen_leaves_the_others_right(spark: SparkSession) -> None:
    """What was deleted may be the one that is missing here or there, or the one before."""
    tape = Tape()
    tape.real(tape.half(), 0)
    both = equals(tape, 0, 1)
    tape.real(both[0], 0)
    tape.real(both[1], 1)
    tape.rows[ORDERS, 0].clear()
    tape.cut[ORDERS, 0] = 2
    txn = tape.new_id()
    again = [
        tape.half(txn, message_index=index, value=value)
        for index, value in enumerate((b"x", b"y", b"x"))
    ]
    tape.op(OpKind.COMMIT, again[2])
    tape.real(again[1], 1)
    tape.real(again[2], 1)
    assert found(spark, tape) == {("expired", both[0].txn), ("expired", txn)}


def test_equals_that_were_bound_differently_say_nothing_of_order(spark: SparkSession) -> None:
    """One asked for the partition that the other came to by its key."""
    tape = Tape()
    for each in equals(tape, 0, -1):
        tape.real(each)
    assert found(spark, tape) == set()


def test_equals_of_which_some_half_messages_were_deleted(spark: SparkSession) -> None:
    """Each delivery may be of a message that is gone: none is a duplicate."""
    tape = Tape()
    halves = equals(tape, -1, -1, -1)
    for each in halves:
        tape.real(each)
    tape.delete_before(NAMES.half, 0, 1)
    assert found(spark, tape) == {("expired", halves[0].txn)}


def test_an_op_that_names_what_was_never_there_is_applied_all_the_same(spark: SparkSession) -> None:
    """The daemon waits a while and delivers what is there; what it did not deliver is lost."""
    tape = Tape()
    half = tape.half()
    tape.op(OpKind.COMMIT, half, half_offset=99)
    assert found(spark, tape) == {("lost", half.txn)}


def test_a_writers_clock_does_not_tell_when_a_log_begins(spark: SparkSession) -> None:
    """Append times do; of what the daemon writes its records, whatever their topic's type is."""
    tape = Tape()
    with tape.create_time(days=-365):
        old = tape.delivered()
        tape.write(ORDERS, 1)
        tape.write(NAMES.dead, 0)
    begins_ms = tape.clock_ms
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    with tape.create_time():
        tape.real(half, 1)
        tape.half(pair=1)
        tape.dead(half, DeadReason.NOT_ALLOWED)
    rows = tape.frame(spark, NAMES.half, NAMES.op, NAMES.dead, ORDERS)
    times = first_times(rows, [ORDERS])
    assert times == {
        (NAMES.half, 0): begins_ms + 1,
        (NAMES.op, 0): begins_ms + 2,
        (ORDERS, 0): old.ms + 2,
        (ORDERS, 1): begins_ms + 3,
        (NAMES.dead, 0): begins_ms + 5,
    }

"""Who waits for a decision, on frames with the Kafka source's columns."""

from pyspark.sql import DataFrame, SparkSession

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark.stuck import report_of, text_lines
from halfbridge.spark.transactions import transactions
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, Tape

pytestmark = INTERPRETED
MINUTE_MS = 60_000
AGE_MS = 3_600_000


def found(spark: SparkSession, tape: Tape) -> DataFrame:
    """Return the transactions of a tape, as the command reads them: without deliveries."""
    nothing = tape.frame(spark)
    halves, ops = tape.frame(spark, NAMES.half), tape.frame(spark, NAMES.op)
    return transactions(halves=halves, ops=ops, letters=nothing, reals=nothing)


def waiting(spark: SparkSession, tape: Tape) -> list[str]:
    """Return the ids of those that wait."""
    rows = found(spark, tape).where("state = 'undecided'").collect()
    return sorted(row["transaction_id"] for row in rows)


def test_a_decision_ends_the_waiting(spark: SparkSession) -> None:
    """Any valid one; not an answer, another group's, a producer's discard, or one too early."""
    tape = Tape()
    decided = [tape.half() for _ in range(3)]
    tape.op(OpKind.COMMIT, decided[0])
    tape.op(OpKind.ROLLBACK, decided[1])
    tape.op(OpKind.DISCARD, decided[2], source=OpSource.CHECKER, reason="CHECK_TIMES")
    open_ = [tape.half() for _ in range(5)]
    tape.op(OpKind.UNKNOWN, open_[0])
    tape.op(OpKind.COMMIT, open_[1], producer_group="others")
    tape.op(OpKind.DISCARD, open_[2])
    tape.op(OpKind.DISCARD, open_[3], source=OpSource.CHECKER, age_ms=AGE_MS)
    tape.op(OpKind.COMMIT, open_[4], resume_count=1)
    orphan = tape.half()
    tape.drop(NAMES.half, 0, orphan.at)
    tape.op(OpKind.UNKNOWN, orphan)
    assert waiting(spark, tape) == sorted(half.txn for half in open_)


def test_a_discard_that_proves_the_age(spark: SparkSession) -> None:
    """It decides once its append time is so far behind that of the first half message."""
    tape = Tape()
    old = tape.half()
    tape.clock_ms += MINUTE_MS
    young = tape.half()
    tape.clock_ms = old.ms + AGE_MS - 1
    for half in (old, young):
        tape.op(OpKind.DISCARD, half, source=OpSource.CHECKER, age_ms=AGE_MS)
    assert waiting(spark, tape) == [young.txn]


def test_a_discard_for_age_without_append_times_decides_nothing(spark: SparkSession) -> None:
    """Whatever the writers' clocks say, and a copy that says -1; as for the daemon."""
    tape = Tape()
    with tape.create_time(days=-4):
        first = tape.half()
        second = tape.half(message_index=0)
    tape.half(second.txn, message_index=1)
    third, fourth, fifth, sixth = (tape.half() for _ in range(4))
    for half, claimed_ms in ((fourth, -1), (fifth, -(2**63))):
        copy = {"check_times": 1, "first_append_timestamp": claimed_ms}
        tape.half(half.txn, origin_offset=half.at, **copy)
    with tape.create_time(days=4):
        tape.half(sixth.txn, message_index=1)
        by_age = {"source": OpSource.CHECKER, "reason": "AGE"}
        tape.op(OpKind.DISCARD, third, age_ms=AGE_MS, **by_age)
    for half in (first, second, fourth, fifth, sixth):
        tape.op(OpKind.DISCARD, half, age_ms=1, **by_age)
    wanted = sorted(half.txn for half in (first, second, third, fourth, fifth))
    assert waiting(spark, tape) == wanted


def test_age_counts_from_the_original(spark: SparkSession) -> None:
    """A copy is as old as what it is a copy of, also when only the copy is left."""
    tape = Tape()
    half = tape.half(message_index=0)
    tape.half(half.txn, message_index=1)
    tape.clock_ms += MINUTE_MS
    tape.put_back(tape.put_back(half))
    tape.drop(NAMES.half, 0, half.at)
    report = report_of(found(spark, tape), now_ms=tape.clock_ms, older_than_ms=0, top=1)
    (oldest,) = report["oldest"]
    assert oldest["first_append_ms"] == half.ms
    assert oldest["age_ms"] == tape.clock_ms - half.ms
    assert (oldest["checks"], oldest["half_offset"]) == (2, 1)
    assert report["groups"][0]["messages"] == 2


def test_report_by_group_and_topic(spark: SparkSession) -> None:
    """Counts, oldest age, answers and a histogram; the young ones count as undecided only."""
    tape = Tape()
    first = tape.half(producer_group="a", real_topic="x")
    tape.put_back(first)
    tape.clock_ms += 5 * MINUTE_MS
    second = tape.half(producer_group="a", real_topic="x")
    tape.half(second.txn, message_index=1, producer_group="a", real_topic="y")
    tape.half(producer_group="b", real_topic="x")
    tape.clock_ms += 30 * MINUTE_MS
    tape.half(producer_group="b", real_topic="x")
    report = report_of(
        found(spark, tape), now_ms=tape.clock_ms, older_than_ms=10 * MINUTE_MS, top=1
    )
    assert (report["stuck"], report["undecided"]) == (3, 4)
    a, b = report["groups"]
    assert (a["producer_group"], a["real_topic"]) == ("a", "x")
    assert (a["transactions"], a["messages"], a["checks_max"]) == (2, 3, 1)
    assert a["oldest_ms"] == tape.clock_ms - first.ms
    assert {name: count for name, count in a["ages"].items() if count} == {"<1h": 2}
    assert (b["producer_group"], b["transactions"]) == ("b", 1)
    (oldest,) = report["oldest"]
    assert (oldest["transaction_id"], oldest["half_offset"]) == (first.txn, 0)
    lines = list(text_lines(report))
    assert lines[-1] == "3 of 4 undecided are older than 10.0 m"
    assert "a -> x: 2 transactions, 3 messages, oldest 35.0 m" in lines[0]
    assert report["groups_omitted"] == 0
    cut = report_of(
        found(spark, tape),
        now_ms=tape.clock_ms,
        older_than_ms=10 * MINUTE_MS,
        top=0,
        groups_max=1,
    )
    assert [each["producer_group"] for each in cut["groups"]] == ["a"]
    assert (cut["stuck"], cut["groups_omitted"]) == (3, 1)
    assert "and 1 more pairs of group and topic" in list(text_lines(cut))

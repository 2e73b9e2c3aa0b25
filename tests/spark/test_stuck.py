"""Who waits for a decision, on frames with the Kafka source's columns."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.stuck.command import (
    BIN_NAMES,
    aged,
    by_group_and_topic,
    report_of,
    text_lines,
)
from halfbridge.spark_jobs.stuck.table import (
    GENERATIONS_KEPT,
    STATE,
    Table,
    keep_up,
    kept,
    merged,
    state_of_halves,
    state_of_ops,
    undecided,
)
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, PAIRS, Tape

pytestmark = INTERPRETED
MINUTE_MS = 60_000
KEEP_MS = 10_000
AGE_MS = 3_600_000


def states(spark: SparkSession, tape: Tape) -> DataFrame:
    """Return what each record of a tape tells."""
    halves = state_of_halves(tape.frame(spark, NAMES.half))
    return halves.unionAll(state_of_ops(tape.frame(spark, NAMES.op)))


def waiting(spark: SparkSession, tape: Tape) -> list[str]:
    """Return the ids of those that wait."""
    rows = undecided(merged(states(spark, tape))).collect()
    return sorted(row["transaction_id"] for row in rows)


def random_tape(seed: int) -> Tape:
    """Return some transactions in all states, their records interleaved."""
    rng, tape = random.Random(seed), Tape()
    halves = [tape.half(pair=rng.randrange(PAIRS)) for _ in range(60)]
    for half in rng.sample(halves, 40):
        kind = rng.choice(list(OpKind))
        source = rng.choice((OpSource.CHECKER, OpSource.PRODUCER))
        tape.op(kind, half, source=source, age_ms=rng.choice((AGE_MS, 0)))
        if rng.random() < 0.3:
            tape.put_back(half)
    return tape


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


def test_a_clock_that_is_ahead_lets_no_decision_be_forgotten(spark: SparkSession) -> None:
    """How far a pair was read is told by append times alone."""
    tape = Tape()
    tape.op(OpKind.COMMIT, tape.half())
    with tape.create_time(days=4):
        tape.half()
    assert kept(merged(states(spark, tape)), keep_ms=KEEP_MS).count() == 2


def test_age_counts_from_the_original(spark: SparkSession) -> None:
    """A copy is as old as what it is a copy of, also when only the copy is left."""
    tape = Tape()
    half = tape.half(message_index=0)
    tape.half(half.txn, message_index=1)
    tape.clock_ms += MINUTE_MS
    tape.put_back(tape.put_back(half))
    tape.drop(NAMES.half, 0, half.at)
    (row,) = merged(states(spark, tape)).collect()
    assert row["first_ms"] == half.ms
    assert (row["checks"], row["index_last"], row["half_offset"]) == (2, 1, 1)


def test_the_columns_of_the_report_are_named(spark: SparkSession) -> None:
    """Columns of the state that the report does not use are not carried along."""
    tape = Tape()
    tape.half(producer_group="a", real_topic="x")
    old = aged(undecided(merged(states(spark, tape))), tape.clock_ms)
    wanted = "transaction_id resume_count producer_group real_topic first_ms age_ms checks"
    assert old.columns == [*wanted.split(), "index_last", "pair", "half_offset", "bin"]
    found = by_group_and_topic(old).columns
    counts = ["transactions", "messages", "oldest_ms", "checks_max"]
    assert found == ["producer_group", "real_topic", *counts, *BIN_NAMES]


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
    waits = undecided(merged(states(spark, tape)))
    report = report_of(waits, now_ms=tape.clock_ms, older_than_ms=10 * MINUTE_MS, top=1)
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


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.spark_long)])
def test_batches_in_any_order_and_repeated(spark: SparkSession, seed: int) -> None:
    """The state is that of all records at once, however they were cut and merged."""
    tape = random_tape(seed)
    records = states(spark, tape).collect()
    schema = ", ".join(f"{name} {kind}" for name, kind in STATE.items())

    def frame(rows: list[Any]) -> DataFrame:
        return spark.createDataFrame(rows, schema)

    rng = random.Random(seed)
    rng.shuffle(records)
    third = len(records) // 3
    parts = [frame(records[:third]), frame(records[third : 2 * third]), frame(records[third:])]
    state = parts[0]
    for part in parts:
        state = frame(merged(state, part).collect())
    wanted = merged(states(spark, tape)).collect()
    assert sorted(map(tuple, state.collect())) == sorted(tuple(each) for each in wanted)
    assert len(wanted) == 60


def test_old_decisions_are_forgotten_and_nothing_else(spark: SparkSession) -> None:
    """What waits stays for ever; a decision stays for a while, for a copy may come behind it."""
    tape = Tape()
    old = tape.half()
    tape.op(OpKind.COMMIT, old)
    waits = tape.half()
    tape.clock_ms += KEEP_MS
    recent = tape.half()
    tape.op(OpKind.COMMIT, recent)
    state = merged(states(spark, tape))
    rows = kept(state, keep_ms=KEEP_MS).collect()
    assert sorted(row["transaction_id"] for row in rows) == sorted((waits.txn, recent.txn))


def test_a_decision_waits_for_its_half(spark: SparkSession, tmp_path: Path) -> None:
    """However far the op topic was read ahead of the half topic."""
    tape = Tape()
    tape.op(OpKind.COMMIT, tape.half())
    tape.clock_ms += 10 * KEEP_MS
    tape.op(OpKind.COMMIT, tape.half())
    tape.op(OpKind.COMMIT, tape.half(pair=1))
    table = Table(spark, str(tmp_path / "table"))
    merge = keep_up(table, keep_ms=KEEP_MS)
    merge(state_of_ops(tape.frame(spark, NAMES.op)), 0)
    halves = tape.frame(spark, NAMES.half)
    merge(state_of_halves(halves.where("partition = 1")), 1)
    merge(state_of_halves(halves.where("partition = 0")), 2)
    assert undecided(table.read()).collect() == []
    assert table.read().count() == 2


def test_table_of_generations(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that is repeated makes the same generation; a half-written one is not read."""
    tape = random_tape(3)
    table = Table(spark, str(tmp_path / "table"))
    assert table.read().collect() == []
    merge = keep_up(table, keep_ms=10**12)
    halves = state_of_halves(tape.frame(spark, NAMES.half))
    ops = state_of_ops(tape.frame(spark, NAMES.op))
    merge(ops, 0)
    merge(halves, 1)
    wanted = sorted(map(tuple, table.read().collect()))
    assert wanted == sorted(map(tuple, merged(halves, ops).collect()))
    merge(halves, 1)
    assert sorted(map(tuple, table.read().collect())) == wanted
    for number in range(2, 6):
        merge(halves.limit(0), number)
    assert table.generations() == [5 - GENERATIONS_KEPT + n for n in range(GENERATIONS_KEPT + 1)]
    (tmp_path / "table" / "generation=5" / "_SUCCESS").unlink()
    assert table.generations()[-1] == 4
    assert sorted(map(tuple, table.read().collect())) == wanted

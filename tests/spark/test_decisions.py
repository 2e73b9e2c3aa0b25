"""The protocol's table as columns says what the table says."""

from itertools import product

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde import protocol
from halfbridge.serde.protocol import STATE_AFTER, Effect, State, effect_of
from halfbridge.serde.records import Op, OpKind, OpSource, new_op
from halfbridge.spark_jobs.reading import decisions

pytestmark = pytest.mark.spark
AGES_MS = (-1, 0, 100)
# Append time of an op whose first half was appended at 1,000; -1: it has none.
TIMES_MS = (-1, 1_099, 1_100)


def _op(kind: OpKind, source: OpSource, age_ms: int = 0) -> Op:
    return new_op(
        transaction_id="t",
        timestamp=0,
        half_offset=0,
        producer_group="g",
        kind=kind,
        message_count=1,
        source=source,
        actor="",
        age_ms=age_ms,
    )


def test_every_kind_and_source_as_the_table_has_it(spark: SparkSession) -> None:
    """All kinds, sources and decisions that stand: who decides, and what is a conflict."""
    decided = [
        (kind, STATE_AFTER[effect_of(_op(kind, OpSource.CHECKER), State.UNDECIDED)])
        for kind in OpKind
        if kind is not OpKind.UNKNOWN
    ]
    cases = list(product(OpKind, OpSource, decided))
    rows = [(kind.value, source.value, stands.value) for kind, source, (stands, _) in cases]
    frame = spark.createDataFrame(rows, "kind string, source string, stands string")
    kind, source, stands = F.col("kind"), F.col("source"), F.col("stands")
    decides = decisions.decides(kind, source)
    conflict = decides & decisions.contradicts(stands, kind, source)
    found = frame.select(decides.alias("decides"), conflict.alias("conflict")).collect()
    wanted = [
        (
            protocol.decision_of(_op(kind, source)) is not None,
            effect_of(_op(kind, source), state) is Effect.CONFLICT,
        )
        for kind, source, (_, state) in cases
    ]
    assert [tuple(row) for row in found] == wanted


def test_a_gap_is_none_as_the_protocol_has_it(spark: SparkSession) -> None:
    """All sources, lives and counts: whether a COMMIT delivers what is there."""
    cases = list(product(OpSource, (0, 1, 2), (-1, 0, 2)))
    frame = spark.createDataFrame(
        [(source.value, *numbers) for source, *numbers in cases],
        "source string, resume int, count int",
    )
    covers = decisions.covers_what_is_there(F.col("resume"), F.col("source"), F.col("count"))
    found = [row["covers"] for row in frame.select(covers.alias("covers")).collect()]
    assert found == [
        protocol.covers_what_is_there(
            _op(OpKind.COMMIT, source)._replace(resume_count=resume, message_count=count)
        )
        for source, resume, count in cases
    ]
    assert sum(found) == 2


def test_ages_are_proven_as_the_table_has_it(spark: SparkSession) -> None:
    """All kinds, sources, claims and append times: whether an op may take effect."""
    cases = list(product(OpKind, OpSource, AGES_MS, TIMES_MS, (-1, 1_000)))
    rows = [(kind.value, source.value, *numbers) for kind, source, *numbers in cases]
    schema = "kind string, source string, age long, op_ms long, first_ms long"
    frame = spark.createDataFrame(rows, schema)
    claimed_ms = decisions.claimed_age_ms(F.col("kind"), F.col("source"), F.col("age"))
    proven = decisions.proves_its_age(claimed_ms, F.col("op_ms"), F.col("first_ms"))
    found = [row["proven"] for row in frame.select(proven.alias("proven")).collect()]
    assert found == [
        protocol.proves_its_age(_op(kind, source, age_ms), op_ms, first_ms)
        for kind, source, age_ms, op_ms, first_ms in cases
    ]

"""Finds the decision of each transaction, and what must become of each of its messages.

The rules are those of the daemon (DESIGN.md, The rules), applied to the log alone: the first
decision wins, a COMMIT delivers all messages that it covers or none, and a DISCARD is valid from
the daemon or an operator only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.audit.facts import IS_HALF, IS_OP
from halfbridge.spark_jobs.audit.times import born_ms
from halfbridge.spark_jobs.reading.decisions import (
    contradicts,
    covers_what_is_there,
    decides,
    proves_its_age,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

    # Computes a frame that is used more than once, and returns it without its lineage.
    Compute = Callable[[DataFrame], DataFrame]

# What must become of a message.
DELIVER = "deliver"
BURY = "bury"  # the message must become a dead letter
NOTHING = "nothing"
LATE = "late"  # stored after the decision: a dead letter if the daemon still knew the decision
OPEN = "open"  # the decision names half offsets beyond the snapshot: any result is right
UNKNOWN = "unknown"  # the decision or some messages of the transaction were deleted

LIFE = ("txn", "ident")
# What is known of a message, beside its key, its place and its content.
DETAILS = (
    *("topic", "to_part", "flaw", "ms", "pair", "resume"),
    "first_ms",  # the earliest first append time of the message's records
    *("op_at", "kind", "half_to", "count", "op_ms"),  # of the first decision; null: undecided
    "is_gap",  # a message is missing
    "must",
)
# Contract of `_ruled`: one row for each message. FACTS says what its other columns are.
RULED_MESSAGES = (*LIFE, "index", "origin", "at", "hash", *DETAILS)


@dataclass(frozen=True, slots=True)
class Ruled:
    """The decisions of the op topic, joined with the half messages.

    Attributes:
        messages: RULED_MESSAGES, one row for each message.
        conflicts: Ops that contradict the first decision: txn, ident, resume, pair, op_at, kind,
            stands (the kind of the first decision).
        orphans: Deciding ops of transactions without a half message: txn, ident, resume, pair,
            op_at, op_ms, kind, source, half_to; is_foreign: a half message of another group, pair
            or resume count has that id.
    """

    messages: DataFrame
    conflicts: DataFrame
    orphans: DataFrame


def rule(facts: DataFrame, bounds: Bounds, compute: Compute) -> Ruled:
    """Return the ruling on `facts`; `compute` computes the frames that are used more than once."""
    told = _messages(facts)
    messages = told.drop("original", "copied_ms")
    lives = (
        told.groupBy(*LIFE)
        .agg(F.min("original").alias("original"), F.min("copied_ms").alias("copied_ms"))
        .select(*LIFE, born_ms(F.col("original.first_ms"), F.col("copied_ms")).alias("born_ms"))
    )
    ops = _deciding(facts)
    is_proven = proves_its_age(F.col("age_ms"), F.col("op_ms"), F.col("born_ms"))
    known = compute(ops.join(lives, list(LIFE), how="inner").where(is_proven))
    first = known.groupBy(*LIFE).agg(
        F.min(F.struct("op_at", "kind", "half_to", "count", "op_ms", "source")).alias("decision")
    )
    return Ruled(
        messages=compute(_ruled(messages.join(first, list(LIFE), how="left"), bounds)),
        conflicts=_conflicts(known, first),
        orphans=_orphans(ops, lives),
    )


def _messages(facts: DataFrame) -> DataFrame:
    """Return one row for each message: its first original, or a copy if the original was deleted.

    Further columns: first_ms, the earliest first append time of the message's records; original,
    offset and append time of the first original; copied_ms, the first append time that the copies
    carry.
    """
    is_original = F.col("at") == F.col("origin")
    stands = F.min(
        F.struct(
            "origin", "at", "hash", "topic", "to_part", "flaw", "bytes", "ms", "pair", "resume"
        )
    )
    return (
        facts.where(F.col("what") == IS_HALF)
        .groupBy(*LIFE, "index")
        .agg(
            stands.alias("half"),
            F.min("first_ms").alias("first_ms"),
            F.min(F.when(is_original, F.struct("at", "first_ms"))).alias("original"),
            F.min(F.when(~is_original, F.col("first_ms"))).alias("copied_ms"),
        )
        .select(*LIFE, "index", "half.*", "first_ms", "original", "copied_ms")
    )


def _deciding(facts: DataFrame) -> DataFrame:
    is_decision = (F.col("what") == IS_OP) & decides(F.col("kind"), F.col("source"))
    return facts.where(is_decision).select(
        *LIFE,
        "resume",
        "pair",
        F.col("at").alias("op_at"),
        F.col("ms").alias("op_ms"),
        "kind",
        "source",
        "age_ms",
        "half_to",
        "count",
    )


def _conflicts(known: DataFrame, first: DataFrame) -> DataFrame:
    stands = F.col("decision")
    is_conflict = contradicts(stands["kind"], F.col("kind"), F.col("source"))
    return (
        known.join(first, list(LIFE), how="inner")
        .where((F.col("op_at") > stands["op_at"]) & is_conflict)
        .select(*LIFE, "resume", "pair", "op_at", "kind", stands["kind"].alias("stands"))
    )


def _orphans(ops: DataFrame, lives: DataFrame) -> DataFrame:
    others = lives.select("txn").distinct().withColumn("is_foreign", F.lit(col=True))
    columns = (*LIFE, "resume", "pair", "op_at", "op_ms", "kind", "source", "half_to")
    return (
        ops.join(lives, list(LIFE), how="left_anti")
        .join(others, "txn", how="left")
        .select(*columns, F.coalesce("is_foreign", F.lit(col=False)).alias("is_foreign"))
    )


def _ruled(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return RULED_MESSAGES: adds the decision, and what must become of each message."""
    life = Window.partitionBy(*LIFE)
    decided = messages.select("*", "decision.*").drop("decision")
    committed = F.col("kind") == OpKind.COMMIT.value
    is_late = F.col("origin") > F.col("half_to")
    is_extra = (F.col("count") >= 0) & (F.col("index") >= F.col("count"))
    meant = decided.withColumn("is_late", is_late).withColumn(
        "is_meant", F.coalesce(committed & ~is_late & ~is_extra, F.lit(col=False))
    )
    meant_here = F.count_if("is_meant").over(life)
    summed = (
        meant.withColumn("meant_here", meant_here)
        .withColumn("meant_last", F.max(F.when(F.col("is_meant"), F.col("index"))).over(life))
        .withColumn("has_flaw", F.max(F.col("is_meant") & F.col("flaw")).over(life))
        .withColumn("bytes_meant", F.sum(F.when(F.col("is_meant"), F.col("bytes"))).over(life))
        .withColumn("index_first", F.min("index").over(life))
    )
    wanted = F.when(F.col("count") >= 0, F.col("count")).otherwise(F.col("meant_here"))
    is_partial = covers_what_is_there(F.col("resume"), F.col("source"), F.col("count"))
    is_short = (F.col("meant_here") != wanted) | (F.col("meant_last") != wanted - 1)
    is_gap = is_short & ~is_partial
    judged = summed.withColumn("is_gap", F.coalesce(F.col("is_meant") & is_gap, F.lit(col=False)))
    must = (
        # The first messages of the transaction were deleted, so it is not known completely.
        F.when(bounds.is_half_cut(F.col("pair")) & (F.col("index_first") > 0), UNKNOWN)
        .when(
            F.col("kind").isNull() & bounds.op_may_be_deleted(F.col("pair"), F.col("first_ms")),
            UNKNOWN,
        )
        .when(F.col("kind").isNull() | (F.col("kind") == OpKind.ROLLBACK.value), NOTHING)
        .when(F.col("is_late"), LATE)
        # The daemon applies, after a while, an op that names a half offset that does not exist.
        .when(
            bounds.is_ahead(F.col("pair"), F.col("half_to"))
            & ~bounds.is_applied(F.col("pair"), F.col("op_at"), F.col("op_ms")),
            OPEN,
        )
        .when(~F.col("is_meant") | F.col("is_gap") | F.col("has_flaw"), BURY)
        .when(F.col("bytes_meant") > TRANSACTION_BYTES_MAX, BURY)
        .otherwise(DELIVER)
    )
    return judged.withColumn("must", must).select(*RULED_MESSAGES)

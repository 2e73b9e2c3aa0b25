"""Turns verdicts into findings: one row for each violation and each notice."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.audit.facts import IS_JUNK_COPY, IS_JUNK_HALF, IS_JUNK_OP
from halfbridge.spark_jobs.audit.finding import (
    CONFLICT,
    DUPLICATE,
    GONE,
    LOST,
    PHANTOM,
    REORDERED,
    REPEATED,
    findings_of,
    tell,
)
from halfbridge.spark_jobs.audit.message_findings import of_single_messages, of_whole_lives

if TYPE_CHECKING:
    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.matching import Matched
    from halfbridge.spark_jobs.audit.ruling import Ruled
    from halfbridge.spark_jobs.audit.verdict import Verdicts


def all_findings(ruling: Ruled, matched: Matched, verdicts: Verdicts, bounds: Bounds) -> DataFrame:
    """Return all FINDINGS about transactions, without those about the order of transactions."""
    names = bounds.snapshot.names
    messages = verdicts.messages
    frames = [
        of_whole_lives(messages, bounds),
        of_single_messages(messages, names.dead),
        _too_many(verdicts.surplus, bounds),
        _stray(matched.stray, bounds),
        _conflicts(ruling.conflicts, names.op),
        _orphans(ruling.orphans, verdicts.surplus, bounds),
    ]
    return reduce(DataFrame.unionAll, frames)


def out_of_order(lanes: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about messages with the same key, delivered in another order than decided.

    Args:
        lanes: The delivered messages: sift's LANES.
        bounds: The bounds of the snapshot.
    """
    lane = Window.partitionBy("lane", "pair").orderBy("real_at")
    found = (
        lanes.where(F.col("lane").isNotNull())
        .withColumn("before", F.lag("op_at").over(lane))
        .where(F.col("op_at") < F.col("before"))
    )
    return findings_of(
        found,
        kind=F.lit(REORDERED),
        topic=bounds.topic_name(F.col("topic_number")),
        partition=F.col("real_part"),
        offset=F.col("real_at"),
        pair=F.col("pair"),
        op_offset=F.col("op_at"),
        detail=F.concat(
            F.lit("decided at op offset "),
            F.col("op_at"),
            F.lit(", but delivered after a message with the same key that was decided at "),
            F.col("before"),
        ),
    )


def junk_without_letter(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about unreadable records without a dead letter."""
    names = bounds.snapshot.names
    is_junk = F.col("what").isin(IS_JUNK_HALF, IS_JUNK_OP)
    source = F.when(F.col("what") == IS_JUNK_HALF, names.half).otherwise(names.op)
    junk = facts.where(is_junk).select(
        source.alias("source"), F.col("pair"), F.col("at").alias("origin"), "ms", "kind", "what"
    )
    kept = facts.where(F.col("what") == IS_JUNK_COPY).select("source", "pair", "origin")
    missing = junk.join(kept, ["source", "pair", "origin"], how="left_anti").where(
        bounds.is_passed(F.col("what") == IS_JUNK_OP, F.col("pair"), F.col("origin"), F.col("ms"))
        & ~bounds.letters_may_hide()
        & ~bounds.letter_may_be_deleted(F.col("ms"))
    )
    return findings_of(
        missing,
        kind=F.lit(LOST),
        topic=F.col("source"),
        partition=F.col("pair"),
        offset=F.col("origin"),
        pair=F.col("pair"),
        detail=F.concat(F.lit("unreadable ("), F.col("kind"), F.lit("), without a dead letter")),
    )


def _too_many(surplus: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about real records that belong to no message."""
    oldest_ms = F.least("ms", F.coalesce("first_ms", "ms"))
    may_be_deleted = bounds.half_may_be_deleted(oldest_ms)
    others_may_be_deleted = bounds.other_half_may_be_deleted(oldest_ms)
    again = REPEATED if bounds.may_repeat else DUPLICATE
    told = (
        F.when(F.col("is_blind"), tell(GONE, F.lit("messages of the transaction were deleted")))
        .when(F.col("is_known"), tell(again, F.lit("the message was delivered before")))
        .when(may_be_deleted, tell(GONE, F.lit("the half message was deleted")))
        .when(F.col("has_life"), tell(PHANTOM, F.lit("differs from all of its messages")))
        .when(
            others_may_be_deleted,
            tell(GONE, F.lit("the half message of another installation may have been deleted")),
        )
        .otherwise(tell(PHANTOM, F.lit("no half topic has the transaction")))
    )
    return findings_of(
        surplus.withColumn("told", told),
        kind=F.col("told.kind"),
        topic=F.col("topic"),
        partition=F.col("part"),
        offset=F.col("at"),
        detail=F.col("told.detail"),
    )


def _stray(stray: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about dead letters whose message is not in the half topic."""
    deleted = bounds.is_below_halves(F.col("pair"), F.col("origin"))
    told = F.when(deleted, tell(GONE, F.lit("its half message was deleted"))).otherwise(
        tell(
            PHANTOM,
            F.lit("a dead letter without a half message in the half topic: "),
            F.col("reason"),
        )
    )
    return findings_of(
        stray.withColumn("told", told),
        kind=F.col("told.kind"),
        topic=F.lit(bounds.snapshot.names.dead),
        partition=F.col("part"),
        offset=F.col("at"),
        pair=F.col("pair"),
        half_offset=F.col("origin"),
        detail=F.col("told.detail"),
    )


def _conflicts(conflicts: DataFrame, op_topic: str) -> DataFrame:
    return findings_of(
        conflicts,
        kind=F.lit(CONFLICT),
        topic=F.lit(op_topic),
        partition=F.col("pair"),
        offset=F.col("op_at"),
        pair=F.col("pair"),
        op_offset=F.col("op_at"),
        detail=F.concat(F.col("kind"), F.lit(" came after "), F.col("stands")),
    )


def _orphans(orphans: DataFrame, surplus: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about COMMITs whose half message is not in the half topic.

    Where such a transaction was delivered, the delivery is the finding, and not the COMMIT.
    """
    by_producer = F.col("source") == OpSource.PRODUCER.value
    # A producer names the offset of its last half message; the answer to a check a later offset.
    gone = bounds.is_below_halves(F.col("pair"), F.col("half_to")) | (
        ~by_producer & bounds.is_half_cut(F.col("pair"))
    )
    told = F.when(gone, tell(GONE, F.lit("its half message was deleted"))).otherwise(
        tell(LOST, F.lit("committed, but without a half message in the half topic"))
    )
    found = orphans.where(
        (F.col("kind") == OpKind.COMMIT.value)
        & ~F.col("is_foreign")
        & ~bounds.is_ahead(F.col("pair"), F.col("half_to"))
    ).join(surplus.select("txn").distinct(), "txn", how="left_anti")
    return findings_of(
        found.withColumn("told", told),
        kind=F.col("told.kind"),
        topic=F.lit(bounds.snapshot.names.op),
        partition=F.col("pair"),
        offset=F.col("op_at"),
        pair=F.col("pair"),
        op_offset=F.col("op_at"),
        detail=F.col("told.detail"),
    )

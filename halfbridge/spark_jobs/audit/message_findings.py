"""Findings about messages that are in the half topic, and about whole transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.audit.finding import (
    DUPLICATE,
    GONE,
    LATE,
    LOST,
    MISMATCH,
    OVERDUE,
    PHANTOM,
    REORDERED,
    TORN,
    findings_of,
    tell,
)
from halfbridge.spark_jobs.audit.ruling import BURY, DELIVER, LIFE
from halfbridge.spark_jobs.audit.sift import DELIVERED, EXPIRED, PENDING, REFUSED
from halfbridge.spark_jobs.audit.verdict import (
    ALTERED,
    BOTH,
    CAME_LATE,
    MISSING,
    UNCALLED,
    WRONGLY_BURIED,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

_SHOWN = 10  # message indices that one detail lists


def of_whole_lives(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about whole transactions: lost, torn, late, overdue, expired."""
    came, must = F.col("came"), F.col("must")
    missing, arrived = came == MISSING, came.isin(DELIVERED, ALTERED, BOTH)
    refused = (came == REFUSED) & (must == DELIVER)
    in_part = (came == UNCALLED) & (must == BURY) & F.col("is_gap")
    overdue = (came == PENDING) & bounds.is_overdue(F.col("op_ms"))
    first = F.struct("index", "at")
    sums = messages.groupBy(*LIFE).agg(
        F.first("resume").alias("resume"),
        F.first("pair").alias("pair"),
        F.first("op_at").alias("op_at"),
        F.count(F.lit(1)).alias("all"),
        F.count_if(missing & (must == DELIVER)).alias("missing"),
        F.count_if(missing & (must == BURY)).alias("unburied"),
        F.count_if(arrived).alias("arrived"),
        F.count_if(refused).alias("refused"),
        F.count_if(in_part).alias("in_part"),
        F.count_if(came == CAME_LATE).alias("late"),
        F.count_if(overdue).alias("overdue"),
        F.count_if(came == EXPIRED).alias("expired"),
        F.min(F.when(missing | in_part, first)).alias("bad"),
        F.min(first).alias("any"),
        F.sort_array(F.collect_list(F.when(missing | in_part, F.col("index")))).alias("indices"),
    )
    is_torn = (F.col("arrived") > 0) & (F.col("missing") + F.col("refused") > 0)
    is_torn = is_torn | ((F.col("refused") > 0) & (F.col("missing") > 0)) | (F.col("in_part") > 0)
    shown = F.concat_ws(", ", F.slice("indices", 1, _SHOWN).cast("array<string>"))
    of_all = F.concat(shown, F.lit(" of "), F.col("all"))
    kinds = F.array_compact(
        F.array(
            F.when(
                is_torn,
                tell(
                    TORN, F.lit("not all or none: missing, refused or delivered in part: "), of_all
                ),
            ).when(
                F.col("missing") > 0,
                tell(LOST, F.lit("committed, but not delivered: messages "), of_all),
            ),
            F.when(
                F.col("unburied") > 0,
                tell(LOST, F.lit("no dead letter of messages "), of_all),
            ),
            F.when(
                F.col("late") > 0,
                tell(LATE, F.lit("messages after the decision: "), F.col("late").cast("string")),
            ),
            F.when(
                F.col("overdue") > 0,
                tell(OVERDUE, F.lit("the daemon has not applied the decision yet")),
            ),
            F.when(
                F.col("expired") > 0, tell(GONE, F.lit("records of the transaction were deleted"))
            ),
        )
    )
    told = sums.withColumn("told", F.explode(kinds))
    return findings_of(
        told,
        kind=F.col("told.kind"),
        topic=F.lit(bounds.snapshot.names.half),
        partition=F.col("pair"),
        offset=F.coalesce("bad.at", "any.at"),
        pair=F.col("pair"),
        half_offset=F.coalesce("bad.at", "any.at"),
        op_offset=F.col("op_at"),
        detail=F.col("told.detail"),
    )


def of_single_messages(messages: DataFrame, dead_topic: str) -> DataFrame:
    """Return FINDINGS about single deliveries and dead letters."""
    told = F.array_compact(F.array(*_of_a_delivery(), *_of_a_letter(dead_topic)))
    found = messages.withColumn("told", F.explode(told))
    return findings_of(
        found,
        kind=F.col("told.kind"),
        topic=F.col("told.topic"),
        partition=F.col("told.part"),
        offset=F.col("told.at"),
        pair=F.col("pair"),
        half_offset=F.col("at"),
        op_offset=F.col("op_at"),
        detail=F.col("told.detail"),
    )


def _of_a_delivery() -> list[Column]:
    came, must = F.col("came"), F.col("must")
    stands = F.lit("undecided")
    for each in OpKind:  # `lower` would load the case tables of all scripts first, for 2 s
        stands = F.when(F.col("kind") == each.value, each.value.lower()).otherwise(stands)
    to_part, index = F.col("to_part"), F.col("index")
    is_bound = (to_part >= 0) & F.col("is_seen")
    is_elsewhere = is_bound & (to_part != F.col("real_part")) & (must == DELIVER)

    def told(kind: str, *parts: Column) -> Column:
        place = {
            "topic": F.coalesce("real_topic", "topic"),
            "part": F.coalesce("real_part", "other_part"),
            "at": F.coalesce("real_at", "other_at"),
        }
        return tell(kind, *parts, **place)

    return [
        F.when(came == BOTH, told(DUPLICATE, F.lit("both delivered and a dead letter"))),
        F.when(
            (came == UNCALLED) & ~F.col("is_gap"),
            told(PHANTOM, F.lit("delivered, but it must not be; decision: "), stands),
        ),
        F.when(
            came == ALTERED, told(MISMATCH, F.lit("the real record differs from the half message"))
        ),
        F.when(
            is_elsewhere,
            told(MISMATCH, F.lit("in another partition than the half message asks for: "), to_part),
        ),
        F.when(
            (index < F.col("before")) & (came == DELIVERED),
            told(REORDERED, F.lit("message "), index, F.lit(" behind "), F.col("before")),
        ),
    ]


def _of_a_letter(dead_topic: str) -> list[Column]:
    is_undue, must_arrive = F.col("came") == WRONGLY_BURIED, F.col("must") == DELIVER
    reason = F.col("letter.reason")

    def told(kind: str, *parts: Column, letter: str = "letter") -> Column:
        place = {"part": F.col(f"{letter}.part"), "at": F.col(f"{letter}.at")}
        return tell(kind, *parts, topic=F.lit(dead_topic), **place)

    return [
        F.when(
            is_undue & must_arrive,
            told(LOST, F.lit("committed and complete, but a dead letter: "), reason),
        ),
        F.when(
            is_undue & ~must_arrive,
            told(PHANTOM, F.lit("a dead letter that the decision does not call for: "), reason),
        ),
        F.when(
            F.col("letters") > 1,
            told(DUPLICATE, F.lit("more than one dead letter"), letter="letter_last"),
        ),
        F.when(
            ~F.col("is_letter_like"),
            told(MISMATCH, F.lit("the dead letter differs from the half message")),
        ),
    ]

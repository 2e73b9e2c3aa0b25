"""Turns verdicts into findings: one row for each violation and each notice.

There are findings about messages that are in the half topic, about whole transactions, and about
records without a half message. KINDS has all kinds of findings, FINDINGS the columns of one.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.audit.facts import IS_JUNK_COPY, IS_JUNK_HALF, IS_JUNK_OP
from halfbridge.spark_jobs.audit.ruling import DEAD_LETTER, DELIVER, LIFE
from halfbridge.spark_jobs.audit.verdict import (
    ALTERED,
    BOTH,
    CAME_LATE,
    DELIVERED,
    EXPIRED,
    MISSING,
    PENDING,
    REFUSED,
    UNCALLED,
    WRONGLY_DEAD_LETTERED,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.ruling import Matched, Ruled
    from halfbridge.spark_jobs.audit.verdict import Verdicts


def all_findings(ruling: Ruled, matched: Matched, verdicts: Verdicts, bounds: Bounds) -> DataFrame:
    """Return all FINDINGS about transactions, without those about the order of transactions."""
    names = bounds.snapshot.names
    messages = verdicts.messages
    frames = [
        findings_of_lives(messages, bounds),
        findings_of_messages(messages, names.dead),
        _too_many(verdicts.surplus, bounds),
        _stray(matched.stray, bounds),
        _conflicts(ruling.conflicts, names.op),
        _orphans(ruling.orphans, verdicts.surplus, bounds),
    ]
    return reduce(DataFrame.unionAll, frames)


def out_of_order(lanes: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about messages with the same key, delivered in another order than decided.

    `lanes` are the delivered messages: sift's LANES.
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
    finding = (
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
        surplus.withColumn("finding", finding),
        kind=F.col("finding.kind"),
        topic=F.col("topic"),
        partition=F.col("part"),
        offset=F.col("at"),
        detail=F.col("finding.detail"),
    )


def _stray(stray: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about dead letters whose message is not in the half topic."""
    deleted = bounds.is_below_halves(F.col("pair"), F.col("origin"))
    finding = F.when(deleted, tell(GONE, F.lit("its half message was deleted"))).otherwise(
        tell(
            PHANTOM,
            F.lit("a dead letter without a half message in the half topic: "),
            F.col("reason"),
        )
    )
    return findings_of(
        stray.withColumn("finding", finding),
        kind=F.col("finding.kind"),
        topic=F.lit(bounds.snapshot.names.dead),
        partition=F.col("part"),
        offset=F.col("at"),
        pair=F.col("pair"),
        half_offset=F.col("origin"),
        detail=F.col("finding.detail"),
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
        detail=F.concat(F.col("kind"), F.lit(" came after "), F.col("first_kind")),
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
    finding = F.when(gone, tell(GONE, F.lit("its half message was deleted"))).otherwise(
        tell(LOST, F.lit("committed, but without a half message in the half topic"))
    )
    found = orphans.where(
        (F.col("kind") == OpKind.COMMIT.value)
        & ~F.col("is_foreign")
        & ~bounds.is_ahead(F.col("pair"), F.col("half_to"))
    ).join(surplus.select("txn").distinct(), "txn", how="left_anti")
    return findings_of(
        found.withColumn("finding", finding),
        kind=F.col("finding.kind"),
        topic=F.lit(bounds.snapshot.names.op),
        partition=F.col("pair"),
        offset=F.col("op_at"),
        pair=F.col("pair"),
        op_offset=F.col("op_at"),
        detail=F.col("finding.detail"),
    )


_SHOWN = 10  # message indices that one detail lists


def findings_of_lives(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about whole transactions: lost, torn, late, overdue, expired."""
    came, must = F.col("came"), F.col("must")
    missing, arrived = came == MISSING, came.isin(DELIVERED, ALTERED, BOTH)
    refused = (came == REFUSED) & (must == DELIVER)
    in_part = (came == UNCALLED) & (must == DEAD_LETTER) & F.col("is_gap")
    overdue = (came == PENDING) & bounds.is_overdue(F.col("op_ms"))
    first = F.struct("index", "at")
    sums = messages.groupBy(*LIFE).agg(
        F.first("resume").alias("resume"),
        F.first("pair").alias("pair"),
        F.first("op_at").alias("op_at"),
        F.count(F.lit(1)).alias("all"),
        F.count_if(missing & (must == DELIVER)).alias("missing"),
        F.count_if(missing & (must == DEAD_LETTER)).alias("not_dead_lettered"),
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
                F.col("not_dead_lettered") > 0,
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
    found = sums.withColumn("finding", F.explode(kinds))
    return findings_of(
        found,
        kind=F.col("finding.kind"),
        topic=F.lit(bounds.snapshot.names.half),
        partition=F.col("pair"),
        offset=F.coalesce("bad.at", "any.at"),
        pair=F.col("pair"),
        half_offset=F.coalesce("bad.at", "any.at"),
        op_offset=F.col("op_at"),
        detail=F.col("finding.detail"),
    )


def findings_of_messages(messages: DataFrame, dead_topic: str) -> DataFrame:
    """Return FINDINGS about single deliveries and dead letters."""
    kinds = F.array_compact(F.array(*_of_a_delivery(), *_of_a_letter(dead_topic)))
    found = messages.withColumn("finding", F.explode(kinds))
    return findings_of(
        found,
        kind=F.col("finding.kind"),
        topic=F.col("finding.topic"),
        partition=F.col("finding.part"),
        offset=F.col("finding.at"),
        pair=F.col("pair"),
        half_offset=F.col("at"),
        op_offset=F.col("op_at"),
        detail=F.col("finding.detail"),
    )


def _of_a_delivery() -> list[Column]:
    came, must = F.col("came"), F.col("must")
    decision = F.lit("undecided")
    for each in OpKind:  # `lower` would load the case tables of all scripts first, for 2 s
        decision = F.when(F.col("kind") == each.value, each.value.lower()).otherwise(decision)
    to_part, index = F.col("to_part"), F.col("index")
    is_bound = (to_part >= 0) & F.col("is_seen")
    is_elsewhere = is_bound & (to_part != F.col("real_part")) & (must == DELIVER)

    def finding(kind: str, *parts: Column) -> Column:
        place = {
            "topic": F.coalesce("real_topic", "topic"),
            "part": F.coalesce("real_part", "other_part"),
            "at": F.coalesce("real_at", "other_at"),
        }
        return tell(kind, *parts, **place)

    return [
        F.when(came == BOTH, finding(DUPLICATE, F.lit("both delivered and a dead letter"))),
        F.when(
            (came == UNCALLED) & ~F.col("is_gap"),
            finding(PHANTOM, F.lit("delivered, but it must not be; decision: "), decision),
        ),
        F.when(
            came == ALTERED,
            finding(MISMATCH, F.lit("the real record differs from the half message")),
        ),
        F.when(
            is_elsewhere,
            finding(
                MISMATCH, F.lit("in another partition than the half message asks for: "), to_part
            ),
        ),
        F.when(
            (index < F.col("before")) & (came == DELIVERED),
            finding(REORDERED, F.lit("message "), index, F.lit(" behind "), F.col("before")),
        ),
    ]


def _of_a_letter(dead_topic: str) -> list[Column]:
    is_undue, must_arrive = F.col("came") == WRONGLY_DEAD_LETTERED, F.col("must") == DELIVER
    reason = F.col("letter.reason")

    def finding(kind: str, *parts: Column, letter: str = "letter") -> Column:
        place = {"part": F.col(f"{letter}.part"), "at": F.col(f"{letter}.at")}
        return tell(kind, *parts, topic=F.lit(dead_topic), **place)

    return [
        F.when(
            is_undue & must_arrive,
            finding(LOST, F.lit("committed and complete, but a dead letter: "), reason),
        ),
        F.when(
            is_undue & ~must_arrive,
            finding(PHANTOM, F.lit("a dead letter that the decision does not call for: "), reason),
        ),
        F.when(
            F.col("letters") > 1,
            finding(DUPLICATE, F.lit("more than one dead letter"), letter="letter_last"),
        ),
        F.when(
            ~F.col("is_letter_like"),
            finding(MISMATCH, F.lit("the dead letter differs from the half message")),
        ),
    ]


# Violations: the conservation law is broken.
LOST = "lost"
TORN = "torn"
PHANTOM = "phantom"
DUPLICATE = "duplicate"
MISMATCH = "mismatch"
REORDERED = "reordered"
CONFLICT = "conflict"
VIOLATIONS = (LOST, TORN, PHANTOM, DUPLICATE, MISMATCH, REORDERED, CONFLICT)
# Notices: the conservation law holds.
LATE = "late"
OVERDUE = "overdue"
GONE = "expired"
REPEATED = "repeated"
NOTICES = (LATE, OVERDUE, GONE, REPEATED)
# Columns of every frame of findings.
FINDINGS = {
    "kind": "string",
    "transaction_id": "string",
    "resume_count": "int",
    "topic": "string",  # with partition and offset: the record that shows the finding
    "partition": "int",
    "offset": "long",
    "pair": "int",  # half and op partition
    "half_offset": "long",
    "op_offset": "long",
    "detail": "string",
}


def findings_of(frame: DataFrame, **given: Column) -> DataFrame:
    """Return FINDINGS from `given`, and from txn and resume of `frame`; other columns are null."""
    columns = {
        "transaction_id": F.col("txn") if "txn" in frame.columns else F.lit(None),
        "resume_count": F.col("resume") if "resume" in frame.columns else F.lit(None),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FINDINGS.items())
    )


def tell(kind: str, *parts: Column, **place: Column) -> Column:
    """Return a struct of kind, detail (the concatenated parts) and the columns of `place`."""
    detail = F.concat(*(part.cast("string") for part in parts)).alias("detail")
    where = (column.alias(name) for name, column in place.items())
    return F.struct(F.lit(kind).alias("kind"), detail, *where)

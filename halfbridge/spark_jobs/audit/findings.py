"""Turns verdicts into findings: one row for each violation and each notice.

There are findings about messages that are in the half topic, about whole transactions, and about
records without a half message. KINDS has all kinds of findings, FINDINGS the columns of one.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.audit.facts import (
    IS_DEAD_LETTER_OF_UNREADABLE,
    IS_UNREADABLE_HALF,
    IS_UNREADABLE_OP,
)
from halfbridge.spark_jobs.audit.ruling import DEAD_LETTER, DELIVER, LIFE
from halfbridge.spark_jobs.audit.sift import DELIVERED
from halfbridge.spark_jobs.audit.verdict import (
    ALTERED,
    BOTH,
    EXPIRED,
    MISSING,
    PENDING,
    REFUSED,
    STORED_LATE,
    UNEXPECTED,
    WRONGLY_DEAD_LETTERED,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.matching import Matched
    from halfbridge.spark_jobs.audit.ruling import Ruled
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


def out_of_order(reordered: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about the rows of `order.reordered`."""
    return findings_of(
        reordered,
        kind=F.lit(REORDERED),
        topic=bounds.topic_name(F.col("topic_number")),
        partition=F.col("real_partition"),
        offset=F.col("real_offset"),
        detail=F.concat(
            F.lit("decided at op offset "),
            F.col("op_offset"),
            F.lit(", but delivered after a message with the same key that was decided at "),
            F.col("op_offset_before"),
        ),
    )


def unreadable_without_dead_letter(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about unreadable records without a dead letter."""
    names = bounds.snapshot.names
    is_unreadable = F.col("record_type").isin(IS_UNREADABLE_HALF, IS_UNREADABLE_OP)
    source = F.when(F.col("record_type") == IS_UNREADABLE_HALF, names.half).otherwise(names.op)
    unreadable = facts.where(is_unreadable).select(
        source.alias("source"),
        F.col("pair"),
        F.col("offset").alias("origin_offset"),
        "append_ms",
        "kind",
        "record_type",
    )
    kept = facts.where(F.col("record_type") == IS_DEAD_LETTER_OF_UNREADABLE).select(
        "source", "pair", "origin_offset"
    )
    missing = unreadable.join(kept, ["source", "pair", "origin_offset"], how="left_anti").where(
        bounds.is_passed(
            F.col("record_type") == IS_UNREADABLE_OP,
            F.col("pair"),
            F.col("origin_offset"),
            F.col("append_ms"),
        )
        & ~bounds.dead_letters_may_hide()
        & ~bounds.dead_letter_may_be_deleted(F.col("append_ms"))
    )
    return findings_of(
        missing,
        kind=F.lit(LOST),
        topic=F.col("source"),
        partition=F.col("pair"),
        offset=F.col("origin_offset"),
        detail=F.concat(F.lit("unreadable ("), F.col("kind"), F.lit("), without a dead letter")),
    )


def _too_many(surplus: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about real records that belong to no message."""
    oldest_ms = F.least("append_ms", F.coalesce("first_ms", "append_ms"))
    may_be_deleted = bounds.half_may_be_deleted(oldest_ms)
    others_may_be_deleted = bounds.other_half_may_be_deleted(oldest_ms)
    again = REPEATED if bounds.may_repeat else DUPLICATE
    finding = (
        F.when(
            F.col("is_partly_deleted"),
            finding_struct(EXPIRED, F.lit("messages of the transaction were deleted")),
        )
        .when(
            F.col("has_equal_message"),
            finding_struct(again, F.lit("the message was delivered before")),
        )
        .when(may_be_deleted, finding_struct(EXPIRED, F.lit("the half message was deleted")))
        .when(
            F.col("has_half_message"),
            finding_struct(PHANTOM, F.lit("differs from all of its messages")),
        )
        .when(
            others_may_be_deleted,
            finding_struct(
                EXPIRED, F.lit("the half message of another installation may have been deleted")
            ),
        )
        .otherwise(finding_struct(PHANTOM, F.lit("no half topic has the transaction")))
    )
    return findings_of(surplus.withColumn("finding", finding))


def _stray(stray: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about dead letters whose message is not in the half topic."""
    deleted = bounds.is_below_halves(F.col("pair"), F.col("origin_offset"))
    finding = F.when(
        deleted, finding_struct(EXPIRED, F.lit("its half message was deleted"))
    ).otherwise(
        finding_struct(
            PHANTOM,
            F.lit("a dead letter without a half message in the half topic: "),
            F.col("reason"),
        )
    )
    return findings_of(
        stray.withColumn("finding", finding),
        topic=F.lit(bounds.snapshot.names.dead),
        half_offset=F.col("origin_offset"),
    )


def _conflicts(conflicts: DataFrame, op_topic: str) -> DataFrame:
    return findings_of(
        conflicts,
        kind=F.lit(CONFLICT),
        topic=F.lit(op_topic),
        partition=F.col("pair"),
        offset=F.col("op_offset"),
        detail=F.concat(F.col("kind"), F.lit(" came after "), F.col("first_kind")),
    )


def _orphans(orphans: DataFrame, surplus: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about COMMITs whose half message is not in the half topic.

    Where such a transaction was delivered, the delivery is the finding, and not the COMMIT.
    """
    by_producer = F.col("source") == OpSource.PRODUCER.value
    # A producer names the offset of its last half message; the answer to a check a later offset.
    gone = bounds.is_below_halves(F.col("pair"), F.col("op_half_offset")) | (
        ~by_producer & bounds.is_half_cut(F.col("pair"))
    )
    finding = F.when(
        gone, finding_struct(EXPIRED, F.lit("its half message was deleted"))
    ).otherwise(
        finding_struct(LOST, F.lit("committed, but without a half message in the half topic"))
    )
    found = orphans.where(
        (F.col("kind") == OpKind.COMMIT.value)
        & ~F.col("is_foreign")
        & ~bounds.is_ahead(F.col("pair"), F.col("op_half_offset"))
    ).join(surplus.select("transaction_id").distinct(), "transaction_id", how="left_anti")
    return findings_of(
        found.withColumn("finding", finding),
        topic=F.lit(bounds.snapshot.names.op),
        partition=F.col("pair"),
        offset=F.col("op_offset"),
    )


_SHOWN = 10  # message indices that one detail lists


def findings_of_lives(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about whole transactions: lost, torn, late, overdue, expired."""
    is_torn = (F.col("arrived") > 0) & (F.col("missing") + F.col("refused") > 0)
    is_torn = (
        is_torn
        | ((F.col("refused") > 0) & (F.col("missing") > 0))
        | (F.col("partly_delivered") > 0)
    )
    shown = F.concat_ws(", ", F.slice("indices", 1, _SHOWN).cast("array<string>"))
    of_all = F.concat(shown, F.lit(" of "), F.col("all"))
    kinds = F.array_compact(
        F.array(
            F.when(
                is_torn,
                finding_struct(
                    TORN, F.lit("not all or none: missing, refused or delivered in part: "), of_all
                ),
            ).when(
                F.col("missing") > 0,
                finding_struct(LOST, F.lit("committed, but not delivered: messages "), of_all),
            ),
            F.when(
                F.col("not_dead_lettered") > 0,
                finding_struct(LOST, F.lit("no dead letter of messages "), of_all),
            ),
            F.when(
                F.col("late") > 0,
                finding_struct(
                    LATE, F.lit("messages after the decision: "), F.col("late").cast("string")
                ),
            ),
            F.when(
                F.col("overdue") > 0,
                finding_struct(OVERDUE, F.lit("the daemon has not applied the decision yet")),
            ),
            F.when(
                F.col("expired") > 0,
                finding_struct(EXPIRED, F.lit("records of the transaction were deleted")),
            ),
        )
    )
    found = _counts_of_lives(messages, bounds).withColumn("finding", F.explode(kinds))
    return findings_of(
        found,
        topic=F.lit(bounds.snapshot.names.half),
        partition=F.col("pair"),
        offset=F.coalesce("first_bad.offset", "first_message.offset"),
        half_offset=F.coalesce("first_bad.offset", "first_message.offset"),
    )


def _counts_of_lives(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return one row for each transaction: its place, and how many messages have which outcome."""
    outcome, required = F.col("outcome"), F.col("required")
    missing, arrived = outcome == MISSING, outcome.isin(DELIVERED, ALTERED, BOTH)
    refused = (outcome == REFUSED) & (required == DELIVER)
    partly_delivered = (outcome == UNEXPECTED) & (required == DEAD_LETTER) & F.col("is_gap")
    overdue = (outcome == PENDING) & bounds.is_overdue(F.col("op_append_ms"))
    first = F.struct("message_index", "offset")
    return messages.groupBy(*LIFE).agg(
        F.first("resume_count").alias("resume_count"),
        F.first("pair").alias("pair"),
        F.first("op_offset").alias("op_offset"),
        F.count(F.lit(1)).alias("all"),
        F.count_if(missing & (required == DELIVER)).alias("missing"),
        F.count_if(missing & (required == DEAD_LETTER)).alias("not_dead_lettered"),
        F.count_if(arrived).alias("arrived"),
        F.count_if(refused).alias("refused"),
        F.count_if(partly_delivered).alias("partly_delivered"),
        F.count_if(outcome == STORED_LATE).alias("late"),
        F.count_if(overdue).alias("overdue"),
        F.count_if(outcome == EXPIRED).alias("expired"),
        F.min(F.when(missing | partly_delivered, first)).alias("first_bad"),
        F.min(first).alias("first_message"),
        F.sort_array(
            F.collect_list(F.when(missing | partly_delivered, F.col("message_index")))
        ).alias("indices"),
    )


def findings_of_messages(messages: DataFrame, dead_topic: str) -> DataFrame:
    """Return FINDINGS about single deliveries and dead letters."""
    kinds = F.array_compact(F.array(*_of_a_delivery(), *_of_a_letter(dead_topic)))
    found = messages.withColumn("finding", F.explode(kinds))
    return findings_of(
        found,
        topic=F.col("finding.topic"),
        partition=F.col("finding.partition"),
        offset=F.col("finding.offset"),
        half_offset=F.col("offset"),
    )


def _of_a_delivery() -> list[Column]:
    outcome, required = F.col("outcome"), F.col("required")
    decision = F.lit("undecided")
    for each in OpKind:  # `lower` would load the case tables of all scripts first, for 2 s
        decision = F.when(F.col("kind") == each.value, each.value.lower()).otherwise(decision)
    requested_partition, index = F.col("requested_partition"), F.col("message_index")
    is_bound = (requested_partition >= 0) & F.col("is_partition_known")
    is_elsewhere = (
        is_bound & (requested_partition != F.col("real_partition")) & (required == DELIVER)
    )

    def finding(kind: str, *parts: Column) -> Column:
        place = {
            "topic": F.coalesce("real_topic", "topic"),
            "partition": F.coalesce("real_partition", "other_partition"),
            "offset": F.coalesce("real_offset", "other_offset"),
        }
        return finding_struct(kind, *parts, **place)

    return [
        F.when(outcome == BOTH, finding(DUPLICATE, F.lit("both delivered and a dead letter"))),
        F.when(
            (outcome == UNEXPECTED) & ~F.col("is_gap"),
            finding(PHANTOM, F.lit("delivered, but it must not be; decision: "), decision),
        ),
        F.when(
            outcome == ALTERED,
            finding(MISMATCH, F.lit("the real record differs from the half message")),
        ),
        F.when(
            is_elsewhere,
            finding(
                MISMATCH,
                F.lit("in another partition than the half message asks for: "),
                requested_partition,
            ),
        ),
        F.when(
            (index < F.col("index_before")) & (outcome == DELIVERED),
            finding(REORDERED, F.lit("message "), index, F.lit(" behind "), F.col("index_before")),
        ),
    ]


def _of_a_letter(dead_topic: str) -> list[Column]:
    is_wrong, must_arrive = F.col("outcome") == WRONGLY_DEAD_LETTERED, F.col("required") == DELIVER
    reason = F.col("dead_letter.reason")

    def finding(kind: str, *parts: Column, letter: str = "dead_letter") -> Column:
        place = {"partition": F.col(f"{letter}.partition"), "offset": F.col(f"{letter}.offset")}
        return finding_struct(kind, *parts, topic=F.lit(dead_topic), **place)

    return [
        F.when(
            is_wrong & must_arrive,
            finding(LOST, F.lit("committed and complete, but a dead letter: "), reason),
        ),
        F.when(
            is_wrong & ~must_arrive,
            finding(PHANTOM, F.lit("a dead letter that the decision does not call for: "), reason),
        ),
        F.when(
            F.col("dead_letter_count") > 1,
            finding(DUPLICATE, F.lit("more than one dead letter"), letter="last_dead_letter"),
        ),
        F.when(
            ~F.col("is_dead_letter_equal"),
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
REPEATED = "repeated"
NOTICES = (LATE, OVERDUE, EXPIRED, REPEATED)
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
    """Return FINDINGS from `given`, else from `finding` (kind, detail) or a column of the name.

    What none of them has is null.
    """
    if "finding" in frame.columns:
        frame = frame.drop("kind").select("*", "finding.kind", "finding.detail")
    return frame.select(
        *(
            given.get(name, F.col(name) if name in frame.columns else F.lit(None))
            .cast(kind)
            .alias(name)
            for name, kind in FINDINGS.items()
        )
    )


def finding_struct(kind: str, *parts: Column, **place: Column) -> Column:
    """Return a struct of kind, detail (the concatenated parts) and the columns of `place`."""
    detail = F.concat(*(part.cast("string") for part in parts)).alias("detail")
    where = (column.alias(name) for name, column in place.items())
    return F.struct(F.lit(kind).alias("kind"), detail, *where)

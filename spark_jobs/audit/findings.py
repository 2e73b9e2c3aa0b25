"""From verdicts to findings: one row for each thing that is wrong, or worth knowing."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from serde.records import OpKind, OpSource
from spark_jobs.audit.facts import IS_JUNK_COPY, IS_JUNK_HALF, IS_JUNK_OP
from spark_jobs.audit.ruling import BURY, DELIVER, LIFE
from spark_jobs.audit.sift import DELIVERED, EXPIRED, PENDING, REFUSED
from spark_jobs.audit.verdict import (
    ALTERED,
    BOTH,
    CAME_LATE,
    MISSING,
    UNCALLED,
    WRONGLY_BURIED,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.audit.bounds import Bounds
    from spark_jobs.audit.matching import Matched
    from spark_jobs.audit.ruling import Ruling
    from spark_jobs.audit.verdict import Verdicts

# The law is broken.
LOST = "lost"
TORN = "torn"
PHANTOM = "phantom"
DUPLICATE = "duplicate"
MISMATCH = "mismatch"
REORDERED = "reordered"
CONFLICT = "conflict"
VIOLATIONS = (LOST, TORN, PHANTOM, DUPLICATE, MISMATCH, REORDERED, CONFLICT)
# It is not, but somebody may want to know.
LATE = "late"
OVERDUE = "overdue"
GONE = "expired"
NOTICES = (LATE, OVERDUE, GONE)

# Contract of every function here: what is wrong with which transaction, and where to look.
FINDINGS = {
    "kind": "string",
    "transaction_id": "string",
    "resume_count": "int",
    "topic": "string",  # with partition and offset: the record that shows it
    "partition": "int",
    "offset": "long",
    "pair": "int",  # half and op partition
    "half_offset": "long",
    "op_offset": "long",
    "detail": "string",
}

_SHOWN = 10  # message indices that one detail names


def all_findings(ruling: Ruling, matched: Matched, verdicts: Verdicts, bounds: Bounds) -> DataFrame:
    """Return all FINDINGS about transactions but their order among each other."""
    names = bounds.snapshot.names
    messages = verdicts.messages
    frames = [
        _whole_lives(messages, bounds),
        _single_messages(messages, names.dead),
        _too_many(verdicts.surplus, bounds),
        _stray(matched.stray, bounds),
        _conflicts(ruling.conflicts, names.op),
        _orphans(ruling.orphans, verdicts.surplus, bounds),
    ]
    return reduce(DataFrame.unionAll, frames)


def out_of_order(lanes: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about messages with one key that came in another order than was decided.

    Args:
        lanes: What was delivered: sift's LANES.
        bounds: What was read.
    """
    lane = Window.partitionBy("lane", "pair").orderBy("real_at")
    found = (
        lanes.where(F.col("lane").isNotNull())
        .withColumn("before", F.lag("op_at").over(lane))
        .where(F.col("op_at") < F.col("before"))
    )
    return _findings(
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
            F.lit(", delivered behind a message with this key that was decided at "),
            F.col("before"),
        ),
    )


def junk_without_letter(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return FINDINGS about records that cannot be read and were not kept as dead letters."""
    names = bounds.snapshot.names
    is_junk = F.col("what").isin(IS_JUNK_HALF, IS_JUNK_OP)
    source = F.when(F.col("what") == IS_JUNK_HALF, names.half).otherwise(names.op)
    junk = facts.where(is_junk).select(
        source.alias("source"), F.col("pair"), F.col("at").alias("origin"), "ms", "kind", "what"
    )
    kept = facts.where(F.col("what") == IS_JUNK_COPY).select("source", "pair", "origin")
    missing = junk.join(kept, ["source", "pair", "origin"], "left_anti").where(
        bounds.is_passed(F.col("what") == IS_JUNK_OP, F.col("pair"), F.col("origin"), F.col("ms"))
        & ~bounds.letters_may_hide()
        & ~bounds.letter_may_be_deleted(F.col("ms"))
    )
    return _findings(
        missing,
        kind=F.lit(LOST),
        topic=F.col("source"),
        partition=F.col("pair"),
        offset=F.col("origin"),
        pair=F.col("pair"),
        detail=F.concat(F.lit("cannot be read ("), F.col("kind"), F.lit("), and no dead letter")),
    )


def _findings(frame: DataFrame, **given: Column) -> DataFrame:
    columns = {
        "transaction_id": F.col("txn") if "txn" in frame.columns else F.lit(None),
        "resume_count": F.col("resume") if "resume" in frame.columns else F.lit(None),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FINDINGS.items())
    )


def _whole_lives(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with transactions as wholes: lost, torn, late, overdue, expired."""
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
                _tell(
                    TORN, F.lit("not all or none: missing, refused or delivered in part: "), of_all
                ),
            ).when(
                F.col("missing") > 0,
                _tell(LOST, F.lit("committed, and nowhere: messages "), of_all),
            ),
            F.when(
                F.col("unburied") > 0,
                _tell(LOST, F.lit("neither delivered nor a dead letter: messages "), of_all),
            ),
            F.when(
                F.col("late") > 0,
                _tell(
                    LATE, F.lit("messages came after the decision: "), F.col("late").cast("string")
                ),
            ),
            F.when(
                F.col("overdue") > 0,
                _tell(OVERDUE, F.lit("decided, and the daemon has not applied it yet")),
            ),
            F.when(
                F.col("expired") > 0, _tell(GONE, F.lit("records that belong to it were deleted"))
            ),
        )
    )
    told = sums.withColumn("told", F.explode(kinds))
    return _findings(
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


def _tell(kind: str, *parts: Column, **place: Column) -> Column:
    detail = F.concat(*(part.cast("string") for part in parts)).alias("detail")
    where = (column.alias(name) for name, column in place.items())
    return F.struct(F.lit(kind).alias("kind"), detail, *where)


def _single_messages(messages: DataFrame, dead_topic: str) -> DataFrame:
    """Return what is wrong with single deliveries and dead letters."""
    told = F.array_compact(F.array(*_of_a_delivery(), *_of_a_letter(dead_topic)))
    found = messages.withColumn("told", F.explode(told))
    return _findings(
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
    stands = F.coalesce(F.lower("kind"), F.lit("undecided"))
    to_part, index = F.col("to_part"), F.col("index")
    is_elsewhere = (to_part >= 0) & (to_part != F.col("real_part")) & (must == DELIVER)

    def told(kind: str, *parts: Column) -> Column:
        place = {
            "topic": F.coalesce("real_topic", "topic"),
            "part": F.coalesce("real_part", "other_part"),
            "at": F.coalesce("real_at", "other_at"),
        }
        return _tell(kind, *parts, **place)

    return [
        F.when(came == BOTH, told(DUPLICATE, F.lit("delivered, and a dead letter as well"))),
        F.when(
            (came == UNCALLED) & ~F.col("is_gap"),
            told(PHANTOM, F.lit("delivered, but it must not be: "), stands),
        ),
        F.when(came == ALTERED, told(MISMATCH, F.lit("not what the half message holds"))),
        F.when(is_elsewhere, told(MISMATCH, F.lit("asked for partition "), to_part)),
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
        return _tell(kind, *parts, topic=F.lit(dead_topic), **place)

    return [
        F.when(
            is_undue & must_arrive,
            told(LOST, F.lit("committed and whole, but a dead letter: "), reason),
        ),
        F.when(
            is_undue & ~must_arrive,
            told(PHANTOM, F.lit("a dead letter of what is not decided so: "), reason),
        ),
        F.when(
            F.col("letters") > 1,
            told(DUPLICATE, F.lit("more than one dead letter"), letter="letter_last"),
        ),
        F.when(
            ~F.col("is_letter_like"),
            told(MISMATCH, F.lit("the dead letter is not what the half message holds")),
        ),
    ]


def _too_many(surplus: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with real records that no message is left for."""
    may_be_deleted = bounds.half_may_be_deleted(F.least("ms", F.coalesce("first_ms", "ms")))
    told = (
        F.when(F.col("is_known"), _tell(DUPLICATE, F.lit("delivered before")))
        .when(may_be_deleted, _tell(GONE, F.lit("its half message was deleted")))
        .when(F.col("has_life"), _tell(PHANTOM, F.lit("no message of the transaction is like it")))
        .otherwise(_tell(PHANTOM, F.lit("the half topic does not know the transaction")))
    )
    return _findings(
        surplus.withColumn("told", told),
        kind=F.col("told.kind"),
        topic=F.col("topic"),
        partition=F.col("part"),
        offset=F.col("at"),
        detail=F.col("told.detail"),
    )


def _stray(stray: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with dead letters of messages that are not there."""
    deleted = bounds.is_below_halves(F.col("pair"), F.col("origin"))
    told = F.when(deleted, _tell(GONE, F.lit("its half message was deleted"))).otherwise(
        _tell(
            PHANTOM, F.lit("a dead letter of what the half topic does not hold: "), F.col("reason")
        )
    )
    return _findings(
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
    return _findings(
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
    """Return COMMITs whose half message is not there: acknowledged, decided, and lost.

    Where it was delivered all the same, the delivery is the finding.
    """
    by_producer = F.col("source") == OpSource.PRODUCER.value
    # A producer names its last half message; whoever answers a check names a later offset.
    gone = bounds.is_below_halves(F.col("pair"), F.col("half_to")) | (
        ~by_producer & bounds.is_half_cut(F.col("pair"))
    )
    told = F.when(gone, _tell(GONE, F.lit("its half message was deleted"))).otherwise(
        _tell(LOST, F.lit("committed, and the half topic does not hold it"))
    )
    found = orphans.where(
        (F.col("kind") == OpKind.COMMIT.value)
        & ~F.col("is_foreign")
        & ~bounds.is_ahead(F.col("pair"), F.col("half_to"))
    ).join(surplus.select("txn").distinct(), "txn", "left_anti")
    return _findings(
        found.withColumn("told", told),
        kind=F.col("told.kind"),
        topic=F.lit(bounds.snapshot.names.op),
        partition=F.col("pair"),
        offset=F.col("op_at"),
        pair=F.col("pair"),
        op_offset=F.col("op_at"),
        detail=F.col("told.detail"),
    )

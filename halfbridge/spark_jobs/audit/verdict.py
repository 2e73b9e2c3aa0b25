"""Compares the outcome of each message with its required outcome.

`sift` first finds the plain transactions in one aggregation. Nearly all transactions are plain. A
plain transaction has one message that was never put back, at most one decision, and exactly the
result that follows from the decision, byte for byte. A transaction that is not plain may be correct
as well: several messages, answered checks and repeated decisions are allowed. `judge` examines such
transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.records import COUNT_UNKNOWN, PARTITION_BY_KEY, DeadReason, OpKind
from halfbridge.spark_jobs.audit.facts import IS_HALF, IS_JUNK_COPY, IS_LETTER, IS_OP, IS_REAL
from halfbridge.spark_jobs.audit.ruling import (
    DEAD_LETTER,
    DELIVER,
    LATE,
    LIFE,
    MATCHED_MESSAGES,
    NOTHING,
    OPEN,
    UNKNOWN,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.ruling import Compute, Matched

# Values of the column `came`, which says what became of a message. Others are those of sift.
BOTH = "both"  # delivered and dead-lettered
WRONGLY_DEAD_LETTERED = "wrongly_buried"  # a dead letter with a reason that does not hold
DEAD_LETTERED = "buried"  # a dead letter, as required
CAME_LATE = "late"
ELSEWHERE = "elsewhere"  # sent to a real topic that was not read
ALTERED = "altered"  # a record with other content was delivered in its place
MISSING = "missing"
UNCALLED = "uncalled"  # delivered, although it must not be
FINE = "fine"  # neither delivered nor a dead letter, as required
_REFUSALS = (DeadReason.NOT_ALLOWED.value, DeadReason.UNDELIVERABLE.value)
# Contract of `judge`: one row for each message.
JUDGED_MESSAGES = (
    *(*MATCHED_MESSAGES, "came"),
    *("other_part", "other_at"),  # of an ALTERED message: the place of the other record
    # The index of the transaction's message that precedes a delivered message in its real
    # partition; null where that is not known.
    "before",
)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdict on each message, and the real records that belong to no message."""

    messages: DataFrame  # JUDGED_MESSAGES: the matched messages with what became of them
    surplus: DataFrame  # the matched surplus without the records that ALTERED messages name


def judge(matched: Matched, bounds: Bounds, compute: Compute) -> Verdicts:
    """Return the verdicts on `matched`."""
    lacks_late = F.max(_came_behind() & (F.col("must") == DELIVER))
    lacking = F.coalesce(lacks_late.over(Window.partitionBy(*LIFE)), F.lit(col=False))
    messages = matched.messages.withColumn("lacks_late", lacking)
    judged = compute(messages.withColumn("came", _came(bounds)).drop("lacks_late"))
    by_topic = Window.partitionBy("txn", "topic")
    is_open = F.col("came").isin(MISSING, PENDING)
    waiting = (
        judged.where(is_open & (F.col("must") == DELIVER))
        .withColumn("place", F.row_number().over(by_topic.orderBy("index", "ident")))
        .select("txn", "topic", "place", "ident", "index")
    )
    strange = (
        matched.surplus.where(~F.col("is_known") & F.col("has_life"))
        .withColumn("place", F.row_number().over(by_topic.orderBy("part", "at")))
        .select(
            "txn",
            "topic",
            "place",
            F.col("part").alias("other_part"),
            F.col("at").alias("other_at"),
        )
    )
    altered = compute(waiting.join(strange, ["txn", "topic", "place"], how="inner").drop("place"))
    messages = judged.join(altered.drop("topic"), [*LIFE, "index"], how="left").withColumn(
        "came", F.when(F.col("other_at").isNotNull(), ALTERED).otherwise(F.col("came"))
    )
    taken = altered.select(
        "txn", "topic", F.col("other_part").alias("part"), F.col("other_at").alias("at")
    )
    surplus = matched.surplus.join(taken, ["txn", "topic", "part", "at"], how="left_anti")
    line = Window.partitionBy(*LIFE, "real_topic", "real_part").orderBy("real_at")
    ahead = line.rowsBetween(Window.unboundedPreceding, -1)
    last_sure = F.last(F.when(F.col("is_sure"), F.col("index")), ignorenulls=True).over(ahead)
    in_line = F.when((F.col("must") == DELIVER) & F.col("is_sure"), last_sure)
    in_order = messages.withColumn("before", in_line).select(*JUDGED_MESSAGES)
    return Verdicts(compute(in_order), compute(surplus))


def lives(messages: DataFrame) -> DataFrame:
    """Return one row for each transaction: LIFE and state, as in sift; MISSING: lost or torn."""
    worst = F.min(_rank())
    kind = F.first("kind")
    unknown = F.max(F.col("must") == UNKNOWN)
    states = messages.groupBy(*LIFE).agg(
        worst.alias("worst"), kind.alias("kind"), unknown.alias("unknown")
    )
    committed = F.col("kind") == OpKind.COMMIT.value
    state = (
        F.when(F.col("unknown"), EXPIRED)
        .when(F.col("kind").isNull(), UNDECIDED)
        .when(F.col("kind") == OpKind.ROLLBACK.value, ROLLED_BACK)
        .when(F.col("kind") == OpKind.DISCARD.value, DISCARDED)
        .when(
            committed & (F.col("worst") < len(_RANKS)), F.element_at(_ranks(), F.col("worst") + 1)
        )
        .otherwise(DELIVERED)
    )
    return states.select(*LIFE, state.alias("state"))


EXPIRED = "expired"
PENDING = "pending"
REFUSED = "refused"
_RANKS = (MISSING, PENDING, EXPIRED, ELSEWHERE, REFUSED)
_AS_REFUSED = (DEAD_LETTERED, CAME_LATE, WRONGLY_DEAD_LETTERED)


def _ranks() -> Column:
    return F.array(*(F.lit(each) for each in _RANKS))


def _rank() -> Column:
    came = F.col("came")
    chain = F.when(came.isin(*_AS_REFUSED), len(_RANKS) - 1)
    for number, each in enumerate(_RANKS):
        chain = chain.when(came == each, number)
    return chain.otherwise(len(_RANKS))


def _came(bounds: Bounds) -> Column:
    must = F.col("must")
    applied = bounds.is_applied(F.col("pair"), F.col("op_at"), F.col("op_ms"))
    letter_gone = bounds.letter_may_be_deleted(F.col("op_ms"))
    is_delivered = F.col("real_at").isNotNull()
    has_letter = F.col("letters") > 0
    has_aside = F.col("aside").isNotNull()
    waits = ~applied | bounds.letters_may_hide()
    return (
        F.when(must == UNKNOWN, EXPIRED)
        .when(must == DELIVER, _came_of_a_delivery(bounds, waits=waits, letter_gone=letter_gone))
        .when(must == OPEN, F.when(is_delivered, DELIVERED).otherwise(PENDING))
        .when(is_delivered, UNCALLED)
        .when(must == NOTHING, F.when(has_letter, WRONGLY_DEAD_LETTERED).otherwise(FINE))
        .when(must == LATE, CAME_LATE)
        .when((must == DEAD_LETTER) & (has_letter | has_aside), DEAD_LETTERED)
        .when(waits, PENDING)
        .when(letter_gone, EXPIRED)
        .otherwise(MISSING)
    )


def _came_of_a_delivery(bounds: Bounds, *, waits: Column, letter_gone: Column) -> Column:
    topic = F.col("topic")
    is_delivered = F.col("real_at").isNotNull()
    has_letter = F.col("letters") > 0
    # The op was applied although the half offset that it names did not exist. A message that was
    # stored later is LATE, and so the others are INCOMPLETE.
    is_incomplete = F.col("lacks_late") & (F.col("letter.reason") == DeadReason.INCOMPLETE.value)
    delivery_gone = bounds.delivery_may_be_deleted(topic, F.col("op_ms"))
    return (
        F.when(is_delivered & has_letter, BOTH)
        .when(is_delivered, DELIVERED)
        .when(has_letter & F.col("letter.reason").isin(*_REFUSALS), REFUSED)
        .when(has_letter & is_incomplete, REFUSED)
        .when(has_letter, WRONGLY_DEAD_LETTERED)
        .when(F.col("aside") == DeadReason.INVALID.value, REFUSED)
        .when(_came_behind(), CAME_LATE)
        .when(~bounds.is_audited(topic), ELSEWHERE)
        .when(waits | bounds.may_hide(topic), PENDING)
        .when(delivery_gone | letter_gone, EXPIRED)
        .otherwise(MISSING)
    )


def _came_behind() -> Column:
    """Tell whether a message was stored after its decision, and dead-lettered as LATE.

    Where one of the two append times is not known, the dead letter alone counts.
    """
    has_times = (F.col("ms") >= 0) & (F.col("op_ms") >= 0)
    may_be_behind = ~has_times | (F.col("ms") >= F.col("op_ms"))
    return (F.col("aside") == DeadReason.LATE.value) & may_be_behind


# States of a transaction: the four of the conservation law. COMMITTED is divided further.
DELIVERED = "delivered"
ROLLED_BACK = "rolled_back"
DISCARDED = "discarded"
UNDECIDED = "undecided"
STRANGE = "strange"  # real records only: of another installation, or of none
# The place of a delivered message in its real partition and in its op partition.
LANES = ("txn", "lane", "pair", "topic_number", "real_part", "real_at", "op_at")
# Up to this many ids, about 20 MB, are broadcast to all tasks. With more ids, all facts are sorted
# by id, which takes longer than reading them.
_BROADCAST_MAX = 300_000
_ONE_MESSAGE = (1, COUNT_UNKNOWN)  # counts that a commit of one message may state


def sift(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return one row for each transaction id of FACTS; facts without one are left out.

    If ops were deleted, a transaction without a decision is not plain.

    Returns:
        txn string; state string (null: not plain); for a delivered transaction also lane long, pair
        int, topic_number long, real_part int, real_at long, op_at long.
    """
    what, kind = F.col("what"), F.col("kind")
    half, op, real = what == IS_HALF, what == IS_OP, what == IS_REAL
    decides = op & (kind != OpKind.UNKNOWN.value)
    sums = (
        facts.where(F.col("txn").isNotNull())
        .groupBy("txn")
        .agg(
            F.count_if(half).alias("halves"),
            F.count_if(decides).alias("decisions"),
            F.count_if(op & (kind == OpKind.COMMIT.value)).alias("commits"),
            F.count_if(op & (kind == OpKind.ROLLBACK.value)).alias("rollbacks"),
            F.count_if(real).alias("reals"),
            F.count_if(what.isin(IS_LETTER, IS_JUNK_COPY)).alias("letters"),
            F.min(F.when(half | decides, F.col("ident"))).alias("ident_min"),
            F.max(F.when(half | decides, F.col("ident"))).alias("ident_max"),
            F.count_if(half & F.col("flaw")).alias("flaws"),
            _one(half, "index"),
            _one(half, "at"),
            _one(half, "origin"),
            _one(half, "to_part"),
            _one(half, "hash"),
            _one(half, "pair"),
            _one(op, "at", name="op_at", where=decides),
            _one(op, "half_to", where=decides),
            _one(op, "count", where=decides),
            _one(real, "hash", name="real_hash"),
            _one(real, "part", name="real_part"),
            _one(real, "at", name="real_at"),
            _one(real, "lane"),
            F.max(F.when(real, bounds.topic_number(F.col("topic")))).alias("topic_number"),
        )
    )
    state = (
        F.when(~_is_one_original(), None)
        .when(_is_delivered(), DELIVERED)
        .when(
            (F.col("rollbacks") == 1) & (F.col("decisions") == 1) & _came_to_nothing(), ROLLED_BACK
        )
        .when(
            (F.col("decisions") == 0) & _came_to_nothing() & F.lit(col=not bounds.are_ops_cut),
            UNDECIDED,
        )
    )
    is_strange = (F.col("halves") + F.col("decisions") + F.col("letters") == 0) & (
        F.col("reals") > 0
    )
    state = F.when(is_strange, STRANGE).otherwise(state)
    return sums.select("txn", state.alias("state"), *LANES[1:])


def suspects(
    facts: DataFrame, sifted: DataFrame, count: int, others: DataFrame | None = None
) -> DataFrame:
    """Return the FACTS of the transactions that `sift` did not find plain, which are `count`.

    Those of `others` (column txn), which belong to other installations, are left out.
    """
    ids = sifted.where(F.col("state").isNull() | (F.col("state") == STRANGE)).select("txn")
    if others is not None:
        ids = ids.join(others, "txn", how="left_anti")
    if count <= _BROADCAST_MAX:
        ids = F.broadcast(ids)
    return facts.join(ids, "txn", how="left_semi").select(*facts.columns)


def _one(
    what: Column, column: str, *, name: str | None = None, where: Column | None = None
) -> Column:
    return F.max(F.when(what if where is None else where, F.col(column))).alias(name or column)


def _is_one_original() -> Column:
    return (
        (F.col("halves") == 1)
        & (F.col("ident_min") == F.col("ident_max"))
        & (F.col("index") == 0)
        & (F.col("at") == F.col("origin"))
        & (F.col("flaws") == 0)
        & (F.col("letters") == 0)
    )


def _is_delivered() -> Column:
    to_part = F.col("to_part")
    return (
        (F.col("commits") == 1)
        & (F.col("decisions") == 1)
        & (F.col("reals") == 1)
        & (F.col("half_to") >= F.col("origin"))
        & F.col("count").isin(*_ONE_MESSAGE)
        & (F.col("real_hash") == F.col("hash"))
        & ((to_part == PARTITION_BY_KEY) | (to_part == F.col("real_part")))
    )


def _came_to_nothing() -> Column:
    return F.col("reals") == 0

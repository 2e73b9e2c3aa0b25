"""Finds the plain transactions in one aggregation. Nearly all transactions are plain.

A plain transaction has one message that was never put back, at most one decision, and exactly the
result that follows from the decision, byte for byte. A transaction that is not plain may be correct
as well: several messages, answered checks and repeated decisions are allowed. `judge` examines such
transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.records import COUNT_UNKNOWN, PARTITION_BY_KEY, OpKind
from halfbridge.spark_jobs.audit.facts import IS_HALF, IS_JUNK_COPY, IS_LETTER, IS_OP, IS_REAL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

# States of a transaction: the four of the conservation law. COMMITTED is divided further.
DELIVERED = "delivered"
REFUSED = "refused"
PENDING = "pending"
ROLLED_BACK = "rolled_back"
DISCARDED = "discarded"
UNDECIDED = "undecided"
EXPIRED = "expired"
STRANGE = "strange"  # real records only: of another installation, or of none

# The place of a delivered message in its real partition and in its op partition.
LANES = ("txn", "lane", "pair", "topic_number", "real_part", "real_at", "op_at")

# Up to this many ids, about 20 MB, are broadcast to all tasks. With more ids, all facts are sorted
# by id, which takes longer than reading them.
_BROADCAST_MAX = 300_000
_ONE_MESSAGE = (1, COUNT_UNKNOWN)


def sift(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return one row for each transaction id.

    Args:
        facts: FACTS; facts without a transaction id are left out.
        bounds: The bounds of the snapshot. If ops were deleted, a transaction without a decision is
            not plain.

    Returns:
        txn string; state string (null: not plain); for a delivered transaction also lane long,
        pair int, topic_number long, real_part int, real_at long, op_at long.
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
        .when((F.col("decisions") == 0) & _came_to_nothing() & (not bounds.are_ops_cut), UNDECIDED)
    )
    is_strange = (F.col("halves") + F.col("decisions") + F.col("letters") == 0) & (
        F.col("reals") > 0
    )
    state = F.when(is_strange, STRANGE).otherwise(state)
    return sums.select("txn", state.alias("state"), *LANES[1:])


def suspects(
    facts: DataFrame, sifted: DataFrame, count: int, others: DataFrame | None = None
) -> DataFrame:
    """Return the FACTS of the transactions that are not plain.

    Args:
        facts: The same facts that `sift` was given.
        sifted: The result of `sift`.
        count: How many transactions are not plain.
        others: Column txn: transactions of other installations, which are left out; None without.
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
    """Return the value of `column` in the single row that `what` selects."""
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

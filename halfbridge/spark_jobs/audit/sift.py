"""Finds the plain transactions, which are nearly all of them, in one aggregation.

A plain transaction has one message that was never put back, at most one decision, and exactly the
result that follows from the decision, byte for byte. A transaction that is not plain may be correct
as well: several messages, answered checks and repeated decisions are allowed. `verdict.judge`
examines such transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from halfbridge.serde.records import COUNT_UNKNOWN, PARTITION_BY_KEY, OpKind
from halfbridge.spark_jobs.audit.facts import (
    IS_DEAD_LETTER,
    IS_DEAD_LETTER_OF_UNREADABLE,
    IS_HALF,
    IS_OP,
    IS_REAL,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

# States of a transaction: the four of the conservation law. COMMITTED is divided further.
DELIVERED = "delivered"
ROLLED_BACK = "rolled_back"
DISCARDED = "discarded"
UNDECIDED = "undecided"
WITHOUT_HALF = "without_half"  # real records only: of another installation, or of none
# The place of a delivered message in its real partition and in its op partition.
DELIVERY_PLACES = (
    *("transaction_id", "order_key", "pair"),
    *("topic_number", "real_partition", "real_offset", "op_offset"),
)
# Up to this many ids, about 20 MB, are broadcast to all tasks. With more ids, all facts are sorted
# by id, which takes longer than reading them.
_BROADCAST_MAX = 300_000
_ONE_MESSAGE = (1, COUNT_UNKNOWN)  # counts that a commit of one message may state


def sift(facts: DataFrame, bounds: Bounds) -> DataFrame:
    """Return one row for each transaction id of FACTS; facts without one are left out.

    If ops were deleted, a transaction without a decision is not plain.

    Returns:
        transaction_id string; state string (null: not plain); for a delivered transaction also
        order_key long, pair int, topic_number long, real_partition int, real_offset long, op_offset
        long.
    """
    record_type, kind = F.col("record_type"), F.col("kind")
    half, op, real = record_type == IS_HALF, record_type == IS_OP, record_type == IS_REAL
    decides = op & (kind != OpKind.UNKNOWN.value)
    sums = (
        facts.where(F.col("transaction_id").isNotNull())
        .groupBy("transaction_id")
        .agg(
            F.count_if(half).alias("halves"),
            F.count_if(decides).alias("decisions"),
            F.count_if(op & (kind == OpKind.COMMIT.value)).alias("commits"),
            F.count_if(op & (kind == OpKind.ROLLBACK.value)).alias("rollbacks"),
            F.count_if(real).alias("reals"),
            F.count_if(record_type.isin(IS_DEAD_LETTER, IS_DEAD_LETTER_OF_UNREADABLE)).alias(
                "dead_letter_count"
            ),
            F.min(F.when(half | decides, F.col("life_hash"))).alias("life_hash_min"),
            F.max(F.when(half | decides, F.col("life_hash"))).alias("life_hash_max"),
            F.count_if(half & F.col("is_flawed")).alias("flaws"),
            _one(half, "message_index"),
            _one(half, "offset"),
            _one(half, "origin_offset"),
            _one(half, "requested_partition"),
            _one(half, "content_hash"),
            _one(half, "pair"),
            _one(decides, "offset", name="op_offset"),
            _one(decides, "op_half_offset"),
            _one(decides, "message_count"),
            _one(real, "content_hash", name="real_hash"),
            _one(real, "partition", name="real_partition"),
            _one(real, "offset", name="real_offset"),
            _one(real, "order_key"),
            F.max(F.when(real, bounds.topic_number(F.col("topic")))).alias("topic_number"),
        )
    )
    state = (
        F.when(~_is_one_original(), None)
        .when(_is_delivered(), DELIVERED)
        .when(
            (F.col("rollbacks") == 1) & (F.col("decisions") == 1) & _has_no_real_record(),
            ROLLED_BACK,
        )
        .when(
            (F.col("decisions") == 0) & _has_no_real_record() & F.lit(col=not bounds.are_ops_cut),
            UNDECIDED,
        )
    )
    is_without_half = (F.col("halves") + F.col("decisions") + F.col("dead_letter_count") == 0) & (
        F.col("reals") > 0
    )
    state = F.when(is_without_half, WITHOUT_HALF).otherwise(state)
    return sums.select("transaction_id", state.alias("state"), *DELIVERY_PLACES[1:])


def suspects(
    facts: DataFrame, sifted: DataFrame, count: int, others: DataFrame | None = None
) -> DataFrame:
    """Return the FACTS of the transactions that `sift` did not find plain, which are `count`.

    Those of `others` (column transaction_id), which belong to other installations, are left out.
    """
    ids = sifted.where(F.col("state").isNull() | (F.col("state") == WITHOUT_HALF)).select(
        "transaction_id"
    )
    if others is not None:
        ids = ids.join(others, "transaction_id", how="left_anti")
    return of_transactions(facts, ids, count)


def of_transactions(rows: DataFrame, ids: DataFrame, count: int) -> DataFrame:
    """Return the `rows` whose transaction is one of `ids`, which are at most `count`."""
    ids = broadcast_few(ids, count)
    return rows.join(ids, "transaction_id", how="left_semi").select(*rows.columns)


def broadcast_few(narrow: DataFrame, count: int) -> DataFrame:
    """Return rows as narrow as an id, for a join that broadcasts them if `count` are few enough."""
    return F.broadcast(narrow) if count <= _BROADCAST_MAX else narrow


def _one(rows: Column, column: str, *, name: str | None = None) -> Column:
    """Return the value of a column in those `rows` of a transaction, which is one at most."""
    return F.max(F.when(rows, F.col(column))).alias(name or column)


def _is_one_original() -> Column:
    return (
        (F.col("halves") == 1)
        & (F.col("life_hash_min") == F.col("life_hash_max"))
        & (F.col("message_index") == 0)
        & (F.col("offset") == F.col("origin_offset"))
        & (F.col("flaws") == 0)
        & (F.col("dead_letter_count") == 0)
    )


def _is_delivered() -> Column:
    requested_partition = F.col("requested_partition")
    return (
        (F.col("commits") == 1)
        & (F.col("decisions") == 1)
        & (F.col("reals") == 1)
        & (F.col("op_half_offset") >= F.col("origin_offset"))
        & F.col("message_count").isin(*_ONE_MESSAGE)
        & (F.col("real_hash") == F.col("content_hash"))
        & (
            (requested_partition == PARTITION_BY_KEY)
            | (requested_partition == F.col("real_partition"))
        )
    )


def _has_no_real_record() -> Column:
    return F.col("reals") == 0

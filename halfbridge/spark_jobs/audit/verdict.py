"""Compares the outcome of each message with its required outcome.

`judge` examines the transactions that `sift` did not find plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.spark_jobs.audit.computing import computed
from halfbridge.spark_jobs.audit.matching import MATCHED_MESSAGES, REFUSALS
from halfbridge.spark_jobs.audit.ruling import (
    DEAD_LETTER,
    DELIVER,
    LATE,
    LIFE,
    NOTHING,
    OPEN,
    UNKNOWN,
)
from halfbridge.spark_jobs.audit.sift import DELIVERED, DISCARDED, ROLLED_BACK, UNDECIDED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.matching import Matched

# Values of the column `outcome`, besides DELIVERED: what became of a message.
BOTH = "both"  # delivered and dead-lettered
WRONGLY_DEAD_LETTERED = "wrongly_dead_lettered"  # a dead letter with a reason that does not hold
DEAD_LETTERED = "dead_lettered"  # a dead letter, as required
STORED_LATE = "late"  # stored after the decision, as its dead letter says
ELSEWHERE = "elsewhere"  # sent to a real topic that was not read
ALTERED = "altered"  # a record with other content was delivered in its place
MISSING = "missing"
UNEXPECTED = "unexpected"  # delivered, although it must not be
NOT_DELIVERED = "not_delivered"  # neither delivered nor a dead letter, as required
EXPIRED = "expired"  # not known, because records were deleted
PENDING = "pending"  # not applied yet, or hidden by an open kafka_txn
REFUSED = "refused"  # a dead letter with a reason that the daemon may have for it
# Contract of `judge`: one row for each message.
JUDGED_MESSAGES = (
    *(*MATCHED_MESSAGES, "outcome"),
    *("other_partition", "other_offset"),  # of an ALTERED message: the place of the other record
    # The index of the transaction's message that precedes a delivered message in its real
    # partition; null where that is not known.
    "index_before",
)
# Contract of `_altered`: one row for each ALTERED message, with the place of the other record.
_ALTERED = (
    *("transaction_id", "topic", "life_hash", "message_index"),
    *("other_partition", "other_offset"),
)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdict on each message, and the real records that belong to no message."""

    messages: DataFrame  # JUDGED_MESSAGES: the matched messages with what became of them
    surplus: DataFrame  # the matched surplus without the records that ALTERED messages name


def judge(matched: Matched, bounds: Bounds) -> Verdicts:
    """Return the verdicts on `matched`."""
    judged = computed(_with_outcome(matched.messages, bounds))
    altered = computed(_altered(judged, matched.surplus))
    return Verdicts(
        messages=computed(_with_index_before(_with_altered(judged, altered))),
        surplus=computed(_without_altered(matched.surplus, altered)),
    )


def lives(messages: DataFrame) -> DataFrame:
    """Return one row for each transaction: LIFE and state, as in sift; MISSING: lost or torn."""
    worst = F.min(_rank())
    kind = F.first("kind")
    unknown = F.max(F.col("required") == UNKNOWN)
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


_RANKS = (MISSING, PENDING, EXPIRED, ELSEWHERE, REFUSED)
_AS_REFUSED = (DEAD_LETTERED, STORED_LATE, WRONGLY_DEAD_LETTERED)


def _ranks() -> Column:
    return F.array(*(F.lit(each) for each in _RANKS))


def _rank() -> Column:
    outcome = F.col("outcome")
    chain = F.when(outcome.isin(*_AS_REFUSED), len(_RANKS) - 1)
    for number, each in enumerate(_RANKS):
        chain = chain.when(outcome == each, number)
    return chain.otherwise(len(_RANKS))


def _with_outcome(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the MATCHED_MESSAGES with `outcome`, in which no message is ALTERED yet."""
    is_late = F.max(_is_stored_late() & (F.col("required") == DELIVER))
    has_late = F.coalesce(is_late.over(Window.partitionBy(*LIFE)), F.lit(col=False))
    return (
        messages.withColumn("has_late_message", has_late)
        .withColumn("outcome", _outcome(bounds))
        .drop("has_late_message")
    )


def _outcome(bounds: Bounds) -> Column:
    required = F.col("required")
    applied = bounds.is_applied(F.col("pair"), F.col("op_offset"), F.col("op_append_ms"))
    dead_letter_gone = bounds.dead_letter_may_be_deleted(F.col("op_append_ms"))
    is_delivered = F.col("real_offset").isNotNull()
    has_dead_letter = F.col("dead_letter_count") > 0
    is_inconclusive = F.col("inconclusive_reason").isNotNull()
    waits = ~applied | bounds.dead_letters_may_hide()
    return (
        F.when(required == UNKNOWN, EXPIRED)
        .when(
            required == DELIVER,
            _outcome_of_a_delivery(bounds, waits=waits, dead_letter_gone=dead_letter_gone),
        )
        .when(required == OPEN, F.when(is_delivered, DELIVERED).otherwise(PENDING))
        .when(is_delivered, UNEXPECTED)
        .when(
            required == NOTHING,
            F.when(has_dead_letter, WRONGLY_DEAD_LETTERED).otherwise(NOT_DELIVERED),
        )
        .when(required == LATE, STORED_LATE)
        .when((required == DEAD_LETTER) & (has_dead_letter | is_inconclusive), DEAD_LETTERED)
        .when(waits, PENDING)
        .when(dead_letter_gone, EXPIRED)
        .otherwise(MISSING)
    )


def _outcome_of_a_delivery(bounds: Bounds, *, waits: Column, dead_letter_gone: Column) -> Column:
    topic = F.col("topic")
    is_delivered = F.col("real_offset").isNotNull()
    has_dead_letter = F.col("dead_letter_count") > 0
    # The op was applied although the half offset that it names did not exist. A message that was
    # stored later is LATE, and so the others are INCOMPLETE.
    is_incomplete = F.col("has_late_message") & (
        F.col("dead_letter.reason") == DeadReason.INCOMPLETE.value
    )
    delivery_gone = bounds.delivery_may_be_deleted(topic, F.col("op_append_ms"))
    return (
        F.when(is_delivered & has_dead_letter, BOTH)
        .when(is_delivered, DELIVERED)
        .when(has_dead_letter & F.col("dead_letter.reason").isin(*REFUSALS), REFUSED)
        .when(has_dead_letter & is_incomplete, REFUSED)
        .when(has_dead_letter, WRONGLY_DEAD_LETTERED)
        .when(F.col("inconclusive_reason") == DeadReason.INVALID.value, REFUSED)
        .when(_is_stored_late(), STORED_LATE)
        .when(~bounds.is_audited(topic), ELSEWHERE)
        .when(waits | bounds.may_hide(topic), PENDING)
        .when(delivery_gone | dead_letter_gone, EXPIRED)
        .otherwise(MISSING)
    )


def _is_stored_late() -> Column:
    """Tell whether a message was stored after its decision, and dead-lettered as LATE.

    Where one of the two append times is not known, the dead letter alone counts.
    """
    has_times = (F.col("append_ms") >= 0) & (F.col("op_append_ms") >= 0)
    may_be_later = ~has_times | (F.col("append_ms") >= F.col("op_append_ms"))
    return (F.col("inconclusive_reason") == DeadReason.LATE.value) & may_be_later


def _altered(judged: DataFrame, surplus: DataFrame) -> DataFrame:
    """Return _ALTERED: messages without a record, and records without a message, n-th with n-th.

    Both are counted in each real topic of a transaction.
    """
    by_topic = Window.partitionBy("transaction_id", "topic")
    is_open = F.col("outcome").isin(MISSING, PENDING)
    waiting = (
        judged.where(is_open & (F.col("required") == DELIVER))
        .withColumn("place", F.row_number().over(by_topic.orderBy("message_index", "life_hash")))
        .select("transaction_id", "topic", "place", "life_hash", "message_index")
    )
    different = (
        surplus.where(~F.col("has_equal_message") & F.col("has_half_message"))
        .withColumn("place", F.row_number().over(by_topic.orderBy("partition", "offset")))
        .select(
            "transaction_id",
            "topic",
            "place",
            F.col("partition").alias("other_partition"),
            F.col("offset").alias("other_offset"),
        )
    )
    return waiting.join(different, ["transaction_id", "topic", "place"], how="inner").select(
        *_ALTERED
    )


def _with_altered(judged: DataFrame, altered: DataFrame) -> DataFrame:
    """Return `judged` with the places of other records, and those messages as ALTERED."""
    outcome = F.when(F.col("other_offset").isNotNull(), ALTERED).otherwise(F.col("outcome"))
    others = altered.drop("topic")
    return judged.join(others, [*LIFE, "message_index"], how="left").withColumn("outcome", outcome)


def _with_index_before(messages: DataFrame) -> DataFrame:
    """Return JUDGED_MESSAGES."""
    partition = Window.partitionBy(*LIFE, "real_topic", "real_partition").orderBy("real_offset")
    ahead = partition.rowsBetween(Window.unboundedPreceding, -1)
    last_known = F.last(
        F.when(F.col("is_order_known"), F.col("message_index")), ignorenulls=True
    ).over(ahead)
    index_before = F.when((F.col("required") == DELIVER) & F.col("is_order_known"), last_known)
    return messages.withColumn("index_before", index_before).select(*JUDGED_MESSAGES)


def _without_altered(surplus: DataFrame, altered: DataFrame) -> DataFrame:
    """Return `surplus` without the records that ALTERED messages name."""
    taken = altered.select(
        "transaction_id",
        "topic",
        F.col("other_partition").alias("partition"),
        F.col("other_offset").alias("offset"),
    )
    return surplus.join(taken, ["transaction_id", "topic", "partition", "offset"], how="left_anti")

"""Finds the real record and the dead letters of each message.

A real record carries its transaction id, but not always which message it is. So a message and a
real record belong together when transaction id and content hash are equal. Messages of one
transaction with equal content are called equal messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason
from halfbridge.spark_jobs.audit.computing import computed
from halfbridge.spark_jobs.audit.facts import IS_DEAD_LETTER, IS_REAL
from halfbridge.spark_jobs.audit.ruling import DELIVER, DETAILS, LIFE, OPEN, RULED_MESSAGES, UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Reasons of dead letters of a message that had to be delivered. A redelivery delivers it in another
# life of its transaction.
REFUSALS = (DeadReason.NOT_ALLOWED.value, DeadReason.UNDELIVERABLE.value)
# Reasons of dead letters that do not show what became of the message. A LATE one may be about a
# late duplicate of the message. The daemon writes an INVALID one before there is a decision.
INCONCLUSIVE = (DeadReason.LATE.value, DeadReason.INVALID.value)
_REAL = (
    *("real_topic", "real_partition", "real_offset", "real_append_ms", "real_born_ms"),
    "order_key",
)
_WITH_REFUSALS = (*RULED_MESSAGES, "is_refused")
# Contract of `_pairs`: a message, a real record, or both.
_PAIRS = (
    *("transaction_id", "content_hash", "rank"),
    *("life_hash", "message_index", "origin_offset", "offset", *DETAILS, "is_refused"),
    *_REAL,
    *("is_order_known", "is_partition_known", "is_partly_deleted"),
    *("has_equal_message", "has_half_message"),
)
# Contract of `_with_dead_letters`: one row for each message.
MATCHED_MESSAGES = (
    *(*LIFE, "message_index", "content_hash", "origin_offset", "offset", *DETAILS),
    *(*_REAL, "is_order_known", "is_partition_known"),
    *("dead_letter_count", "dead_letter", "last_dead_letter"),
    *("inconclusive_reason", "is_dead_letter_equal"),
)


@dataclass(frozen=True, slots=True)
class Matched:
    """Messages with their real records and dead letters, and the records that are left over.

    Example: the messages 0 and 2 of a transaction are equal, and real records with their content
    are at the offsets 50 and 53 of one partition. Message 0 is matched with 50, and 2 with 53.

    Attributes:
        messages: MATCHED_MESSAGES: the ruling's messages with further columns.

            - the columns of _REAL: the matched real record; null without one.
            - is_partition_known: each of the equal messages that must be delivered has a real
              record, and either all of them ask for a partition or none does. Then real_partition
              may be compared with the partition that the message asks for.
            - is_order_known: is_partition_known, and the real records of the equal messages are in
              one partition. Then their order may be compared with the order of the messages.
            - dead_letter_count: without those with a reason of INCONCLUSIVE.
            - dead_letter, last_dead_letter: the first and the last of these, as struct partition,
              offset, reason.
            - is_dead_letter_equal: all of these have the message's content.
            - inconclusive_reason: that of a dead letter with a reason of INCONCLUSIVE, or null.
        surplus: Real records without a message: transaction_id, topic, partition, offset,
            append_ms, first_ms, content_hash; has_equal_message: a message of the transaction has
            that content; has_half_message: the half topic has the transaction; is_partly_deleted:
            some messages of the transaction were deleted.
        stray: Dead letters whose message is not in the half topic: transaction_id, resume_count,
            pair, message_index, partition, offset, append_ms, reason, origin_offset.
    """

    messages: DataFrame
    surplus: DataFrame
    stray: DataFrame


def match(facts: DataFrame, messages: DataFrame) -> Matched:
    """Return `messages`, matched with the real records and the dead letters in `facts`."""
    letters = _dead_letters(facts)
    pairs = computed(_pairs(facts, _with_refusals(messages, letters)))
    indices = messages.select(*LIFE, "message_index")
    return Matched(
        messages=_with_dead_letters(pairs.where(F.col("message_index").isNotNull()), letters),
        surplus=_surplus(pairs),
        stray=letters.join(indices, [*LIFE, "message_index"], how="left_anti"),
    )


def _pairs(facts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return _PAIRS: equal messages with the real records of their content, n-th with n-th.

    Messages that must be delivered come first, because a resumed transaction may have a message
    with the same content. Among these, messages that were refused come last: a redelivered message
    is refused in one life, and delivered in the next one. Messages that ask for a partition are
    sorted by it, as the records are.
    Where the real records of equal messages are in several partitions, or some of them are missing,
    it is not known which record belongs to which message, and is_order_known is false.
    """
    alike = Window.partitionBy("transaction_id", "content_hash")
    is_wanted = F.col("required").isin(DELIVER, OPEN)
    ranked = messages.withColumn(
        "rank",
        F.row_number().over(
            alike.orderBy(
                is_wanted.cast("int").desc(),
                "is_refused",
                "requested_partition",
                "message_index",
                "life_hash",
            )
        ),
    )
    reals = (
        facts.where(F.col("record_type") == IS_REAL)
        .withColumn("rank", F.row_number().over(alike.orderBy("topic", "partition", "offset")))
        .select(
            "transaction_id",
            "content_hash",
            "rank",
            F.col("topic").alias("real_topic"),
            F.col("partition").alias("real_partition"),
            F.col("offset").alias("real_offset"),
            F.col("append_ms").alias("real_append_ms"),
            F.col("first_ms").alias("real_born_ms"),
            "order_key",
        )
    )
    is_message = F.col("message_index").isNotNull()
    in_one = F.min("real_partition").over(alike) == F.max("real_partition").over(alike)
    is_mixed = (F.min("requested_partition").over(alike) < 0) & (
        F.max("requested_partition").over(alike) >= 0
    )
    is_due = is_wanted & ~F.col("is_refused")
    has_all_records = F.count_if(is_due).over(alike) <= F.count("real_partition").over(alike)
    is_partly_deleted = F.max(F.col("required") == UNKNOWN).over(
        Window.partitionBy("transaction_id")
    )
    return (
        ranked.join(reals, ["transaction_id", "content_hash", "rank"], how="full_outer")
        .withColumn("has_equal_message", F.max(is_message).over(alike))
        .withColumn(
            "is_order_known", F.coalesce(in_one & ~is_mixed & has_all_records, F.lit(col=False))
        )
        .withColumn("is_partition_known", ~is_mixed & has_all_records)
        .withColumn("is_partly_deleted", F.coalesce(is_partly_deleted, F.lit(col=False)))
        .withColumn(
            "has_half_message", F.max(is_message).over(Window.partitionBy("transaction_id"))
        )
        .select(*_PAIRS)
    )


def _with_refusals(messages: DataFrame, letters: DataFrame) -> DataFrame:
    """Return _WITH_REFUSALS; is_refused: a dead letter with a reason of REFUSALS is there."""
    refused = (
        letters.where(F.col("reason").isin(*REFUSALS))
        .select(*LIFE, "message_index", F.lit(col=True).alias("is_refused"))
        .distinct()
    )
    return (
        messages.join(refused, [*LIFE, "message_index"], how="left")
        .withColumn("is_refused", F.coalesce("is_refused", F.lit(col=False)))
        .select(*_WITH_REFUSALS)
    )


def _surplus(pairs: DataFrame) -> DataFrame:
    return pairs.where(F.col("message_index").isNull()).select(
        "transaction_id",
        "content_hash",
        F.col("real_topic").alias("topic"),
        F.col("real_partition").alias("partition"),
        F.col("real_offset").alias("offset"),
        F.col("real_append_ms").alias("append_ms"),
        F.col("real_born_ms").alias("first_ms"),
        "has_equal_message",
        "has_half_message",
        "is_partly_deleted",
    )


def _dead_letters(facts: DataFrame) -> DataFrame:
    return facts.where(F.col("record_type") == IS_DEAD_LETTER).select(
        *LIFE,
        "message_index",
        "resume_count",
        "pair",
        "partition",
        "offset",
        "append_ms",
        "origin_offset",
        F.col("kind").alias("reason"),
        F.col("content_hash").alias("dead_letter_hash"),
    )


def _with_dead_letters(messages: DataFrame, letters: DataFrame) -> DataFrame:
    """Return MATCHED_MESSAGES of the _PAIRS that have a message."""
    # If a transaction has messages with an index of 1,000 or more, the daemon dead-letters all of
    # those but the first as soon as it reads them, before there is a decision.
    is_excess = F.col("message_index") >= TRANSACTION_MESSAGES_MAX
    is_too_large = F.col("reason") == DeadReason.TOO_LARGE.value
    is_inconclusive = F.col("reason").isin(*INCONCLUSIVE) | (is_excess & is_too_large)
    place = F.when(~is_inconclusive, F.struct("partition", "offset", "reason"))
    content = F.when(~is_inconclusive, F.col("dead_letter_hash"))
    summed = letters.groupBy(*LIFE, "message_index").agg(
        F.count_if(~is_inconclusive).alias("dead_letter_count"),
        F.min(place).alias("dead_letter"),
        F.max(place).alias("last_dead_letter"),
        F.min(F.when(is_inconclusive, F.col("reason"))).alias("inconclusive_reason"),
        F.min(content).alias("content_min"),
        F.max(content).alias("content_max"),
    )
    is_like = (F.col("content_min") == F.col("content_hash")) & (
        F.col("content_max") == F.col("content_hash")
    )
    return (
        messages.join(summed, [*LIFE, "message_index"], how="left")
        .withColumn("dead_letter_count", F.coalesce("dead_letter_count", F.lit(0)))
        .withColumn("is_dead_letter_equal", F.coalesce(is_like, F.lit(col=True)))
        .select(*MATCHED_MESSAGES)
    )

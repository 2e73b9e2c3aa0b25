"""Finds the real record and the dead letters of each message.

A real record carries its transaction id, but not always which message it is. So a message and a
real record belong together when transaction id and content hash are equal. Messages of one
transaction with equal content are called equal messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason
from halfbridge.spark_jobs.audit.facts import IS_LETTER, IS_REAL
from halfbridge.spark_jobs.audit.ruling import (
    DELIVER,
    DETAILS,
    LIFE,
    OPEN,
    RULED_MESSAGES,
    UNKNOWN,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.ruling import Compute

# Reasons of dead letters of a message that had to be delivered. A redelivery delivers it in another
# life of its transaction.
_REFUSALS = (DeadReason.NOT_ALLOWED.value, DeadReason.UNDELIVERABLE.value)
# Reasons of dead letters that do not show what became of the message. A LATE one may be about a
# late duplicate of the message. The daemon writes an INVALID one before there is a decision.
_ASIDE = (DeadReason.LATE.value, DeadReason.INVALID.value)

_REAL = ("real_topic", "real_part", "real_at", "real_ms", "real_born_ms", "lane")
_WITH_REFUSALS = (*RULED_MESSAGES, "is_refused")
# Contract of `_pairs`: a message, a real record, or both.
_PAIRS = (
    *("txn", "hash", "rank", "ident", "index", "origin", "at", *DETAILS, "is_refused"),
    *_REAL,
    *("is_known", "is_sure", "is_seen", "is_blind", "has_life"),
)
# Contract of `_with_letters`: one row for each message.
MATCHED_MESSAGES = (
    *(*LIFE, "index", "hash", "origin", "at", *DETAILS),
    *(*_REAL, "is_sure", "is_seen"),
    *("letters", "letter", "letter_last", "aside", "is_letter_like"),
)


@dataclass(frozen=True, slots=True)
class Matched:
    """Messages with their real records and dead letters, and the records that are left over.

    Example: the messages 0 and 2 of a transaction are equal, and real records with their content
    are at the offsets 50 and 53 of one partition. Message 0 is matched with 50, and 2 with 53.

    Attributes:
        messages: MATCHED_MESSAGES: the ruling's messages with further columns.

            - the columns of _REAL: the matched real record; null without one.
            - is_seen: each of the equal messages that must be delivered has a real record, and
              either all of them ask for a partition or none does. Then real_part may be compared
              with the partition that the message asks for.
            - is_sure: is_seen, and the real records of the equal messages are in one partition.
              Then their order may be compared with the order of the messages.
            - letters: how many dead letters there are, without the reasons of _ASIDE.
            - letter, letter_last: the first and the last of these, as struct part, at, reason.
            - is_letter_like: all of these have the message's content.
            - aside: the reason of a dead letter with a reason of _ASIDE, or null.
        surplus: Real records without a message: txn, topic, part, at, ms, first_ms, hash; is_known:
            a message of the transaction has that content; has_life: the half topic has the
            transaction; is_blind: some messages of the transaction were deleted.
        stray: Dead letters whose message is not in the half topic: txn, resume, pair, index, part,
            at, ms, reason, origin.
    """

    messages: DataFrame
    surplus: DataFrame
    stray: DataFrame


def match(facts: DataFrame, messages: DataFrame, compute: Compute) -> Matched:
    """Return `messages`, matched with the real records and the dead letters in `facts`."""
    letters = _letters(facts)
    pairs = compute(_pairs(facts, _with_refusals(messages, letters)))
    indices = messages.select(*LIFE, "index")
    return Matched(
        messages=_with_letters(pairs.where(F.col("index").isNotNull()), letters),
        surplus=_surplus(pairs),
        stray=letters.join(indices, [*LIFE, "index"], how="left_anti"),
    )


def _pairs(facts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return _PAIRS: equal messages with the real records of their content, n-th with n-th.

    Messages that must be delivered come first, because a resumed transaction may have a message
    with the same content. Among these, messages that were refused come last: a redelivered message
    is refused in one life, and delivered in the next one. Messages that ask for a partition are
    sorted by it, as the records are.
    Where the real records of equal messages are in several partitions, or some of them are missing,
    it is not known which record belongs to which message. Such messages are not is_sure.
    """
    alike = Window.partitionBy("txn", "hash")
    is_wanted = F.col("must").isin(DELIVER, OPEN)
    ranked = messages.withColumn(
        "rank",
        F.row_number().over(
            alike.orderBy(is_wanted.cast("int").desc(), "is_refused", "to_part", "index", "ident")
        ),
    )
    reals = (
        facts.where(F.col("what") == IS_REAL)
        .withColumn("rank", F.row_number().over(alike.orderBy("topic", "part", "at")))
        .select(
            "txn",
            "hash",
            "rank",
            F.col("topic").alias("real_topic"),
            F.col("part").alias("real_part"),
            F.col("at").alias("real_at"),
            F.col("ms").alias("real_ms"),
            F.col("first_ms").alias("real_born_ms"),
            "lane",
        )
    )
    is_message = F.col("index").isNotNull()
    equals = Window.partitionBy("txn", "hash")
    in_one = F.min("real_part").over(equals) == F.max("real_part").over(equals)
    is_mixed = (F.min("to_part").over(equals) < 0) & (F.max("to_part").over(equals) >= 0)
    is_due = is_wanted & ~F.col("is_refused")
    is_seen = F.count_if(is_due).over(equals) <= F.count("real_part").over(equals)
    is_blind = F.max(F.col("must") == UNKNOWN).over(Window.partitionBy("txn"))
    return (
        ranked.join(reals, ["txn", "hash", "rank"], how="full_outer")
        .withColumn("is_known", F.max(is_message).over(equals))
        .withColumn("is_sure", F.coalesce(in_one & ~is_mixed & is_seen, F.lit(col=False)))
        .withColumn("is_seen", ~is_mixed & is_seen)
        .withColumn("is_blind", F.coalesce(is_blind, F.lit(col=False)))
        .withColumn("has_life", F.max(is_message).over(Window.partitionBy("txn")))
        .select(*_PAIRS)
    )


def _with_refusals(messages: DataFrame, letters: DataFrame) -> DataFrame:
    """Return _WITH_REFUSALS; is_refused: a dead letter with a reason of _REFUSALS is there."""
    refused = (
        letters.where(F.col("reason").isin(*_REFUSALS))
        .select(*LIFE, "index", F.lit(col=True).alias("is_refused"))
        .distinct()
    )
    return (
        messages.join(refused, [*LIFE, "index"], how="left")
        .withColumn("is_refused", F.coalesce("is_refused", F.lit(col=False)))
        .select(*_WITH_REFUSALS)
    )


def _surplus(pairs: DataFrame) -> DataFrame:
    return pairs.where(F.col("index").isNull()).select(
        "txn",
        "hash",
        F.col("real_topic").alias("topic"),
        F.col("real_part").alias("part"),
        F.col("real_at").alias("at"),
        F.col("real_ms").alias("ms"),
        F.col("real_born_ms").alias("first_ms"),
        "is_known",
        "has_life",
        "is_blind",
    )


def _letters(facts: DataFrame) -> DataFrame:
    return facts.where(F.col("what") == IS_LETTER).select(
        *LIFE,
        "index",
        "resume",
        "pair",
        "part",
        "at",
        "ms",
        "origin",
        F.col("kind").alias("reason"),
        F.col("hash").alias("letter_hash"),
    )


def _with_letters(messages: DataFrame, letters: DataFrame) -> DataFrame:
    """Return MATCHED_MESSAGES of the _PAIRS that have a message."""
    # Of the messages of a transaction with an index of 1,000 or more, the daemon dead-letters all
    # but the first as soon as it reads them, before there is a decision.
    is_excess = F.col("index") >= TRANSACTION_MESSAGES_MAX
    is_too_large = F.col("reason") == DeadReason.TOO_LARGE.value
    is_aside = F.col("reason").isin(*_ASIDE) | (is_excess & is_too_large)
    place = F.when(~is_aside, F.struct("part", "at", "reason"))
    content = F.when(~is_aside, F.col("letter_hash"))
    summed = letters.groupBy(*LIFE, "index").agg(
        F.count_if(~is_aside).alias("letters"),
        F.min(place).alias("letter"),
        F.max(place).alias("letter_last"),
        F.min(F.when(is_aside, F.col("reason"))).alias("aside"),
        F.min(content).alias("content_min"),
        F.max(content).alias("content_max"),
    )
    is_like = (F.col("content_min") == F.col("hash")) & (F.col("content_max") == F.col("hash"))
    return (
        messages.join(summed, [*LIFE, "index"], how="left")
        .withColumn("letters", F.coalesce("letters", F.lit(0)))
        .withColumn("is_letter_like", F.coalesce(is_like, F.lit(col=True)))
        .select(*MATCHED_MESSAGES)
    )

"""Finds what came of each message: the real record with its content, and its dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason
from halfbridge.spark_jobs.audit.facts import IS_LETTER, IS_REAL
from halfbridge.spark_jobs.audit.ruling import DELIVER, LIFE, OPEN, UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.ruling import Compute

# Letters that say nothing about the message that stands: a duplicate of it may have come late,
# and one that the daemon could not read had its letter before anybody decided anything.
_ASIDE = (DeadReason.LATE.value, DeadReason.INVALID.value)


@dataclass(frozen=True, slots=True)
class Matched:
    """What came out, beside what went in.

    Attributes:
        messages: The ruling's messages, each with the real record that has its content
            (real_topic, real_part, real_at, lane; null: none), is_seen (all its equals have one,
            and were bound alike, so that it is the right one), is_sure (and these stand in one
            partition, in an order that says something) and with its letters (letters: how many that
            decide; letter, letter_last: the first and the last of these as struct part, at, reason;
            is_letter_like: they have its content; aside: reason of one that does not decide, or
            null).
        surplus: Real records that no message is left for: txn, topic, part, at, ms, first_ms,
            hash, is_known (some message of the transaction has that content), has_life (the half
            topic has the transaction), is_blind (and not all of it any more).
        stray: Dead letters of messages that are not there: txn, resume, pair, index, part, at,
            ms, reason, origin.
    """

    messages: DataFrame
    surplus: DataFrame
    stray: DataFrame


def match(facts: DataFrame, messages: DataFrame, compute: Compute) -> Matched:
    """Return what came of `messages`, which `facts` hold too."""
    pairs = compute(_pairs(facts, messages))
    letters = _letters(facts)
    indices = messages.select(*LIFE, "index")
    return Matched(
        messages=_with_letters(pairs.where(F.col("index").isNotNull()), letters),
        surplus=_surplus(pairs),
        stray=letters.join(indices, [*LIFE, "index"], "left_anti"),
    )


def _pairs(facts: DataFrame, messages: DataFrame) -> DataFrame:
    """Pair messages and real records with the same content, the n-th with the n-th.

    Messages that must be delivered come first: another life of the transaction may have had the
    same content. Those bound for a partition come in its order, as the records do. Where equals
    stand in several partitions, or some of them are not to be seen, nobody can tell which is which:
    they say nothing about order.
    """
    alike = Window.partitionBy("txn", "hash")
    is_wanted = F.col("must").isin(DELIVER, OPEN)
    ranked = messages.withColumn(
        "rank",
        F.row_number().over(
            alike.orderBy(is_wanted.cast("int").desc(), "to_part", "index", "ident")
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
    is_seen = F.count_if(is_wanted).over(equals) <= F.count("real_part").over(equals)
    is_blind = F.max(F.col("must") == UNKNOWN).over(Window.partitionBy("txn"))
    return (
        ranked.join(reals, ["txn", "hash", "rank"], "full_outer")
        .withColumn("is_known", F.max(is_message).over(equals))
        .withColumn("is_sure", F.coalesce(in_one & ~is_mixed & is_seen, F.lit(col=False)))
        .withColumn("is_seen", ~is_mixed & is_seen)
        .withColumn("is_blind", F.coalesce(is_blind, F.lit(col=False)))
        .withColumn("has_life", F.max(is_message).over(Window.partitionBy("txn")))
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
    # Of messages with indices that no transaction can have, all but the first are buried at once.
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
        messages.drop("rank", "is_known", "has_life", "is_blind")
        .join(summed, [*LIFE, "index"], "left")
        .withColumn("letters", F.coalesce("letters", F.lit(0)))
        .withColumn("is_letter_like", F.coalesce(is_like, F.lit(col=True)))
        .drop("content_min", "content_max")
    )

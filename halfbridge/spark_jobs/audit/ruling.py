"""Finds the decision of each transaction, the required outcome of each message, and its records.

The rules are those of the daemon (DESIGN.md, The rules), applied to the log alone: the first
decision wins, a COMMIT delivers all messages that it covers or none, and a DISCARD is valid from
the daemon or an operator only.

`match` then finds the real record and the dead letters of each message. A real record carries its
transaction id, but not always which message it is. So a message and a real record belong together
when transaction id and content hash are equal. Messages of one transaction with equal content are
called equal messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.spark_jobs.audit.facts import IS_HALF, IS_LETTER, IS_OP, IS_REAL, born_ms
from halfbridge.spark_jobs.reading.decisions import (
    contradicts,
    covers_what_is_there,
    decides,
    proves_its_age,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

    Compute = Callable[[DataFrame], DataFrame]

# What must become of a message.
DELIVER = "deliver"
DEAD_LETTER = "dead-letter"  # the message must become a dead letter
NOTHING = "nothing"
LATE = "late"  # stored after the decision: a dead letter if the daemon still knew the decision
OPEN = "open"  # the decision names half offsets beyond the snapshot: any result is right
UNKNOWN = "unknown"  # the decision or some messages of the transaction were deleted
LIFE = ("txn", "ident")
# Columns of a message besides its key, its place and its content.
DETAILS = (
    *("topic", "to_part", "flaw", "ms", "pair", "resume"),
    "first_ms",  # the earliest first append time of the message's records
    *("op_at", "kind", "half_to", "count", "op_ms"),  # of the first decision; null: undecided
    "is_gap",  # a message is missing
    "must",
)
# Contract of `_ruled`: one row for each message. FACTS says what its other columns are.
RULED_MESSAGES = (*LIFE, "index", "origin", "at", "hash", *DETAILS)


@dataclass(frozen=True, slots=True)
class Ruled:
    """The decisions of the op topic, joined with the half messages."""

    messages: DataFrame  # RULED_MESSAGES, one row for each message
    # Ops that contradict the first decision: txn, ident, resume, pair, op_at, kind, first_kind (the
    # kind of the first decision).
    conflicts: DataFrame
    # Deciding ops of transactions without a half message: txn, ident, resume, pair, op_at, op_ms,
    # kind, source, half_to; is_foreign: a half message of another group, pair or resume count has
    # that id.
    orphans: DataFrame


def rule(facts: DataFrame, bounds: Bounds, compute: Compute) -> Ruled:
    """Return the ruling on `facts`; `compute` computes the frames that are used more than once."""
    found = _messages(facts)
    messages = found.drop("original", "copied_ms")
    lives = (
        found.groupBy(*LIFE)
        .agg(F.min("original").alias("original"), F.min("copied_ms").alias("copied_ms"))
        .select(*LIFE, born_ms(F.col("original.first_ms"), F.col("copied_ms")).alias("born_ms"))
    )
    ops = _deciding(facts)
    known = compute(ops.join(lives, list(LIFE), how="inner").where(_is_proven()))
    details = ("half_to", "count", "op_ms", "source")
    first = known.groupBy(*LIFE).agg(first_decision(*details).alias("decision"))
    return Ruled(
        messages=compute(_ruled(messages.join(first, list(LIFE), how="left"), bounds)),
        conflicts=_conflicts(known, first),
        orphans=_orphans(ops, lives),
    )


def first_decision(*details: str) -> Column:
    """Return the first of a transaction's deciding ops that may take effect; null: undecided.

    It is an aggregate over the columns op_at, kind, age_ms, op_ms, born_ms. The struct has op_at,
    kind and the columns `details`.
    """
    return F.min(F.when(_is_proven(), F.struct("op_at", "kind", *details)))


def is_above() -> Column:
    """Tell whether a message was stored above the half offset of its decision, so that it is late.

    The columns are `origin` and `half_to`. Null: there is no decision.
    """
    return F.col("origin") > F.col("half_to")


def _is_proven() -> Column:
    return proves_its_age(F.col("age_ms"), F.col("op_ms"), F.col("born_ms"))


def _messages(facts: DataFrame) -> DataFrame:
    """Return one row for each message: its first original, or a copy if the original was deleted.

    Further columns: first_ms, the earliest first append time of the message's records; original,
    offset and append time of the first original; copied_ms, the first append time that the copies
    carry.
    """
    is_original = F.col("at") == F.col("origin")
    record = F.min(
        F.struct(
            "origin", "at", "hash", "topic", "to_part", "flaw", "bytes", "ms", "pair", "resume"
        )
    )
    return (
        facts.where(F.col("what") == IS_HALF)
        .groupBy(*LIFE, "index")
        .agg(
            record.alias("half"),
            F.min("first_ms").alias("first_ms"),
            F.min(F.when(is_original, F.struct("at", "first_ms"))).alias("original"),
            F.min(F.when(~is_original, F.col("first_ms"))).alias("copied_ms"),
        )
        .select(*LIFE, "index", "half.*", "first_ms", "original", "copied_ms")
    )


def _deciding(facts: DataFrame) -> DataFrame:
    is_decision = (F.col("what") == IS_OP) & decides(F.col("kind"), F.col("source"))
    return facts.where(is_decision).select(
        *LIFE,
        "resume",
        "pair",
        F.col("at").alias("op_at"),
        F.col("ms").alias("op_ms"),
        "kind",
        "source",
        "age_ms",
        "half_to",
        "count",
    )


def _conflicts(known: DataFrame, first: DataFrame) -> DataFrame:
    first_decision = F.col("decision")
    is_conflict = contradicts(first_decision["kind"], F.col("kind"), F.col("source"))
    return (
        known.join(first, list(LIFE), how="inner")
        .where((F.col("op_at") > first_decision["op_at"]) & is_conflict)
        .select(
            *LIFE, "resume", "pair", "op_at", "kind", first_decision["kind"].alias("first_kind")
        )
    )


def _orphans(ops: DataFrame, lives: DataFrame) -> DataFrame:
    others = lives.select("txn").distinct().withColumn("is_foreign", F.lit(col=True))
    columns = (*LIFE, "resume", "pair", "op_at", "op_ms", "kind", "source", "half_to")
    return (
        ops.join(lives, list(LIFE), how="left_anti")
        .join(others, "txn", how="left")
        .select(*columns, F.coalesce("is_foreign", F.lit(col=False)).alias("is_foreign"))
    )


def _ruled(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return RULED_MESSAGES: adds the decision, and what must become of each message."""
    life = Window.partitionBy(*LIFE)
    decided = messages.select("*", "decision.*").drop("decision")
    committed = F.col("kind") == OpKind.COMMIT.value
    is_extra = (F.col("count") >= 0) & (F.col("index") >= F.col("count"))
    meant = decided.withColumn("is_late", is_above()).withColumn(
        "is_meant", F.coalesce(committed & ~is_above() & ~is_extra, F.lit(col=False))
    )
    meant_here = F.count_if("is_meant").over(life)
    summed = (
        meant.withColumn("meant_here", meant_here)
        .withColumn("meant_last", F.max(F.when(F.col("is_meant"), F.col("index"))).over(life))
        .withColumn("has_flaw", F.max(F.col("is_meant") & F.col("flaw")).over(life))
        .withColumn("bytes_meant", F.sum(F.when(F.col("is_meant"), F.col("bytes"))).over(life))
        .withColumn("index_first", F.min("index").over(life))
    )
    wanted = F.when(F.col("count") >= 0, F.col("count")).otherwise(F.col("meant_here"))
    is_partial = covers_what_is_there(F.col("resume"), F.col("source"), F.col("count"))
    is_short = (F.col("meant_here") != wanted) | (F.col("meant_last") != wanted - 1)
    is_gap = is_short & ~is_partial
    judged = summed.withColumn("is_gap", F.coalesce(F.col("is_meant") & is_gap, F.lit(col=False)))
    must = (
        # The first messages of the transaction were deleted, so it is not known completely.
        F.when(bounds.is_half_cut(F.col("pair")) & (F.col("index_first") > 0), UNKNOWN)
        .when(
            F.col("kind").isNull() & bounds.op_may_be_deleted(F.col("pair"), F.col("first_ms")),
            UNKNOWN,
        )
        .when(F.col("kind").isNull() | (F.col("kind") == OpKind.ROLLBACK.value), NOTHING)
        .when(F.col("is_late"), LATE)
        # The daemon applies, after a while, an op that names a half offset that does not exist.
        .when(
            bounds.is_ahead(F.col("pair"), F.col("half_to"))
            & ~bounds.is_applied(F.col("pair"), F.col("op_at"), F.col("op_ms")),
            OPEN,
        )
        .when(~F.col("is_meant") | F.col("is_gap") | F.col("has_flaw"), DEAD_LETTER)
        .when(F.col("bytes_meant") > TRANSACTION_BYTES_MAX, DEAD_LETTER)
        .otherwise(DELIVER)
    )
    return judged.withColumn("must", must).select(*RULED_MESSAGES)


# Reasons of dead letters of a message that had to be delivered. A redelivery delivers it in another
# life of its transaction.
_REFUSALS = (DeadReason.NOT_ALLOWED.value, DeadReason.UNDELIVERABLE.value)
# Reasons of dead letters that do not show what became of the message. A LATE one may be about a
# late duplicate of the message. The daemon writes an INVALID one before there is a decision.
ASIDE = (DeadReason.LATE.value, DeadReason.INVALID.value)
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
            - letters: how many dead letters there are, without the reasons of ASIDE.
            - letter, letter_last: the first and the last of these, as struct part, at, reason.
            - is_letter_like: all of these have the message's content.
            - aside: the reason of a dead letter with a reason of ASIDE, or null.
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
    # If a transaction has messages with an index of 1,000 or more, the daemon dead-letters all of
    # those but the first as soon as it reads them, before there is a decision.
    is_excess = F.col("index") >= TRANSACTION_MESSAGES_MAX
    is_too_large = F.col("reason") == DeadReason.TOO_LARGE.value
    is_aside = F.col("reason").isin(*ASIDE) | (is_excess & is_too_large)
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

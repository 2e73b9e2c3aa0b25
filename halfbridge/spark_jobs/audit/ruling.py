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
from halfbridge.spark_jobs.audit.facts import IS_DEAD_LETTER, IS_HALF, IS_OP, IS_REAL, born_ms
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
LIFE = ("transaction_id", "life_hash")
# Columns of a message besides its key, its place and its content.
DETAILS = (
    *("topic", "requested_partition", "is_flawed", "append_ms", "pair", "resume_count"),
    "first_ms",  # the earliest first append time of the message's records
    # Of the first decision; null: undecided.
    *("op_offset", "kind", "op_half_offset", "message_count", "op_append_ms"),
    "is_gap",  # a message is missing
    "required",
)
# Contract of `_ruled`: one row for each message. FACTS says what its other columns are.
RULED_MESSAGES = (*LIFE, "message_index", "origin_offset", "offset", "content_hash", *DETAILS)


@dataclass(frozen=True, slots=True)
class Ruled:
    """The decisions of the op topic, joined with the half messages."""

    messages: DataFrame  # RULED_MESSAGES, one row for each message
    # Ops that contradict the first decision: transaction_id, life_hash, resume_count, pair,
    # op_offset, kind, first_kind (the kind of the first decision).
    conflicts: DataFrame
    # Deciding ops of transactions without a half message: transaction_id, life_hash, resume_count,
    # pair, op_offset, op_append_ms, kind, source, op_half_offset; is_foreign: a half message of
    # another group, pair or resume count has that id.
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
    details = ("op_half_offset", "message_count", "op_append_ms", "source")
    first = known.groupBy(*LIFE).agg(first_decision(*details).alias("decision"))
    return Ruled(
        messages=compute(_ruled(messages.join(first, list(LIFE), how="left"), bounds)),
        conflicts=_conflicts(known, first),
        orphans=_orphans(ops, lives),
    )


def first_decision(*details: str) -> Column:
    """Return the first of a transaction's deciding ops that may take effect; null: undecided.

    It is an aggregate over the columns op_offset, kind, age_ms, op_append_ms, born_ms. The struct
    has op_offset, kind and the columns `details`.
    """
    return F.min(F.when(_is_proven(), F.struct("op_offset", "kind", *details)))


def is_above() -> Column:
    """Tell whether a message was stored above the half offset of its decision, so that it is late.

    The columns are `origin_offset` and `op_half_offset`. Null: there is no decision.
    """
    return F.col("origin_offset") > F.col("op_half_offset")


def _is_proven() -> Column:
    return proves_its_age(F.col("age_ms"), F.col("op_append_ms"), F.col("born_ms"))


def _messages(facts: DataFrame) -> DataFrame:
    """Return one row for each message: its first original, or a copy if the original was deleted.

    Further columns: first_ms, the earliest first append time of the message's records; original,
    offset and append time of the first original; copied_ms, the first append time that the copies
    carry.
    """
    is_original = F.col("offset") == F.col("origin_offset")
    record = F.min(
        F.struct(
            "origin_offset",
            "offset",
            "content_hash",
            "topic",
            "requested_partition",
            "is_flawed",
            "size_bytes",
            "append_ms",
            "pair",
            "resume_count",
        )
    )
    return (
        facts.where(F.col("record_type") == IS_HALF)
        .groupBy(*LIFE, "message_index")
        .agg(
            record.alias("half"),
            F.min("first_ms").alias("first_ms"),
            F.min(F.when(is_original, F.struct("offset", "first_ms"))).alias("original"),
            F.min(F.when(~is_original, F.col("first_ms"))).alias("copied_ms"),
        )
        .select(*LIFE, "message_index", "half.*", "first_ms", "original", "copied_ms")
    )


def _deciding(facts: DataFrame) -> DataFrame:
    is_decision = (F.col("record_type") == IS_OP) & decides(F.col("kind"), F.col("source"))
    return facts.where(is_decision).select(
        *LIFE,
        "resume_count",
        "pair",
        F.col("offset").alias("op_offset"),
        F.col("append_ms").alias("op_append_ms"),
        "kind",
        "source",
        "age_ms",
        "op_half_offset",
        "message_count",
    )


def _conflicts(known: DataFrame, first: DataFrame) -> DataFrame:
    first_decision = F.col("decision")
    is_conflict = contradicts(first_decision["kind"], F.col("kind"), F.col("source"))
    return (
        known.join(first, list(LIFE), how="inner")
        .where((F.col("op_offset") > first_decision["op_offset"]) & is_conflict)
        .select(
            *LIFE,
            "resume_count",
            "pair",
            "op_offset",
            "kind",
            first_decision["kind"].alias("first_kind"),
        )
    )


def _orphans(ops: DataFrame, lives: DataFrame) -> DataFrame:
    others = lives.select("transaction_id").distinct().withColumn("is_foreign", F.lit(col=True))
    columns = (
        *LIFE,
        "resume_count",
        "pair",
        "op_offset",
        "op_append_ms",
        "kind",
        "source",
        "op_half_offset",
    )
    return (
        ops.join(lives, list(LIFE), how="left_anti")
        .join(others, "transaction_id", how="left")
        .select(*columns, F.coalesce("is_foreign", F.lit(col=False)).alias("is_foreign"))
    )


def _ruled(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return RULED_MESSAGES: adds the decision, and what must become of each message."""
    life = Window.partitionBy(*LIFE)
    decided = messages.select("*", "decision.*").drop("decision")
    committed = F.col("kind") == OpKind.COMMIT.value
    is_extra = (F.col("message_count") >= 0) & (F.col("message_index") >= F.col("message_count"))
    covered = decided.withColumn("is_late", is_above()).withColumn(
        "is_covered", F.coalesce(committed & ~is_above() & ~is_extra, F.lit(col=False))
    )
    covered_count = F.count_if("is_covered").over(life)
    summed = (
        covered.withColumn("covered_count", covered_count)
        .withColumn(
            "covered_last", F.max(F.when(F.col("is_covered"), F.col("message_index"))).over(life)
        )
        .withColumn("has_flaw", F.max(F.col("is_covered") & F.col("is_flawed")).over(life))
        .withColumn(
            "covered_bytes", F.sum(F.when(F.col("is_covered"), F.col("size_bytes"))).over(life)
        )
        .withColumn("index_first", F.min("message_index").over(life))
    )
    wanted = F.when(F.col("message_count") >= 0, F.col("message_count")).otherwise(
        F.col("covered_count")
    )
    is_partial = covers_what_is_there(
        F.col("resume_count"), F.col("source"), F.col("message_count")
    )
    is_short = (F.col("covered_count") != wanted) | (F.col("covered_last") != wanted - 1)
    is_gap = is_short & ~is_partial
    judged = summed.withColumn("is_gap", F.coalesce(F.col("is_covered") & is_gap, F.lit(col=False)))
    required = (
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
            bounds.is_ahead(F.col("pair"), F.col("op_half_offset"))
            & ~bounds.is_applied(F.col("pair"), F.col("op_offset"), F.col("op_append_ms")),
            OPEN,
        )
        .when(~F.col("is_covered") | F.col("is_gap") | F.col("has_flaw"), DEAD_LETTER)
        .when(F.col("covered_bytes") > TRANSACTION_BYTES_MAX, DEAD_LETTER)
        .otherwise(DELIVER)
    )
    return judged.withColumn("required", required).select(*RULED_MESSAGES)


# Reasons of dead letters of a message that had to be delivered. A redelivery delivers it in another
# life of its transaction.
_REFUSALS = (DeadReason.NOT_ALLOWED.value, DeadReason.UNDELIVERABLE.value)
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
# Contract of `_with_letters`: one row for each message.
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


def match(facts: DataFrame, messages: DataFrame, compute: Compute) -> Matched:
    """Return `messages`, matched with the real records and the dead letters in `facts`."""
    letters = _letters(facts)
    pairs = compute(_pairs(facts, _with_refusals(messages, letters)))
    indices = messages.select(*LIFE, "message_index")
    return Matched(
        messages=_with_letters(pairs.where(F.col("message_index").isNotNull()), letters),
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
    equals = Window.partitionBy("transaction_id", "content_hash")
    in_one = F.min("real_partition").over(equals) == F.max("real_partition").over(equals)
    is_mixed = (F.min("requested_partition").over(equals) < 0) & (
        F.max("requested_partition").over(equals) >= 0
    )
    is_due = is_wanted & ~F.col("is_refused")
    has_all_records = F.count_if(is_due).over(equals) <= F.count("real_partition").over(equals)
    is_partly_deleted = F.max(F.col("required") == UNKNOWN).over(
        Window.partitionBy("transaction_id")
    )
    return (
        ranked.join(reals, ["transaction_id", "content_hash", "rank"], how="full_outer")
        .withColumn("has_equal_message", F.max(is_message).over(equals))
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
    """Return _WITH_REFUSALS; is_refused: a dead letter with a reason of _REFUSALS is there."""
    refused = (
        letters.where(F.col("reason").isin(*_REFUSALS))
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


def _letters(facts: DataFrame) -> DataFrame:
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


def _with_letters(messages: DataFrame, letters: DataFrame) -> DataFrame:
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

"""Finds the decision of each transaction and the required outcome of each message.

The rules are those of the daemon (DESIGN.md, The rules), applied to the log alone: the first
decision wins, a COMMIT delivers all messages that it covers or none, and a DISCARD is valid from
the daemon or an operator only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.audit.computing import computed
from halfbridge.spark_jobs.audit.facts import IS_HALF, IS_OP, born_ms
from halfbridge.spark_jobs.reading.decisions import (
    contradicts,
    covers_what_is_there,
    decides,
    proves_its_age,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds

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


def rule(facts: DataFrame, bounds: Bounds) -> Ruled:
    """Return the ruling on `facts`."""
    found = _messages(facts)
    messages = found.drop("original", "copied_ms")
    lives = (
        found.groupBy(*LIFE)
        .agg(F.min("original").alias("original"), F.min("copied_ms").alias("copied_ms"))
        .select(*LIFE, born_ms(F.col("original.first_ms"), F.col("copied_ms")).alias("born_ms"))
    )
    ops = _deciding(facts)
    known = computed(ops.join(lives, list(LIFE), how="inner").where(_is_proven()))
    details = ("op_half_offset", "message_count", "op_append_ms", "source")
    first = known.groupBy(*LIFE).agg(first_decision(*details).alias("decision"))
    return Ruled(
        messages=computed(_ruled(messages.join(first, list(LIFE), how="left"), bounds)),
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

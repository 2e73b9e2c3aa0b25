"""What is known of each transaction's decision, in a form that can be merged in any order.

Every column is a minimum or a maximum. So a state is the same whether it was made of all records
at once or of one batch after the other, and a batch that is merged twice changes nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.spark_jobs.audit.facts import decoded_halves, decoded_ops
from halfbridge.spark_jobs.audit.times import append_ms, born_ms, first_append_ms
from halfbridge.spark_jobs.reading.decisions import claimed_age_ms, decides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from halfbridge.spark_jobs.reading.believed import Believed

LIFE = ("transaction_id", "resume_count", "producer_group", "pair")
# Contract of `state_of_halves`, `state_of_ops` and `merged`; null: not known.
STATE = {
    "transaction_id": "string",
    "resume_count": "int",
    "producer_group": "string",
    "pair": "int",  # half and op partition
    # Time of its first half message, to be shown; of a record without an append time its writer's.
    "first_ms": "long",
    "original_at": "long",  # lowest offset of an original
    "original_ms": "long",  # append time of that original, or NO_APPEND_MS
    "copied_ms": "long",  # lowest first append time that a copy says
    "half_offset": "long",  # lowest one that is left
    "message_index": "int",  # of the message whose real topic is told: the first
    "real_topic": "string",
    "index_last": "int",
    "checks": "int",  # answered checks that counted
    "op_offset": "long",  # lowest decision
    "aged_ms": "long",  # highest birth of which a discard for age proves the age it claims
    "last_ms": "long",  # newest time of any of its records
}


def state_of_halves(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return the STATE that each row of the half topic tells of; as `decoded_halves`."""
    read = decoded_halves(records, judge).where(F.col("unread").isNull())
    meta, ms = F.col("meta"), F.unix_millis("timestamp")
    is_copy = meta["origin_offset"] >= 0
    claimed_ms = meta["first_append_timestamp"]
    return _state(
        read,
        meta,
        first_ms=F.when(is_copy & (claimed_ms >= 0), F.least(claimed_ms, ms)).otherwise(ms),
        original_at=F.when(~is_copy, F.col("offset")),
        original_ms=F.when(~is_copy, append_ms()),
        copied_ms=F.when(is_copy, first_append_ms(meta)),
        half_offset=F.col("offset"),
        message_index=meta["message_index"],
        real_topic=meta["real_topic"],
        index_last=meta["message_index"],
        # An original that claims to have been checked is forged or broken: it was not.
        checks=F.when(is_copy, meta["check_times"]).otherwise(0),
    )


def state_of_ops(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return the STATE that each row of the op topic tells of; as `decoded_ops`."""
    read = decoded_ops(records, judge).where(F.col("unread").isNull())
    op = F.col("op")
    age_ms = claimed_age_ms(op["kind"], op["source"], op["age_ms"])
    is_decision = decides(op["kind"], op["source"])
    return _state(
        read,
        op,
        op_offset=F.when(is_decision & (age_ms == 0), F.col("offset")),
        aged_ms=F.when((age_ms > 0) & (append_ms() >= 0), append_ms() - age_ms),
    )


def merged(*states: DataFrame) -> DataFrame:
    """Return one row a transaction of frames that have the columns STATE."""
    together = reduce(DataFrame.unionAll, states)
    original = F.struct("original_at", "original_ms")
    summed = together.groupBy(*LIFE).agg(
        F.min("first_ms").alias("first_ms"),
        F.min(F.when(F.col("original_at").isNotNull(), original)).alias("original"),
        F.min("copied_ms").alias("copied_ms"),
        F.min("half_offset").alias("half_offset"),
        F.min("message_index").alias("message_index"),
        F.min_by("real_topic", "message_index").alias("real_topic"),
        F.max("index_last").alias("index_last"),
        F.max("checks").alias("checks"),
        F.min("op_offset").alias("op_offset"),
        F.max("aged_ms").alias("aged_ms"),
        F.max("last_ms").alias("last_ms"),
    )
    return summed.select("*", "original.*").select(*STATE)


def is_decided() -> Column:
    """Tell of a merged STATE whether a decision stands."""
    born = born_ms(F.col("original_ms"), F.col("copied_ms"))
    proven = (born >= 0) & (born <= F.col("aged_ms"))
    return F.col("op_offset").isNotNull() | F.coalesce(proven, F.lit(col=False))


def undecided(state: DataFrame) -> DataFrame:
    """Return the transactions of a merged STATE that have half messages and no decision."""
    return state.where(F.col("first_ms").isNotNull() & ~is_decided())


def kept(state: DataFrame, *, keep_ms: int) -> DataFrame:
    """Return a merged STATE without what was decided long ago.

    A half message that is read after its decision, as a copy that was put back just before it, or
    because the op topic is read ahead, would be undecided for ever once the decision was
    forgotten. So decisions are kept for `keep_ms` behind the half messages read so far of their
    own pair, measured in append times.
    """
    appended_ms = F.greatest("original_ms", "copied_ms")
    newest = state.groupBy("pair").agg(F.max(appended_ms).alias("newest_ms"))
    is_old = F.coalesce(F.col("last_ms") < F.col("newest_ms") - keep_ms, F.lit(col=False))
    known = state.join(F.broadcast(newest), "pair", how="inner")
    return known.where(~(is_decided() & is_old)).select(*STATE)


def _state(frame: DataFrame, record: Column, **given: Column) -> DataFrame:
    columns: Mapping[str, Column] = {
        **{name: record[name] for name in LIFE if name != "pair"},
        "pair": F.col("partition"),
        "last_ms": F.unix_millis("timestamp"),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in STATE.items())
    )

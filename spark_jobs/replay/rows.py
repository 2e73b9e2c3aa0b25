"""From the rows of a source to the rows that are sent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import RESERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.replay.plan import Bounds

REPLAY_ID = "replay.id"
# What a source must have: Spark's Kafka source and the table of `ingest` do.
COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"


def selected(rows: DataFrame, *, where: str, replay_id: str) -> DataFrame:
    """Return the rows that are to be sent, with COLUMNS.

    Rows that this replay has sent itself are left out: it may read the topic that it writes to.

    Args:
        rows: Has COLUMNS, and whatever `where` names.
        where: A SQL condition; empty: all rows.
        replay_id: Of this replay.
    """
    wanted = rows.where(where) if where else rows
    sent = F.exists(
        _headers(),
        lambda header: (
            (header["key"] == F.lit(REPLAY_ID))
            # A header may have no value, and what compares with that is neither true nor false.
            & header["value"].eqNullSafe(F.lit(replay_id).cast("binary"))
        ),
    )
    return wanted.where(~sent).select(*COLUMNS)


def within(rows: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the rows at the offsets of a slice."""
    condition = F.lit(False)  # noqa: FBT003 (a literal of Spark's)
    for (topic, partition), (low, high) in bounds.items():
        place = (F.col("topic") == F.lit(topic)) & (F.col("partition") == F.lit(partition))
        condition |= place & F.col("offset").between(low, high - 1)
    return rows.where(condition)


def replayed(rows: DataFrame, *, replay_id: str, to_topic: str, keep_partition: bool) -> DataFrame:
    """Return what the sink is given, in an order that keeps each source partition's.

    Args:
        rows: Has COLUMNS.
        replay_id: Goes into the header `replay.id` of every row.
        to_topic: Where they go.
        keep_partition: To the partition they came from; otherwise by their key.

    Returns:
        topic string, partition int (null: by key), key binary, value binary, headers. The source's
        own headers without reserved ones (they say in which transaction the row came the first
        time) and without an earlier replay.id.
    """
    mine = F.struct(F.lit(REPLAY_ID).alias("key"), F.lit(replay_id).cast("binary").alias("value"))
    dropped = sorted({*RESERVED, REPLAY_ID})
    kept = F.filter(_headers(), lambda header: ~header["key"].isin(*dropped))
    partition = F.col("partition") if keep_partition else F.lit(None).cast("int")
    in_order = rows.repartition("topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )
    return in_order.select(
        F.lit(to_topic).alias("topic"),
        partition.alias("partition"),
        "key",
        "value",
        F.concat(kept, F.array(mine)).cast(_HEADERS).alias("headers"),
    )


def _headers() -> Column:
    return F.coalesce(F.col("headers"), F.array().cast(_HEADERS))

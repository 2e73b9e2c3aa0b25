"""Selects the rows of a source, and makes the rows that are sent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import RESERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.replay.plan import Bounds

REPLAY_ID = "replay.id"
# Columns of a source. Spark's Kafka source and the table of `ingest` have them.
COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"


def selected(rows: DataFrame, *, where: str, replay_id: str) -> DataFrame:
    """Return the COLUMNS of the rows to send.

    Rows that this replay sent before are left out: a replay may read the topic that it writes to.

    Args:
        rows: Has COLUMNS and the columns that `where` names.
        where: A SQL condition; empty: all rows.
        replay_id: Name of this replay.
    """
    wanted = rows.where(where) if where else rows
    sent = F.exists(
        _headers(),
        lambda header: (
            (header["key"] == F.lit(REPLAY_ID))
            # A header may have no value, and a comparison with null is neither true nor false.
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
    """Return the rows for the sink, in the order of each source partition.

    Args:
        rows: Has COLUMNS.
        replay_id: Value of the header `replay.id` of every row.
        to_topic: Topic that the rows are sent to.
        keep_partition: Whether a row keeps the number of its source partition; otherwise the
            partition is chosen by key.

    Returns:
        topic string, partition int (null: by key), key binary, value binary, headers. Reserved
        headers of the source are left out, because they name the transaction of the first delivery.
        A replay.id of an earlier replay is left out too.
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

"""Finds messages of one key that were delivered in another order than they were decided.

A delivery is compared with the one before it of its key. So a run that continues an audit needs, of
the deliveries of earlier runs, those after the first that changed, and the one before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.spark_jobs.audit.computing import computed
from halfbridge.spark_jobs.audit.sift import DELIVERY_PLACES, broadcast_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.carried import Revived

_KEY = ("order_key", "pair")
# Contract of `reordered`: deliveries, with the op offset of the delivery before.
_REORDERED = (*DELIVERY_PLACES, "op_offset_before")


def reordered(deliveries: DataFrame) -> DataFrame:
    """Return _REORDERED of those DELIVERY_PLACES that were decided before their predecessor.

    The predecessor is the delivery before it in the real partition, with the same key.
    """
    same_key = Window.partitionBy(*_KEY).orderBy("real_offset")
    return (
        deliveries.where(F.col("order_key").isNotNull())
        .withColumn("op_offset_before", F.lag("op_offset").over(same_key))
        .where(F.col("op_offset") < F.col("op_offset_before"))
        .select(*_REORDERED)
    )


def all_reordered(deliveries: DataFrame, count: int, revived: Revived, bounds: Bounds) -> DataFrame:
    """Return `reordered` of the deliveries of all runs; `deliveries`, `count`, are judged now."""

    def numbered(places: DataFrame) -> DataFrame:
        return places.withColumn("topic_number", bounds.topic_number(F.col("topic")))

    carried = revived.carried
    changed = deliveries.unionAll(numbered(revived.deliveries).select(*DELIVERY_PLACES))
    changed = changed.where(F.col("order_key").isNotNull())
    first = computed(changed.groupBy(*_KEY).agg(F.min("real_offset").alias("first_offset")))
    first = broadcast_few(first, count)
    others = carried.in_force(carried.settled.join(first, list(_KEY), how="inner"))
    others = computed(numbered(others.join(revived.ids, "transaction_id", how="left_anti")))
    rest = [each for each in DELIVERY_PLACES if each not in (*_KEY, "real_offset")]
    last = (
        others.where(F.col("real_offset") < F.col("first_offset"))
        .groupBy(*_KEY)
        .agg(F.max(F.struct("real_offset", *rest)).alias("last"))
        .select(*_KEY, "last.*")
    )
    behind = others.where(F.col("real_offset") > F.col("first_offset"))
    near = [each.select(*DELIVERY_PLACES) for each in (last, behind)]
    is_unchanged = F.coalesce(F.col("real_offset") < F.col("first_offset"), F.lit(col=True))
    before = numbered(carried.reordered).join(first, list(_KEY), how="left").where(is_unchanged)
    found = reordered(deliveries.unionAll(near[0]).unionAll(near[1]))
    return found.unionAll(before.select(*_REORDERED))

"""Append times of records, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.protocol import NO_APPEND_MS
from halfbridge.spark_jobs.reading.topics import LOG_APPEND_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column


def append_ms() -> Column:
    """Return the broker's append time of a row; NO_APPEND_MS where the writer set the time."""
    is_brokers = F.col("timestampType") == LOG_APPEND_TIME
    return F.when(is_brokers, F.unix_millis("timestamp")).otherwise(NO_APPEND_MS)


def first_append_ms(meta: Column) -> Column:
    """Return the append time of the original: HalfRead.first_append_ms as a column."""
    is_copy = meta["origin_offset"] >= 0
    claimed_ms = F.greatest(meta["first_append_timestamp"], F.lit(NO_APPEND_MS))
    is_younger = (append_ms() >= 0) & (claimed_ms > append_ms())
    return F.when(is_copy & ~is_younger, claimed_ms).otherwise(append_ms())


def born_ms(original_ms: Column, copied_ms: Column) -> Column:
    """Return the time from which a transaction's age counts (checker.core.rebuild).

    Args:
        original_ms: Append time of the first original; null without an original.
        copied_ms: The lowest first append time that a copy carries; null without a copy.

    Returns:
        The time in ms; NO_APPEND_MS where the age is not known.
    """
    first_ms = F.coalesce(original_ms, F.lit(NO_APPEND_MS))
    is_by_copy = (copied_ms < 0) | (first_ms < 0)
    both = F.when(is_by_copy, copied_ms).otherwise(F.least(first_ms, copied_ms))
    return F.when(copied_ms.isNull(), first_ms).otherwise(both)

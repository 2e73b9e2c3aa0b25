"""Pure steps from one DataFrame to the next: no actions, no UDFs, a select contract at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.spark_jobs.reading.wire import last_header

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def with_transaction_id(records: DataFrame) -> DataFrame:
    """Return the records of a real topic, each with the id of its transaction.

    Args:
        records: Has key, value, topic, partition, offset, timestamp, headers (`topics`).

    Returns:
        Those seven columns and transaction_id string; null for a record that another producer
        wrote, or whose id is no text.
    """
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        header_text(TRANSACTION_ID).alias("transaction_id"),
    )


def rows_per_transaction(records: DataFrame) -> DataFrame:
    """Return how many rows each transaction has.

    Args:
        records: Has transaction_id.

    Returns:
        transaction_id string, row_count long; unique by transaction_id, in no order. Rows without
        an id are counted under null.
    """
    counted = records.groupBy("transaction_id").agg(F.count(F.lit(1)).alias("row_count"))
    return counted.select("transaction_id", "row_count")


def header_text(name: str) -> Column:
    """Return the last header of that name as text; null when absent, empty or not UTF-8.

    Kafka allows a name twice. The daemon appends its headers to the user's, so the last is its.
    """
    last = last_header(F.col("headers"), name)
    return F.nullif(F.try_validate_utf8(last.cast("string")), F.lit(""))

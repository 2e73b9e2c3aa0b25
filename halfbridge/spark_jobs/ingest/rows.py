"""Turns the records of real topics into the rows of the ingested table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID
from halfbridge.spark_jobs.reading.schemas import with_payload
from halfbridge.spark_jobs.reading.transforms import header_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.reading.schemas import WriterSchema

# Rows are partitioned by day, and within a day by quarantined, so that a query that skips the
# quarantined rows does not read them.
PARTITION_COLUMNS = ("publish_date", "quarantined")
_DAY_S = 86_400
_BORN_MS_MAX = 253_402_300_799_999  # the end of the year 9999


def table_rows(records: DataFrame, schemas: Sequence[WriterSchema] = ()) -> DataFrame:
    """Return the rows of the ingested table: one row for each record.

    Args:
        records: Has the columns of Spark's Kafka source, headers included.
        schemas: Schemas of the values; empty: values are not decoded.

    Returns:
        topic string, partition int, offset long, timestamp timestamp (publish time),
        timestamp_type int (0: the daemon's, 1: the broker's append time), key binary, value
        binary, headers array<struct<key string, value binary>>, transaction_id string (null: the
        record is of another producer), born_timestamp timestamp (null: none), with `schemas` also
        schema_name string and payload struct, then quarantine_reason string (null: not
        quarantined), publish_date date (in UTC), quarantined boolean.
    """
    checked = with_payload(records, schemas) if schemas else records
    reason = (
        "quarantine_reason" if schemas else F.lit(None).cast("string").alias("quarantine_reason")
    )
    decoded = ("schema_name", "payload") if schemas else ()
    # Named columns, so that each header is looked up once, however often its value is used.
    named = checked.withColumns(
        {
            "transaction_id": header_text(TRANSACTION_ID),
            "born_ms": header_text(BORN_TIMESTAMP).try_cast("long"),
        }
    )
    rows = named.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        "transaction_id",
        _born_timestamp().alias("born_timestamp"),
        *decoded,
        reason,
        _publish_date().alias("publish_date"),
    )
    return rows.withColumn("quarantined", F.col("quarantine_reason").isNotNull())


def _born_timestamp() -> Column:
    """Return the header's milliseconds as a time; null if the client's value is out of range."""
    born_ms = F.col("born_ms")
    return F.when(born_ms.between(0, _BORN_MS_MAX), F.timestamp_millis(born_ms))


def _publish_date() -> Column:
    """Return the day in UTC, whatever the session's time zone: a rerun must find the same day."""
    return F.date_from_unix_date(F.floor(F.unix_seconds("timestamp") / F.lit(_DAY_S)).cast("int"))

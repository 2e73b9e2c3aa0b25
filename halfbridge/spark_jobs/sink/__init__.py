"""The exactly-once sink from Spark to Kafka: `format("txn_half")`.

    from halfbridge.spark_jobs.sink import register

    register(spark)
    rows.writeStream.format("txn_half").option("app.id", "orders-feed") ...

Executors send half messages. The driver's commit appends one manifest record for the batch, and the
transactions in the manifest are committed. docs/reference/sink.md has the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session write with `format("txn_half")`; a second call does no harm.

    Raises:
        JobError: this Spark is older than 4.0 and has no Python data sources; the user must act.
    """
    from halfbridge.spark_jobs.capabilities import require_data_sources  # noqa: PLC0415 (as below)
    from halfbridge.spark_jobs.sink.checkpoint import address_of  # noqa: PLC0415 (pyspark takes a second)
    from halfbridge.spark_jobs.sink.datasource import TxnHalf  # noqa: PLC0415  (needs pyspark)

    require_data_sources()
    # A new class is pickled with its attributes, not by its name.
    spark.dataSource.register(type("TxnHalf", (TxnHalf,), {"driver": address_of(spark)}))

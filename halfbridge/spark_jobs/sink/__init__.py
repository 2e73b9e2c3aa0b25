"""The exactly-once sink from Spark to Kafka: `format("txn_half")`, and `write_batch` for Spark 3.5.

    from halfbridge.spark_jobs.sink import register

    register(spark)
    rows.writeStream.format("txn_half").option("app.id", "orders-feed") ...

Executors send half messages. The driver's commit appends one manifest record for the batch, and the
transactions in the manifest are committed. docs/reference/sink.md has the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


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


def write_batch(frame: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:
    """Publish all rows of a frame, exactly once: in `foreachBatch`, or in a batch job.

        rows.writeStream.foreachBatch(partial(write_batch, options=OPTIONS)).start()

    A micro-batch that Spark runs again is published once, as with `format("txn_half")`. After a
    failure the half messages of tasks that had succeeded are left to the check.

    Args:
        frame: Columns as for `format("txn_half")`.
        batch_id: Spark's number of the micro-batch. In a batch job: a number that grows from write
            to write of one `app.id`, and is the same when a write is repeated.
        options: As for `format("txn_half")`, without `batch.id`.

    Raises:
        SinkError: as its class says, whose module says who acts; the error of a task, above all
            RowError and SendError, comes inside Spark's exception.
    """
    from halfbridge.spark_jobs.sink.datasource import publish  # noqa: PLC0415  (needs pyspark)

    publish(frame, batch_id, options)

"""Directories with the rows of a table: Parquet, or Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA_LOG = "_delta_log"
_NOTHING_THERE = "Unable to infer schema"
# Spark guesses the types of partition columns from their values, and knows no boolean.
_BOOLEANS = ("quarantined",)
# Without it Delta's source does not apply deletion vectors.
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def is_delta(spark: SparkSession, path: str) -> bool:
    """Tell whether the directory is a Delta table."""
    return bool(Storage(spark).names(join(path, DELTA_LOG)))


def read_table(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all rows of a Parquet or Delta table, as it is now; None when it has no files yet.

    Only whole batches of Spark's file sink are read. A Delta table is read by Delta's own source
    where the session has it, otherwise by `delta_rs.read`.

    Raises:
        JobError: it is a Delta table and deltalake is not installed, or one that Parquet's reader
            would read wrongly; the user must act.
        AnalysisException: there is no such directory; the user corrects the path.
    """
    if is_delta(spark, path):
        if _DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", None) or ""):
            return spark.read.format("delta").load(path)
        from halfbridge.spark_jobs.tables.delta_rs import read  # noqa: PLC0415  # needs an extra

        return read(spark, path)
    try:
        # Files of before and after a column was added.
        rows = spark.read.option("mergeSchema", "true").parquet(path)
    except AnalysisException as error:
        if _NOTHING_THERE in str(error):  # its condition is one of Spark's unnamed ones
            return None
        raise
    for name in _BOOLEANS:
        if name in rows.columns:
            rows = rows.withColumn(name, F.col(name).cast("boolean"))
    return rows

"""Reads the tables that jobs write, in either format, with Spark alone."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by
from pyspark.sql.types import StructType

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.tables.delta_features import not_as_parquet
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA_LOG = "_delta_log"
_NOTHING_THERE = "Unable to infer schema"
# Spark guesses the types of partition columns from their values, and knows no boolean.
_BOOLEANS = ("quarantined",)
_OTHERWISE = (
    "Start the job with Delta's own Spark source (docs/spark.md, Tables that other engines change)"
)
# Without it Delta's source does not apply deletion vectors.
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def is_delta(spark: SparkSession, path: str) -> bool:
    """Tell whether the directory is a Delta table."""
    return bool(Storage(spark).names(join(path, DELTA_LOG)))


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether anything stands in the directory."""
    return bool(Storage(spark).names(path))


def read_table(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all rows of a Parquet or Delta table, as it is now; None when it has no files yet.

    Of what Spark's file sink wrote, only whole batches are read. A Delta table is read by Delta's
    own source where the session has it. Otherwise its log says which files, and these are read as
    Parquet: a table whose files alone do not say what its rows are is refused.

    Raises:
        JobError: it is a Delta table and deltalake is not installed, or one that Parquet's reader
            would read wrongly; the user must act.
        AnalysisException: there is no such directory.
    """
    if is_delta(spark, path):
        return _read_delta(spark, path)
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


def _read_delta(spark: SparkSession, path: str) -> DataFrame | None:
    if _DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", None) or ""):
        return spark.read.format("delta").load(path)
    if importlib.util.find_spec("deltalake") is None:
        raise JobError("Delta needs the package deltalake: pip install 'halfbridge[delta]'")
    from deltalake import DeltaTable  # noqa: PLC0415  # an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  (deltalake is optional)

    try:
        table = DeltaTable(path)
        what = not_as_parquet(table)
    except DeltaError as error:  # a feature that delta-rs does not know, say
        raise JobError(f"Delta table {path}: {error}. {_OTHERWISE}") from error
    if what:
        raise JobError(
            f"Delta table {path} has {what}, which its files alone do not tell. {_OTHERWISE}"
        )
    files = table.file_uris()
    if not files:
        return None
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    partition_by = table.metadata().partition_columns
    inside = StructType([field for field in schema if field.name not in partition_by])
    rows = spark.read.schema(inside).parquet(*files)
    for name in partition_by:
        value = F.regexp_extract(F.col("_metadata.file_path"), f"/{name}=([^/]+)/", 1)
        rows = rows.withColumn(name, value.cast(schema[name].dataType))
    return rows.select(*schema.names)

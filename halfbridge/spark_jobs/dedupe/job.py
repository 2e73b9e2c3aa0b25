"""Runs dedupe: reads the whole input, compares it day by day, and writes the days that differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.spark_jobs.dedupe.rows import SAME_MESSAGE, SAME_RECORD, with_duplicates_marked
from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.tables.delta import DeltaWriter
from halfbridge.spark_jobs.tables.read import exists, is_delta, read_table
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from pyspark.sql import Column, DataFrame, SparkSession

PARTITION_COLUMN = "publish_date"
_REQUIRED = (
    *("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"),
    *("transaction_id", "quarantined", PARTITION_COLUMN),
)
_FILE_LOG = "_spark_metadata"
_PARQUET_TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
_MAP = '"type":"map"'  # in a type's JSON
# Number and hash of a day's rows. Days with equal marks have equal rows.
_Mark = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Deduped:
    """The result of a run.

    Attributes:
        rows_read: Rows of the input.
        same_record: Rows left out because another row is the same record.
        same_message: Rows left out because another row is the same message.
        rows_kept: Rows of the output.
        days_written: Days of the output that were rewritten or emptied.
        days: Days of the input.
    """

    rows_read: int
    same_record: int
    same_message: int
    rows_kept: int
    days_written: int
    days: int

    def to_json(self) -> dict[str, Any]:
        """Return the numbers under the names that reports use."""
        return asdict(self)


def dedupe(spark: SparkSession, source: str, output: str, kind: str) -> Deduped:
    """Make `output` equal to `source` without duplicates.

    The whole input is compared, because a message may be delivered again days later. Only the days
    of the output that differ are written, so a second run writes nothing. Days that are no longer
    in the input stay in the output.

    Args:
        spark: A session.
        source: Absolute path or URI of an ingested table, in either format.
        output: Absolute path or URI of the table to make.
        kind: Format of `output`, `parquet` or `delta`. A Delta table changes in one transaction.
            Readers of a Parquet directory may miss a day for the moment in which it is replaced.

    Raises:
        JobError: `source` or `output` is not such a table; the user must act.
        PySparkException: Spark failed.
    """
    spark.conf.set(*_PARQUET_TIMES)
    _check_output(spark, source, output, kind)
    rows = read_table(spark, source)
    if rows is None:
        return Deduped(0, 0, 0, 0, 0, 0)
    if missing := [name for name in _REQUIRED if name not in rows.columns]:
        raise JobError(f"{source} has no column {missing[0]!r}: it is not a table of ingest")
    marked = with_duplicates_marked(rows)
    kept = marked.filter(F.col("duplicate").isNull()).drop("duplicate")
    days = _counts(marked)
    present = _marks(read_table(spark, output), kept.columns) if exists(spark, output) else {}
    wanted = _marks(kept, kept.columns)
    changed = sorted(day for day, mark in wanted.items() if present.get(day) != mark)
    # Days whose rows are all duplicates now, of rows that were ingested since the last run.
    emptied = sorted(present.keys() & {each[PARTITION_COLUMN] for each in days} - wanted.keys())
    if changed or emptied:
        fresh = kept.filter(F.col(PARTITION_COLUMN).isin(changed))
        _write(spark, fresh, output, kind, changed, emptied=emptied)
    return Deduped(
        rows_read=sum(each["rows_read"] for each in days),
        same_record=sum(each["same_record"] for each in days),
        same_message=sum(each["same_message"] for each in days),
        rows_kept=sum(count for count, _ in wanted.values()),
        days_written=len(changed) + len(emptied),
        days=len(days),
    )


def _check_output(spark: SparkSession, source: str, output: str, kind: str) -> None:
    if source.rstrip("/") == output.rstrip("/"):
        raise JobError("--input and --output are the same directory: the input must not change")
    if not exists(spark, output):
        return
    if Storage(spark).names(join(output, _FILE_LOG)):
        raise JobError(f"{output} is written by a stream (ingest?): give another --output")
    if is_delta(spark, output) != (kind == "delta"):
        raise JobError(f"{output} exists, and not in the format {kind}: give another --output")


def _counts(marked: DataFrame) -> list[Any]:
    duplicate = F.col("duplicate")
    return (
        marked.groupBy(PARTITION_COLUMN)
        .agg(
            F.count(F.lit(1)).alias("rows_read"),
            F.count_if(duplicate == F.lit(SAME_RECORD)).alias("same_record"),
            F.count_if(duplicate == F.lit(SAME_MESSAGE)).alias("same_message"),
        )
        .collect()
    )


def _marks(rows: DataFrame | None, columns: Iterable[str]) -> dict[date, _Mark]:
    """Return for each day the number of rows, and a hash of the rows in any order."""
    if rows is None or not set(columns) <= set(rows.columns):
        return {}
    hashed = (_hashable(rows, name) for name in columns)
    marks = rows.groupBy(PARTITION_COLUMN).agg(
        F.count(F.lit(1)).alias("row_count"), F.bit_xor(F.xxhash64(*hashed)).alias("mark")
    )
    return {row[PARTITION_COLUMN]: (row["row_count"], row["mark"]) for row in marks.collect()}


def _hashable(rows: DataFrame, name: str) -> Column:
    """Return the column; as JSON if it contains a map, because Spark does not hash maps."""
    holds_map = _MAP in rows.schema[name].dataType.json()
    return F.to_json(name) if holds_map else F.col(name)


def _write(
    spark: SparkSession,
    rows: DataFrame,
    output: str,
    kind: str,
    days: list[date],
    *,
    emptied: list[date],
) -> None:
    """Replace the rows of `days` in the table by `rows`, and remove the days `emptied`."""
    if kind == "delta":
        table = DeltaWriter(spark, output, (PARTITION_COLUMN,))
        table.replace(rows, PARTITION_COLUMN, [day.isoformat() for day in (*days, *emptied)])
        return
    if days:
        (
            rows.write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")  # only the days that `rows` has
            .partitionBy(PARTITION_COLUMN)
            .parquet(output)
        )
    storage = Storage(spark)
    for day in emptied:
        storage.remove_tree(join(output, f"{PARTITION_COLUMN}={day.isoformat()}"))

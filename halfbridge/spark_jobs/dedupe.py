"""The command `dedupe`: writes an ingested table without its duplicate rows.

It reads the whole input, compares it with the output day by day, and writes the days that differ.

Two rows are the same record if topic, partition, offset, time and bytes are equal: two ingestions
overlapped. They are the same message if transaction, topic and bytes are equal, of which the index
of the message in its transaction is a part: the message was delivered twice, by an at-least-once
daemon or after `checker init --accept-duplicates`. Equal messages that a transaction sent have
different indices.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click
from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.ingest import FORMATS
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    json_option,
    report_option,
    spark_option,
    write_report,
)
from halfbridge.spark_jobs.reading.wire import with_message_index
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.delta import is_delta, read_table
from halfbridge.spark_jobs.tables.storage import Storage, absolute, join

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession


@click.command(cls=JobCommand)
@click.option(
    "--input", "source", required=True, metavar="PATH", help="A table that ingest made, any format."
)
@click.option("--output", required=True, metavar="PATH", help="Directory or URI of the new table.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
@report_option
@spark_option
@json_option
def main(
    *,
    source: str,
    output: str,
    kind: str,
    report: Path | None,
    spark_options: dict[str, str],
    as_json: bool,
) -> int:
    """Make a table with each message of a transaction once.

    The table has the columns of the input and message_index; (transaction_id, message_index) is
    unique. Of duplicate rows, the row with the lowest topic, partition and offset is kept. A second
    run on the same input changes nothing. A run on a larger input rewrites the days that differ.
    """
    with spark_session("halfbridge-dedupe", options=spark_options) as spark:
        click.echo(f"comparing all rows of {source} ...", err=True)
        done = dedupe(spark, absolute(source), absolute(output), kind)
    found = {"job": "dedupe", "input": source, "output": output, "format": kind, **asdict(done)}
    write_report(report, found)
    click.echo(json.dumps(found) if as_json else _text(done, output))
    return EXIT_DONE


def _text(done: Deduped, output: str) -> str:
    return (
        f"done: {done.rows_kept:,} of {done.rows_read:,} rows in {output};"
        f" left out: {done.same_record:,} records that were ingested twice,"
        f" {done.same_message:,} messages that were delivered again;"
        f" {done.days_written} of {done.days} days written"
    )


PARTITION_COLUMN = "publish_date"
_REQUIRED = (
    *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    *("transaction_id", "quarantined", PARTITION_COLUMN),
)
_FILE_LOG = "_spark_metadata"
_PARQUET_TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
_MAP = '"type":"map"'  # in a type's JSON
DAYS_MAX = 36_525  # a century: the driver holds a row for each day
# Number and hash of a day's rows. Days with equal digests have equal rows.
_Digest = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Deduped:
    """The result of a run."""

    rows_read: int
    same_record: int  # rows left out because another row is the same record
    same_message: int  # rows left out because another row is the same message
    rows_kept: int  # rows of the output
    days_written: int  # days of the output that were rewritten or emptied
    days: int  # days of the input


def dedupe(spark: SparkSession, source: str, output: str, kind: str) -> Deduped:
    """Make `output` equal to `source` without duplicates; both are absolute paths or URIs.

    The whole input is compared, because a message may be delivered again days later. Only the days
    of the output that differ are written, so a second run writes nothing. Days that are no longer
    in the input stay in the output. A Delta table changes in one transaction. Readers of a Parquet
    directory may miss a day for the moment in which it is replaced.

    Raises:
        JobError: `source` or `output` is not such a table, or has more than DAYS_MAX days; the user
            must act.
    """
    spark.conf.set(*_PARQUET_TIMES)
    _check_output(spark, source, output, kind)
    rows = read_table(spark, source)
    if rows is None:
        return Deduped(0, 0, 0, 0, 0, 0)
    if missing := [name for name in _REQUIRED if name not in rows.columns]:
        raise JobError(f"{source} has no column {missing[0]!r}: it is not a table of ingest")
    marked = mark_duplicates(rows)
    kept = marked.filter(F.col("duplicate").isNull()).drop("duplicate")
    days = _counts(marked)
    before = read_table(spark, output) if Storage(spark).names(output) else None
    present = _digests(before, kept.columns)
    wanted = _digests(kept, kept.columns)
    changed = sorted(day for day, digest in wanted.items() if present.get(day) != digest)
    # Days whose rows are all duplicates now, of rows that were ingested since the last run.
    emptied = sorted(present.keys() & {each[PARTITION_COLUMN] for each in days} - wanted.keys())
    if changed or emptied:
        fresh = kept.filter(F.col(PARTITION_COLUMN).cast("string").isin(changed))
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
    names = Storage(spark).names(output)
    if not names:
        return
    if _FILE_LOG in names:
        raise JobError(f"{output} is written by a stream (ingest?): give another --output")
    if is_delta(spark, output) != (kind == "delta"):
        raise JobError(f"{output} exists, and not in the format {kind}: give another --output")


def _counts(marked: DataFrame) -> list[Row]:
    duplicate = F.col("duplicate")
    return _by_day(
        marked,
        F.count(F.lit(1)).alias("rows_read"),
        F.count_if(duplicate == F.lit(SAME_RECORD)).alias("same_record"),
        F.count_if(duplicate == F.lit(SAME_MESSAGE)).alias("same_message"),
    )


def _digests(rows: DataFrame | None, columns: Iterable[str]) -> dict[str, _Digest]:
    """Return for each day the number of rows, and a hash of the rows in any order."""
    if rows is None or not set(columns) <= set(rows.columns):
        return {}
    hashed = (_hashable(rows, name) for name in columns)
    digest = F.bit_xor(F.xxhash64(*hashed)).alias("digest")
    days = _by_day(rows, F.count(F.lit(1)).alias("row_count"), digest)
    return {day[PARTITION_COLUMN]: (day["row_count"], day["digest"]) for day in days}


def _by_day(rows: DataFrame, *aggregates: Column) -> list[Row]:
    """Return a row for each day, on the driver.

    Days are text: a producer may set a timestamp whose year Python does not know.
    """
    day = F.col(PARTITION_COLUMN).cast("string").alias(PARTITION_COLUMN)
    days = rows.groupBy(day).agg(*aggregates).limit(DAYS_MAX + 1).collect()
    if len(days) > DAYS_MAX:
        raise JobError(
            f"the rows are of more than {DAYS_MAX:,} days: leave out those whose {PARTITION_COLUMN}"
            " cannot be (producers set timestamps where message.timestamp.type is CreateTime)"
        )
    return days


def _hashable(rows: DataFrame, name: str) -> Column:
    """Return the column; as JSON if it contains a map, because Spark does not hash maps."""
    holds_map = _MAP in rows.schema[name].dataType.json()
    return F.to_json(name) if holds_map else F.col(name)


def _write(
    spark: SparkSession,
    rows: DataFrame,
    output: str,
    kind: str,
    days: list[str],
    *,
    emptied: list[str],
) -> None:
    if kind == "delta":
        from halfbridge.spark_jobs.tables.delta_rs import DeltaWriter  # noqa: PLC0415  # an extra

        table = DeltaWriter(spark, output, (PARTITION_COLUMN,))
        table.replace(rows, PARTITION_COLUMN, [*days, *emptied])
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
        storage.remove_tree(join(output, f"{PARTITION_COLUMN}={day}"))


SAME_RECORD = "same record"
SAME_MESSAGE = "same message"
_PLACE = ("topic", "partition", "offset")
# A transaction, or a single record without a transaction. Rows are compared within a unit only, so
# that they are shuffled once, and the records of other producers are spread over all tasks.
_UNIT = "_unit"
_CONTENT = "_content"


def mark_duplicates(rows: DataFrame) -> DataFrame:
    """Return all rows of an ingested table, each with its message index, duplicates marked.

    Returns:
        The columns of `rows`, then duplicate string and message_index long. duplicate is
        SAME_RECORD, SAME_MESSAGE, or null for a row to keep: the one with the lowest place.
        message_index is that of `reading.wire.with_message_index`, and null for records without a
        transaction. (transaction_id, message_index) is unique among the rows to keep, if only the
        daemon writes its headers.
    """
    place = (*_PLACE, "timestamp")
    # One row of the two may be quarantined: its schema was not known when it was ingested.
    record = Window.partitionBy(_UNIT, *place, _CONTENT).orderBy("quarantined")
    message = Window.partitionBy(_UNIT, _CONTENT).orderBy(*place)
    has_transaction = F.col("transaction_id").isNotNull()
    duplicate = F.when(F.row_number().over(record) > 1, SAME_RECORD).when(
        has_transaction & (F.dense_rank().over(message) > 1), SAME_MESSAGE
    )
    return (
        with_message_index(rows)
        .withColumns({_UNIT: _unit(), _CONTENT: _content()})
        .repartition(_UNIT)
        .withColumn("duplicate", duplicate)
        .withColumn("message_index", F.when(has_transaction, F.col("message_index").cast("long")))
        .select(*rows.columns, "duplicate", "message_index")
    )


def _unit() -> Column:
    alone = F.concat_ws("/", *(F.col(name).cast("string") for name in _PLACE))
    return F.coalesce("transaction_id", alone)


def _content() -> Column:
    """Return topic and bytes; of the bytes hashes, so that they are not shuffled twice."""
    headers = F.to_json("headers").cast("binary")
    return F.struct(
        "topic", *(F.sha2(each, 256) for each in (F.col("key"), F.col("value"), headers))
    )


if __name__ == "__main__":
    main()

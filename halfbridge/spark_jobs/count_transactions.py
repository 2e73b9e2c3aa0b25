"""Counts the rows of each transaction in real topics, as consumers see them.

    halfbridge spark count-transactions --bootstrap-servers localhost:9092 --topic orders

Prints a line for each transaction, ordered by its id (and so by time), and totals. Runs under
spark-submit too, which then brings the connector with `--packages` or `--jars`.

Exit status: 0 done; 1 it did not work, or wrong usage, with the reason in one line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F

from halfbridge.spark_jobs.capabilities import SPARK_ERRORS
from halfbridge.spark_jobs.errors import JobError, cause_of
from halfbridge.spark_jobs.jobs.options import EXIT_DONE, JobCommand, common_options, topics_option
from halfbridge.spark_jobs.reading.topics import Topics, read_topics, source_options
from halfbridge.spark_jobs.reading.wire import with_identity
from halfbridge.spark_jobs.session.local import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

NO_TRANSACTION = "-"
_ID_WIDTH = 32  # a UUID in hex

Count = tuple["str | None", int]


def count_transactions(
    spark: SparkSession,
    *topics: str,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return how many committed rows each transaction has in real topics.

    `kafka` are consumer properties by their Java names. Nothing is read before an action.

    Returns:
        transaction_id string, row_count long; unique by transaction_id, in no order. Rows without
        an id are counted under null.
    """
    records = read_topics(
        spark, Topics.of(*topics), bootstrap_servers=bootstrap_servers, kafka=kafka
    )
    return rows_per_transaction(records)


def rows_per_transaction(records: DataFrame) -> DataFrame:
    """Return `count_transactions` of rows of Spark's Kafka source."""
    counted = with_identity(records).groupBy("transaction_id")
    return counted.agg(F.count(F.lit(1)).alias("row_count"))


def json_lines(counts: Iterable[Count]) -> Iterator[str]:
    """Yield one JSON object a transaction; the id is null for rows that have none."""
    for transaction_id, row_count in counts:
        yield json.dumps({"transaction_id": transaction_id, "row_count": row_count})


def text_lines(counts: Iterable[Count]) -> Iterator[str]:
    """Yield a table with one line a transaction, then the totals."""
    yield f"{'transaction_id':<{_ID_WIDTH}}  {'row_count':>9}"
    transactions = rows = foreign = 0
    for transaction_id, row_count in counts:
        yield f"{transaction_id or NO_TRANSACTION:<{_ID_WIDTH}}  {row_count:>9}"
        if transaction_id is None:
            foreign += row_count
        else:
            transactions += 1
            rows += row_count
    yield f"transactions: {transactions}, rows: {rows}, rows without a transaction: {foreign}"


@click.command(cls=JobCommand)
@common_options
@topics_option
def main(
    *,
    bootstrap_servers: str,
    topics: tuple[str, ...],
    kafka: dict[str, str],
    spark_options: dict[str, str],
    as_json: bool,
) -> int:
    """Count the rows of each transaction in real topics, as consumers see them."""
    try:  # before a JVM is started for nothing
        wanted = Topics.of(*topics)
        source_options(wanted, bootstrap_servers=bootstrap_servers, kafka=kafka)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    show = json_lines if as_json else text_lines
    with spark_session("halfbridge-count-transactions", options=spark_options) as spark:
        try:
            counted = count_transactions(
                spark, *topics, bootstrap_servers=bootstrap_servers, kafka=kafka
            )
            rows = counted.orderBy("transaction_id").toLocalIterator()
            for line in show((row["transaction_id"], row["row_count"]) for row in rows):
                click.echo(line)
        except SPARK_ERRORS as error:
            raise JobError(
                f"cannot read topic {wanted} at {bootstrap_servers}: {cause_of(error)}",
                topics=wanted.names,
            ) from error
    return EXIT_DONE


if __name__ == "__main__":
    main()

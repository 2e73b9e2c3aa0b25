"""How fast ingest is, as a ratio to what Spark reads at all on the same machine in the same run.

    python -m benchmarks.spark_ingest --bootstrap-servers localhost:9092 --records 1000000

Spark's own sink fills a topic of its own with records of 1 KB that no codec can shrink. Then, in
turn and several times: a plain `spark.read.format("kafka")` with Spark's options to its `noop`
sink, without headers and with them, a plain copy of the same to Parquet, and ingest to a new
table. The medians and their ratios are printed; the topic is removed. Ingest keeps headers, so it
is compared with the read with headers. The copy shows Spark's own part of ingest's time.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F

from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.ingest import FORMATS, Ingest, ingest
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    common_options,
    reading_options,
)
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.topics import Topics
from halfbridge.spark_jobs.session.local import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.reading.cluster import Brokers

VALUE_BYTES = 1024  # as in the other benches
_DIGEST_BYTES = 32  # of SHA-256
_KEYS = 10_000  # so that partitions are even
_PREFIX = "halfbridge-bench-ingest-"


@click.command(cls=JobCommand)
@common_options
@click.option(
    "--records", type=click.IntRange(1, 100_000_000), default=1_000_000, show_default=True
)
@click.option("--partitions", type=click.IntRange(1, 100), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
def main(**values: Any) -> int:
    """Measure ingest against a plain read of the same topic, in the same run."""
    topic = f"{_PREFIX}{secrets.token_hex(4)}"
    servers, kafka = values["bootstrap_servers"], values["kafka"]
    reading_options(servers, kafka)
    given = {f"kafka.{name}": value for name, value in kafka.items()}
    given["kafka.bootstrap.servers"] = servers
    with ExitStack() as stack:
        spark = stack.enter_context(
            spark_session("halfbridge-bench-ingest", options=values["spark_options"])
        )
        cluster = stack.enter_context(connect(spark, servers, kafka))
        cluster.create_topic(topic, values["partitions"])
        stack.callback(cluster.delete_topic, topic)
        click.echo(f"writing {values['records']:,} records of {VALUE_BYTES} bytes", err=True)
        fill(spark, topic, values["records"], given)
        with_headers = {**given, "includeHeaders": "true"}
        runs: dict[str, list[float]] = {"plain": [], "headers": [], "copy": [], "ingest": []}
        for number in range(values["rounds"]):
            runs["plain"].append(_plain(spark, topic, given))
            runs["headers"].append(_plain(spark, topic, with_headers))
            runs["copy"].append(_copy(spark, topic, with_headers))
            runs["ingest"].append(_ingest(spark, cluster, topic, values))
            text = ", ".join(f"{what} {times[-1]:.2f} s" for what, times in runs.items())
            click.echo(f"round {number + 1}: {text}", err=True)
    found = _result(values["records"], runs)
    click.echo(json.dumps(found) if values["as_json"] else "\n".join(_lines(found)))
    return EXIT_DONE


def fill(spark: SparkSession, topic: str, records: int, options: Mapping[str, str]) -> None:
    """Write `records` records with the headers of real ones to `topic`; `options` as Spark's."""
    digests = [
        F.unhex(F.sha2(F.concat(F.col("id").cast("string"), F.lit(f"/{part}")), 256))
        for part in range(VALUE_BYTES // _DIGEST_BYTES)
    ]
    header = "named_struct('key', '{}', 'value', cast({} as binary))"
    names = (
        (TRANSACTION_ID, "substring(sha2(cast(id as string), 256), 1, 32)"),
        (BORN_TIMESTAMP, "'1760000000000'"),
    )
    headers = F.expr(f"array({', '.join(header.format(*each) for each in names)})")
    rows = spark.range(records).select(
        (F.col("id") % _KEYS).cast("string").alias("key"),
        F.concat(*digests).alias("value"),
        headers.alias("headers"),
    )
    (
        rows.write.format("kafka")
        .options(**options)
        .option("kafka.linger.ms", "20")
        .option("kafka.batch.size", str(1 << 18))
        .option("includeHeaders", "true")
        .option("topic", topic)
        .mode("append")  # the newer of Spark's two Kafka sources refuses the default
        .save()
    )


def _plain(spark: SparkSession, topic: str, options: Mapping[str, str]) -> float:
    began_s = time.monotonic()
    _read(spark, topic, options).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_s


def _copy(spark: SparkSession, topic: str, options: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        began_s = time.monotonic()
        _read(spark, topic, options).write.parquet(str(Path(directory) / "copy"))
        return time.monotonic() - began_s


def _read(spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("kafka").options(**options).option("subscribe", topic).load()


def _ingest(spark: SparkSession, cluster: Brokers, topic: str, values: Mapping[str, Any]) -> float:
    records = values["records"]
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        job = Ingest(
            topics=Topics.of(topic),
            bootstrap_servers=values["bootstrap_servers"],
            output=str(Path(directory) / "table"),
            checkpoint=str(Path(directory) / "checkpoint"),
            kafka=values["kafka"],
            format=values["kind"],
        )
        totals = ingest(spark, job, cluster, lambda _: None)
    if totals.rows != records:
        raise JobError(f"{totals.rows} of {records} records were ingested: nothing to compare")
    return totals.seconds


def _result(records: int, runs: Mapping[str, list[float]]) -> dict[str, Any]:
    rates = {what: records / statistics.median(times) for what, times in runs.items()}
    return {
        "records": records,
        "value_bytes": VALUE_BYTES,
        **{f"{what}_rows_per_s": round(rate) for what, rate in rates.items()},
        "ratio": round(rates["ingest"] / rates["plain"], 3),
        "ratio_of_headers": round(rates["ingest"] / rates["headers"], 3),
        "ratio_of_copy": round(rates["ingest"] / rates["copy"], 3),
        **{f"{what}_s": [round(each, 3) for each in times] for what, times in runs.items()},
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"plain read, rows/s         {found['plain_rows_per_s']:,}"
    yield f"read with headers, rows/s  {found['headers_rows_per_s']:,}"
    yield f"plain copy, rows/s         {found['copy_rows_per_s']:,}"
    yield f"ingest, rows/s             {found['ingest_rows_per_s']:,}"
    yield f"ratio to the read          {found['ratio']}"
    yield f"ratio with headers         {found['ratio_of_headers']}"
    yield f"ratio to the copy          {found['ratio_of_copy']}"


if __name__ == "__main__":
    main()

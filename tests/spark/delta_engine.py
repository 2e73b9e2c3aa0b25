"""Another engine that changes tables made by ingest: Spark with Delta's own source.

python tests/spark/delta_engine.py DIRECTORY

It makes the tables of TABLES below DIRECTORY, each with ROWS rows of which DELETED are deleted;
then it dedupes `vectors` in the same session, and prints the counts.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from halfbridge.java.locked_jars import JarSettings, locked_jars
from halfbridge.spark_jobs.dedupe import dedupe
from halfbridge.spark_jobs.session.jars import TABLE_FORMATS
from halfbridge.spark_jobs.session.local import spark_session

ROWS = 2_000  # of half as many messages
DELETED = 224
JARS = TABLE_FORMATS / "delta-4.1_2.13.lock"
VECTORS = "vectors"
PURGED = "purged"
RENAMED = "renamed"
TABLES: Mapping[str, Mapping[str, str]] = {
    VECTORS: {"delta.enableDeletionVectors": "true"},
    PURGED: {"delta.enableDeletionVectors": "true"},
    RENAMED: {"delta.columnMapping.mode": "name"},
}
SESSION = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "2",
}


def ingested(spark: SparkSession) -> DataFrame:
    """Return rows as ingest writes them: each message of a transaction was delivered twice."""
    headers = "array<struct<key:string,value:binary>>"
    return spark.range(ROWS, numPartitions=2).selectExpr(
        "'orders' as topic",
        "0 as partition",
        "id as offset",
        f"timestamp_seconds(1795219200 + id div {ROWS // 2}) as timestamp",
        "0 as timestamp_type",
        "cast('k' as binary) as key",
        f"cast(cast(id % {ROWS // 2} as string) as binary) as value",
        f"cast(array() as {headers}) as headers",
        f"concat('t', id % {ROWS // 2}) as transaction_id",
        "date'2026-11-21' as publish_date",
        "false as quarantined",
    )


def make(spark: SparkSession, directory: Path) -> None:
    """Make the tables."""
    rows = ingested(spark)
    for name, properties in TABLES.items():
        table = f"delta.`{directory / name}`"
        writer = rows.write.format("delta").partitionBy("publish_date", "quarantined")
        writer.options(**properties).save(str(directory / name))
        # Both deliveries of DELETED // 2 messages.
        spark.sql(f"delete from {table} where offset % {ROWS // 2} < {DELETED // 2}")
        if name == PURGED:
            spark.sql(f"reorg table {table} apply (purge)")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    jars = ",".join(jar.as_uri() for jar in locked_jars(JARS, JarSettings.from_environ(os.environ)))
    with spark_session("delta-engine", options={**SESSION, "spark.jars": jars}) as session:
        make(session, place)
        done = dedupe(session, str(place / VECTORS), str(place / "deduped"), "parquet")
    print(json.dumps(asdict(done)))

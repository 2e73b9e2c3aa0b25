"""The session that jobs get: the pinned jars work, and its owner alone stops it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from halfbridge.spark_jobs.session.local import spark_session
from tests.kit.caches import ARCHIVE_S_MAX, archives, own_cache
from tests.kit.waiting import until

pytestmark = pytest.mark.spark


def test_avro_is_there(spark: SparkSession) -> None:
    """The pinned jars encode and decode Avro, which jobs need for halfbridge's metadata."""
    frame = spark.range(3).select(from_avro(to_avro(F.col("id")), '"long"').alias("id"))
    assert [row["id"] for row in frame.orderBy("id").collect()] == [0, 1, 2]


def test_a_session_that_is_there_is_used_and_not_stopped(spark: SparkSession) -> None:
    """A notebook's session is yielded as it is, and lives on after the block."""
    with spark_session("another", options={"spark.sql.shuffle.partitions": "7"}) as session:
        assert session is spark
        assert session.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.range(1).count() == 1


def test_batch_reads_take_the_newer_reader(spark: SparkSession) -> None:
    """Kafka is not among the sources that Spark reads by its older interface."""
    names = spark.conf.get("spark.sql.sources.useV1SourceList")
    assert names is not None
    assert "parquet" in names.split(",")
    assert "kafka" not in names.split(",")


# Prints whether the driver's JVM has mapped an archive.
DRIVER = """
from halfbridge.spark_jobs.session.local import spark_session
with spark_session("archive", options={"spark.master": "local[1]"}) as spark:
    spark.range(10).count()
    with open(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps") as maps:
        print("class-archives" in maps.read())
"""


@pytest.mark.spark_long
@pytest.mark.timeout(900)
def test_a_session_maps_the_archive_of_the_one_before(tmp_path: Path) -> None:
    """The first session leaves an archive of its classes, which the next one's JVM maps."""
    environ = {**os.environ, "HALFBRIDGE_CACHE_DIR": str(own_cache(tmp_path))}
    command = [sys.executable, "-c", DRIVER]
    first = subprocess.check_output(command, env=environ, text=True, stderr=subprocess.DEVNULL)
    until("the archive is made", lambda: archives(tmp_path), within_s=ARCHIVE_S_MAX)
    second = subprocess.check_output(command, env=environ, text=True, stderr=subprocess.DEVNULL)
    assert (first.strip(), second.strip()) == ("False", "True")

"""The session that jobs get: the pinned jars work, and its owner alone stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by
from pyspark.sql.avro.functions import from_avro, to_avro

from halfbridge.spark_jobs.session.local import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

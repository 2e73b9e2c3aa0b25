"""Which rows a replay sends, on rows made by hand."""

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.reading.topics import KAFKA_SCHEMA
from halfbridge.spark_jobs.replay import REPLAY_ID, selected

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("value", "is_sent"), [(b"mine", False), (b"other", True), (b"", True), (None, True)]
)
def test_only_rows_of_this_replay_are_left_out(
    spark: SparkSession, value: bytes | None, *, is_sent: bool
) -> None:
    """Another replay's rows are sent, also where its header has no value at all."""
    headers = [("a", None), (REPLAY_ID, value)]
    row = (None, b"row", "orders", 0, 17, None, 0, headers)
    rows = spark.createDataFrame([row], KAFKA_SCHEMA)
    assert selected(rows, where="", replay_id="mine").count() == int(is_sent)

"""`benchmarks.spark_ingest` on a real broker, with few records."""

import json

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from benchmarks.spark_ingest import main

pytestmark = [pytest.mark.spark, pytest.mark.broker]

RECORDS = 500


def test_each_way_is_measured_and_the_topic_is_removed(
    spark: SparkSession, kafka_bootstrap_servers: str
) -> None:
    """One round writes the records, reads them in each way, and leaves nothing behind."""
    assert spark.range(1).count() == 1  # the command takes this session
    words = ["--bootstrap-servers", kafka_bootstrap_servers, "--partitions", "2", "--json"]
    done = CliRunner().invoke(main, [*words, "--records", str(RECORDS), "--rounds", "1"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["records"] == RECORDS
    for way in ("plain", "headers", "copy", "ingest"):
        assert found[f"{way}_rows_per_s"] == pytest.approx(RECORDS / found[f"{way}_s"][0], rel=0.01)
    assert found["ratio_of_headers"] > 0
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap_servers})
    names = admin.list_topics(timeout=10).topics
    assert not [name for name in names if name.startswith("halfbridge-bench-ingest-")]

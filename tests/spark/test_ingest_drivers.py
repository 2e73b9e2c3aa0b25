"""Two ingests with one checkpoint at the same time, as processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.ingest import main
from halfbridge.spark_jobs.tables.delta import read_table
from tests.spark.ingest_driver import GO, HELD
from tests.spark.real_topic import Real, make_topic
from tests.spark.sink_scene import until
from tests.spark.test_ingest_kills import START_S_MAX, end

pytest.importorskip("deltalake")
pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long]

DRIVER = Path(__file__).with_name("ingest_driver.py")
RECORDS = 1_000


@pytest.mark.timeout(1800)
def test_the_second_of_two_ingests_adds_nothing(
    spark: SparkSession, kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """One is held between files and commit, the other one overtakes it: each record is there once.

    The first one says that it added nothing, and Spark ends it; a third one continues after both.
    """
    topic = make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")
    topic.commit(*(Real(transaction_id=f"t{number}") for number in range(RECORDS)))
    arguments = [
        *("--bootstrap-servers", topic.servers, "--topic", topic.name, "--format", "delta"),
        *("--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")),
        "--json",
    ]
    command = [sys.executable, str(DRIVER), str(tmp_path), *arguments]
    session = ["--spark-opt", "spark.master=local[2]", "--spark-opt", "spark.driver.memory=1g"]
    first = subprocess.Popen(
        [*command, *session],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(
            "the first is held",
            lambda: (tmp_path / HELD).exists() or first.poll() is not None,
            within_s=START_S_MAX,
        )
        second = CliRunner().invoke(main, arguments)
        (tmp_path / GO).touch()
        _, words = first.communicate(timeout=START_S_MAX)
    finally:
        end(first)
    assert second.exit_code == 0, second.output
    # It began with a batch that another one left unfinished: Spark gives no numbers of that.
    assert json.loads(second.stdout)["unreported_batches"] == 1
    assert "batch 0: the table has it already" in words
    assert "CONCURRENT_STREAM_LOG_UPDATE" in words, words
    assert first.returncode == 1
    table = read_table(spark, str(tmp_path / "table"))
    assert table is not None
    assert table.count() == RECORDS
    third = CliRunner().invoke(main, arguments)
    assert json.loads(third.stdout)["rows"] == 0

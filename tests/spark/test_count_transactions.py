"""The job on a real broker: what a read_committed consumer sees is counted, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from halfbridge.spark_jobs import count_transactions as job
from halfbridge.spark_jobs.count_transactions import count_transactions, main
from halfbridge.spark_jobs.session.jars import connector_jars
from tests.kit.caches import jar_settings
from tests.spark.real_topic import Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PARTITIONS = 4
TIMEOUT_S = 60.0
PROCESS_S_MAX = 180.0  # a JVM's start on a busy machine
BORN_MS = 1_700_000_000_000


class Topic(RealTopic):
    """A real topic whose transactions are counted; a record is (transaction id, partition)."""

    def begin(self, records: Iterable[Any], *, slot: int = 0) -> Producer:
        """Write the records in a kafka_txn that stays open."""
        each_has = (Real(transaction_id=name, partition=partition) for name, partition in records)
        return super().begin(each_has, slot=slot)

    def count(self, spark: SparkSession) -> dict[str | None, int]:
        rows = count_transactions(spark, self.name, bootstrap_servers=self.servers).collect()
        counts = {row["transaction_id"]: row["row_count"] for row in rows}
        assert len(counts) == len(rows)
        return counts


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> Topic:
    """An empty real topic."""
    made = make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders", partitions=PARTITIONS)
    return Topic(made.servers, made.name)


@pytest.mark.feature
def test_only_committed_rows_count(spark: SparkSession, topic: Topic) -> None:
    """Aborted rows do not, be they between committed ones or all that a partition has."""
    topic.commit(("a1", 0), ("a1", 0), ("a1", 1))
    topic.abort(("c3", 0), ("c3", 0), ("a1", 0), ("c3", 2))
    topic.commit(("b2", 0))
    assert topic.count(spark) == {"a1": 3, "b2": 1}


def test_partition_that_holds_a_marker_only(spark: SparkSession, topic: Topic) -> None:
    """Its one offset is the kafka_txn's commit marker: no row, no loss, no waiting."""
    topic.commit(("a1", 0), ("b2", 3))
    topic.delete_before(1, partition=3)
    assert topic.count(spark) == {"a1": 1}


def test_open_kafka_txn_hides_its_partition_until_it_ends(
    spark: SparkSession, topic: Topic
) -> None:
    """Rows of an open kafka_txn, and rows behind it, count once it has ended; others at once."""
    topic.commit(("a1", 0), ("a1", 1))
    producer = topic.begin([("b2", 0)], slot=1)
    topic.commit(("c3", 0), ("c3", 1))
    assert topic.count(spark) == {"a1": 2, "c3": 1}
    topic.end(producer, slot=1)
    assert topic.count(spark) == {"a1": 2, "b2": 1, "c3": 2}


def test_rows_of_other_producers_count_without_a_transaction(
    spark: SparkSession, topic: Topic
) -> None:
    """A real topic may have other writers; their rows are seen, under no id."""
    topic.commit(("a1", 0))
    topic.write_plain(b"v", partition=0)
    topic.write_plain(b"v", partition=1)
    assert topic.count(spark) == {"a1": 1, None: 2}


def test_empty_topic(spark: SparkSession, topic: Topic) -> None:
    """A topic that nobody has written to has no counts."""
    assert topic.count(spark) == {}


def test_command_prints_a_table_or_json(spark: SparkSession, topic: Topic) -> None:
    """Both name every transaction in the order of their ids; the session stays for its owner."""
    topic.commit(("b2", 0), ("a1", 1), ("a1", 0))
    topic.write_plain(b"v", partition=1)
    arguments = ["--bootstrap-servers", topic.servers, "--topic", topic.name]
    text = CliRunner().invoke(main, arguments)
    assert text.exit_code == 0, text.output
    *table, totals = text.stdout.splitlines()
    assert [line.split() for line in table] == [
        ["transaction_id", "row_count"],
        [job.NO_TRANSACTION, "1"],
        ["a1", "2"],
        ["b2", "1"],
    ]
    assert totals == "transactions: 2, rows: 3, rows without a transaction: 1"
    as_json = CliRunner().invoke(main, [*arguments, "--json"])
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == [
        {"transaction_id": None, "row_count": 1},
        {"transaction_id": "a1", "row_count": 2},
        {"transaction_id": "b2", "row_count": 1},
    ]
    assert topic.count(spark) == {None: 1, "a1": 2, "b2": 1}


def test_missing_topic_is_one_clear_line(spark: SparkSession, topic: Topic) -> None:
    """The line names topic, servers and Kafka's reason; the exit status is 1."""
    absent = f"{topic.name}-absent"
    done = CliRunner().invoke(main, ["--bootstrap-servers", topic.servers, "--topic", absent])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1:] == []
    (line,) = done.stderr.splitlines()
    for part in (absent, topic.servers, "UnknownTopicOrPartitionException"):
        assert part in line


@pytest.mark.parametrize(
    "launcher", [pytest.param("python", marks=pytest.mark.spark_long), "spark-submit"]
)
def test_command_as_a_process_of_its_own(spark: SparkSession, topic: Topic, launcher: str) -> None:
    """It brings the connector itself; under spark-submit it takes the one that is given there."""
    topic.commit(("a1", 0), ("a1", 1))
    if launcher == "python":
        command = [sys.executable, "-m", job.__name__]
    else:
        jars = ",".join(map(str, connector_jars(pyspark.__version__, jar_settings())))
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        command = [str(submit), "--master", "local[1]", "--jars", jars, str(job.__file__)]
    done = subprocess.run(
        [*command, "--bootstrap-servers", topic.servers, "--topic", topic.name, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_S_MAX,
        # spark-submit would take the first python3 on PATH, which need not be this one.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"transaction_id": "a1", "row_count": 2}
    ]

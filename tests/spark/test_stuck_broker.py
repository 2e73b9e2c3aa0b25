"""The search for undecided transactions on a real broker."""

import json
import threading
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from halfbridge.serde import headers as names
from halfbridge.spark.stuck import main
from tests.integration.installation import GROUP, Installation
from tests.spark.marks import INTERPRETED

pytestmark = [*INTERPRETED, pytest.mark.broker]

TIMEOUT_S = 60.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_job.py"


@pytest.fixture
def installation(installation: Installation) -> Installation:
    """Two pairs."""
    installation.make(partitions=2)
    return installation


def stuck(installation: Installation, *words: str, exit_code: int) -> dict[str, Any]:
    """Return the report of the real command."""
    arguments = ["--bootstrap-servers", installation.servers]
    arguments += ["--prefix", installation.names.prefix, "--json", "--older-than", "0s", *words]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == exit_code, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_report_follows_the_topics(spark: SparkSession, installation: Installation) -> None:
    """Empty, then one that waits, then decided; young ones are not stuck."""
    orders = installation.real("orders")
    assert stuck(installation, exit_code=0)["undecided"] == 0
    half = installation.half(orders, partition=1)
    installation.half(orders, half.transaction_id, partition=1, message_index=1)
    report = stuck(installation, exit_code=2)
    (group,) = report["groups"]
    assert (group["producer_group"], group["real_topic"]) == (GROUP, orders)
    assert (group["transactions"], group["messages"]) == (1, 2)
    assert report["oldest"][0]["transaction_id"] == half.transaction_id
    young = stuck(installation, "--older-than", "1d", exit_code=0)
    assert (young["stuck"], young["undecided"]) == (0, 1)
    installation.commit(half, message_count=2)
    assert stuck(installation, exit_code=0)["undecided"] == 0


@pytest.mark.feature
def test_a_scheduler_takes_the_report(
    spark: SparkSession, installation: Installation, capfd: pytest.CaptureFixture[str]
) -> None:
    """examples/spark_job.py: findings are a result, what does not work is an error with a line."""
    run_job = run_path(str(EXAMPLE))["run_job"]
    installation.half(installation.real("orders"))
    where = ("--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix)
    report, has_findings = run_job("stuck", *where, "--older-than", "0s")
    assert (report["stuck"], has_findings) == (1, True)
    capfd.readouterr()
    with pytest.raises(RuntimeError, match="halfbridge spark stuck ended with 1"):
        run_job("stuck", *where, "--older-than", "long ago")
    (line,) = capfd.readouterr().err.splitlines()
    assert "long ago" in line


def test_open_and_aborted_kafka_txns(spark: SparkSession, installation: Installation) -> None:
    """An aborted copy is not there; what an open kafka_txn hides is named, and seen afterwards."""
    orders = installation.real("orders")
    half = installation.half(orders)
    header = (names.HALF, installation.half_header(orders, "f" * 32))

    def begin() -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": installation.servers,
                "transactional.id": f"{orders}-x",
                # On a busy machine the default minute is over before the test has looked.
                "transaction.timeout.ms": 900_000,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(installation.names.half, b"v", partition=0, headers=[header])
        producer.produce(installation.names.op, b"junk", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    begin().abort_transaction(TIMEOUT_S)
    assert stuck(installation, exit_code=2)["undecided"] == 1
    producer = begin()
    installation.commit(half)
    report = stuck(installation, exit_code=2)
    topics = sorted([installation.names.half, installation.names.op])
    assert report["hidden_by_open_kafka_txn"] == topics
    assert [each["transaction_id"] for each in report["oldest"]] == [half.transaction_id]
    producer.commit_transaction(TIMEOUT_S)
    report = stuck(installation, exit_code=2)
    assert [each["transaction_id"] for each in report["oldest"]] == ["f" * 32]


def test_a_busy_op_topic_hides_nothing(spark: SparkSession, installation: Installation) -> None:
    """What is appended while the ends are asked is no sign of an open kafka_txn."""
    ended, busy = threading.Event(), threading.Event()

    def keep_writing() -> None:
        while not ended.is_set():
            installation.write(installation.names.op, b"junk")
            busy.set()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        assert busy.wait(TIMEOUT_S)
        assert stuck(installation, exit_code=0)["hidden_by_open_kafka_txn"] == []
    finally:
        ended.set()
        writer.join(TIMEOUT_S)


def test_usage(installation: Installation) -> None:
    """A time that is none, or fewer than none of the oldest, is one clear line."""
    for words in (["--older-than", "soon"], ["--top", "-1"]):
        done = CliRunner().invoke(main, ["--bootstrap-servers", installation.servers, *words])
        assert done.exit_code == 1
        assert len(done.stderr.splitlines()) == 1

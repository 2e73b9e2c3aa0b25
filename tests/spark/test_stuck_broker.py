"""The search for undecided transactions on a real broker, as a report and as a table."""

import json
import shutil
import threading
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from halfbridge.serde import headers as names
from halfbridge.spark_jobs.stuck import main
from halfbridge.spark_jobs.stuck.table import Table
from tests.integration.installation import GROUP, Installation
from tests.spark.marks import INTERPRETED
from tests.spark.real_topic import RealTopic

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


@pytest.mark.feature
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


def test_open_and_aborted_kafka_txns(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
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
    words = ["--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
    assert stuck(installation, *words, exit_code=2)["hidden_by_open_kafka_txn"] == topics
    producer.commit_transaction(TIMEOUT_S)
    report = stuck(installation, exit_code=2)
    assert [each["transaction_id"] for each in report["oldest"]] == ["f" * 32]


def test_stream_keeps_a_table(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """It goes on where it was; a batch whose commit was forgotten changes nothing."""
    orders = installation.real("orders")
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    words = ["--table", str(table), "--checkpoint", str(checkpoint)]
    first, second = installation.half(orders), installation.half(orders, partition=1)
    assert stuck(installation, *words, exit_code=2)["undecided"] == 2
    installation.commit(first)
    report = stuck(installation, *words, exit_code=2)
    assert [each["transaction_id"] for each in report["oldest"]] == [second.transaction_id]
    before = sorted(map(tuple, Table(spark, str(table)).read().collect()))
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    stuck(installation, *words, exit_code=2)
    assert sorted(map(tuple, Table(spark, str(table)).read().collect())) == before
    installation.rollback(second)
    assert stuck(installation, *words, exit_code=0)["undecided"] == 0


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


@pytest.mark.parametrize("gone", ["table", "checkpoint"])
def test_table_and_checkpoint_only_go_together(
    spark: SparkSession, installation: Installation, tmp_path: Path, gone: str
) -> None:
    """With one of them removed the report would be of an old table, or of half of one."""
    installation.half(installation.real("orders"))
    words = ["--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
    assert stuck(installation, *words, exit_code=2)["undecided"] == 1
    shutil.rmtree(tmp_path / gone)
    where = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    refused = CliRunner().invoke(main, [*where, *words])
    assert refused.exit_code == 1
    (line,) = [each for each in refused.stderr.splitlines() if each.startswith("Error")]
    assert str(tmp_path / "table") in line
    assert str(tmp_path / "checkpoint") in line


def test_a_topic_that_was_made_anew_is_an_error(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """The table would keep transactions of the old half topic, and lack the first of the new."""
    installation.half(installation.real("orders"))
    words = ["--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
    assert stuck(installation, *words, exit_code=2)["undecided"] == 1
    RealTopic(installation.servers, installation.names.half).make_anew()
    where = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    refused = CliRunner().invoke(main, [*where, *words])
    assert refused.exit_code == 1
    (line,) = [each for each in refused.stderr.splitlines() if each.startswith("Error")]
    assert f"other records now: {installation.names.half} " in line
    assert "empty --table" in line


def test_usage(spark: SparkSession, installation: Installation, tmp_path: Path) -> None:
    """A table without a checkpoint, or a time that is none, is one clear line."""
    for words in (["--table", str(tmp_path)], ["--older-than", "soon"], ["--max-offsets", "9"]):
        done = CliRunner().invoke(main, ["--bootstrap-servers", installation.servers, *words])
        assert done.exit_code == 1
        assert len(done.stderr.splitlines()) == 1

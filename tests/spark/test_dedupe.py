"""Deduplicating what was ingested from a real broker, in both formats."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.spark_jobs.dedupe import main
from halfbridge.spark_jobs.ingest import main as ingest
from halfbridge.spark_jobs.tables.delta import read_table
from tests.spark.real_topic import DAY_1_MS, DAY_2_MS, Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.fixture(params=["parquet", pytest.param("delta", marks=pytest.mark.spark_long)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "delta":
        pytest.importorskip("deltalake")
    return str(request.param)


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> RealTopic:
    return make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")


class Tables:
    """A bronze and a silver table."""

    def __init__(self, spark: SparkSession, directory: Path, kind: str) -> None:
        self.spark = spark
        self.kind = kind
        self.bronze = directory / "bronze"
        self.silver = directory / "silver"
        self._directory = directory

    def ingest(self, topic: RealTopic, *more: str) -> None:
        """Bring the bronze table up to date."""
        arguments = [
            *("--bootstrap-servers", topic.servers, "--topic", topic.name),
            *("--output", str(self.bronze), "--checkpoint", str(self._directory / "checkpoint")),
            *("--format", self.kind, *more),
        ]
        done = CliRunner().invoke(ingest, arguments)
        assert done.exit_code == 0, done.output

    def run(self, *more: str) -> Result:
        arguments = ["--input", str(self.bronze), "--output", str(self.silver)]
        return CliRunner().invoke(main, [*arguments, "--format", self.kind, "--json", *more])

    def dedupe(self) -> dict[str, Any]:
        """Run the command, which must succeed, and return its report."""
        done = self.run()
        assert done.exit_code == 0, done.output
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def messages(self) -> list[tuple[str | None, int | None, int]]:
        """Return (transaction id, message index, offset) of all rows of the silver table."""
        rows = read_table(self.spark, str(self.silver))
        assert rows is not None
        return [
            (row["transaction_id"], row["message_index"], row["offset"])
            for row in rows.orderBy("topic", "partition", "offset").collect()
        ]

    def files(self) -> dict[str, int]:
        """Return the data files of the silver table with the times they were written."""
        return {
            str(path): path.stat().st_mtime_ns for path in sorted(self.silver.rglob("*.parquet"))
        }


@pytest.mark.feature
def test_a_second_delivery_is_left_out_and_a_second_run_changes_nothing(
    spark: SparkSession, topic: RealTopic, tmp_path: Path, kind: str
) -> None:
    """Delivered again a day later; an aborted and an open kafka_txn do not matter."""
    tables = Tables(spark, tmp_path, kind)
    order = [Real(transaction_id="a1"), Real(transaction_id="a1", value=b"w", index=1)]
    topic.commit(*order)
    topic.abort(Real(transaction_id="a1"))
    tables.ingest(topic)
    assert tables.dedupe()["days_written"] == 1
    again = [replace(each, timestamp_ms=DAY_2_MS) for each in order]
    topic.commit(*again, Real(transaction_id="b2", timestamp_ms=DAY_2_MS))
    topic.write_plain(b"other")
    topic.begin([Real(transaction_id="c3")], slot=1)
    tables.ingest(topic)
    report = tables.dedupe()
    counts = {name: report[name] for name in ("rows_read", "rows_kept", "same_message", "days")}
    assert counts == {"rows_read": 6, "rows_kept": 4, "same_message": 2, "days": 2}
    ids = [(transaction_id, index) for transaction_id, index, _ in tables.messages()]
    assert ids == [("a1", 0), ("a1", 1), ("b2", 0), (None, None)]
    before = tables.files()
    assert tables.dedupe()["days_written"] == 0
    assert tables.files() == before


def test_a_day_whose_rows_all_became_duplicates(
    spark: SparkSession, topic: RealTopic, tmp_path: Path, kind: str
) -> None:
    """Delivered again at a lower place: the row moves to the later day, and is there once."""
    tables = Tables(spark, tmp_path, kind)
    topic.commit(Real(transaction_id="a1", partition=1, timestamp_ms=DAY_1_MS))
    tables.ingest(topic)
    tables.dedupe()
    topic.commit(Real(transaction_id="a1", partition=0, timestamp_ms=DAY_2_MS))
    tables.ingest(topic)
    assert tables.dedupe()["days_written"] == 2
    assert [(txn, index) for txn, index, _ in tables.messages()] == [("a1", 0)]
    assert tables.dedupe()["days_written"] == 0


def test_too_many_days_are_one_clear_line(
    spark: SparkSession, topic: RealTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver holds no more days than its limit, and nothing is written."""
    tables = Tables(spark, tmp_path, "parquet")
    topic.commit(
        Real(transaction_id="a1", timestamp_ms=DAY_1_MS),
        Real(transaction_id="b2", timestamp_ms=DAY_2_MS),
    )
    tables.ingest(topic)
    monkeypatch.setattr("halfbridge.spark_jobs.dedupe.DAYS_MAX", 1)
    done = tables.run()
    assert done.exit_code == 1
    assert "the rows are of more than 1 days: leave out those whose publish_date" in done.output
    assert not tables.silver.exists()


def test_a_payload_with_a_map(spark: SparkSession, topic: RealTopic, tmp_path: Path) -> None:
    """Spark hashes no maps; days are compared all the same."""
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "tags", "type": {"type": "map", "values": "string"}}],
    }
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(schema))
    tags = b"\x02\x02a\x02b\x00"  # one block of one entry, a -> b
    topic.commit(Real(transaction_id="a1", value=MARKER + schema_fingerprint(schema) + tags))
    tables = Tables(spark, tmp_path, "parquet")
    tables.ingest(topic, "--schema", str(file))
    assert tables.dedupe()["days_written"] == 1
    assert tables.dedupe()["days_written"] == 0
    (row,) = spark.read.parquet(str(tables.silver)).select("payload").collect()
    assert row["payload"]["tags"] == {"a": "b"}


def test_a_day_that_was_damaged_is_written_anew(
    spark: SparkSession, topic: RealTopic, tmp_path: Path
) -> None:
    """A run that was killed while it replaced a day is made good by the next one; others stay."""
    tables = Tables(spark, tmp_path, "parquet")
    topic.commit(
        Real(transaction_id="a1", timestamp_ms=DAY_1_MS),
        Real(transaction_id="b2", timestamp_ms=DAY_2_MS),
    )
    tables.ingest(topic)
    assert tables.dedupe()["days_written"] == 2
    (damaged,) = (tables.silver / "publish_date=2025-10-09").glob("*.parquet")
    damaged.unlink()
    assert tables.dedupe()["days_written"] == 1
    assert [transaction_id for transaction_id, _, _ in tables.messages()] == ["a1", "b2"]


def test_empty_table(spark: SparkSession, topic: RealTopic, tmp_path: Path) -> None:
    """A table without rows has nothing to deduplicate, which is no error."""
    tables = Tables(spark, tmp_path, "parquet")
    topic.abort(Real(transaction_id="a1"))
    tables.ingest(topic)
    report = tables.dedupe()
    assert (report["rows_read"], report["days_written"]) == (0, 0)


def test_errors_are_one_line(spark: SparkSession, topic: RealTopic, tmp_path: Path) -> None:
    """No table there, the same table twice, a stream's table as output, another format."""
    tables = Tables(spark, tmp_path, "parquet")
    absent = tables.run()
    assert absent.exit_code == 1
    assert str(tables.bronze) in absent.stderr
    topic.commit(Real(transaction_id="a1"))
    tables.ingest(topic)
    same = tables.run("--output", str(tables.bronze))
    assert same.exit_code == 1
    assert "same directory" in same.stderr
    spark.range(1).write.parquet(str(tmp_path / "foreign"))
    foreign = tables.run("--input", str(tmp_path / "foreign"))
    assert foreign.exit_code == 1
    assert "no column" in foreign.stderr
    tables.dedupe()
    other = tables.run("--format", "delta")
    assert other.exit_code == 1
    assert "not in the format delta" in other.stderr
    for result in (absent, same, foreign, other):
        assert len([line for line in result.stderr.splitlines() if "Error" in line]) == 1

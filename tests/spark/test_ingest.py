"""Ingesting real topics on a real broker: each committed record once, unchanged."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import Row, SparkSession

from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.serde.headers import Headers
from halfbridge.spark_jobs.ingest import Ingest, ingest, main
from halfbridge.spark_jobs.jobs.options import Trigger
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.topics import Topics
from halfbridge.spark_jobs.tables.checkpoints import JOB_FILE, TOPIC_IDS_FILE, TopicsChangedError
from halfbridge.spark_jobs.tables.delta import read_table
from tests.spark.real_topic import BORN_MS, DAY_1_MS, DAY_2_MS, Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]

# What does not depend on the format is tried with one; what both must do, in every run with both.
ONE_FORMAT = pytest.mark.parametrize("table", ["parquet"], indirect=True)
BOTH_FORMATS = pytest.mark.parametrize("table", ["parquet", "delta"], indirect=True)
STREAM_S_MAX = 240.0  # until a stream has done something, on a busy machine
USER: Headers = [("trace", b"\x00\xff"), ("trace", None), ("empty", b"")]


@dataclass(frozen=True)
class Table:
    """A table of a test's own and the commands that fill it."""

    spark: SparkSession
    servers: str
    directory: Path
    kind: str

    @property
    def output(self) -> Path:
        return self.directory / "table"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def run(self, topic: str, *more: str) -> Result:
        """Run the command until it has ingested what is there; no topic: `more` names them."""
        return CliRunner().invoke(
            main,
            [
                *("--bootstrap-servers", self.servers, "--format", self.kind),
                *(("--topic", topic) if topic else ()),
                *("--output", str(self.output), "--checkpoint", str(self.checkpoint)),
                *("--json", *more),
            ],
        )

    def ingest(self, topic: RealTopic | str, *more: str) -> dict[str, Any]:
        """Run the command, which must succeed, and return its report."""
        done = self.run(topic if isinstance(topic, str) else topic.name, *more)
        assert done.exit_code == 0, done.output
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def rows(self) -> list[Row]:
        """Return what a reader of the table sees, in order."""
        table = read_table(self.spark, str(self.output))
        return [] if table is None else table.orderBy("topic", "partition", "offset").collect()

    def ids(self) -> list[str | None]:
        """Return the transaction ids, in order."""
        return [row["transaction_id"] for row in self.rows()]

    def undo_newest_commit(self) -> None:
        """Leave things as they are after a kill between the sink's commit and Spark's note."""
        self._undo_newest(self.checkpoint / "commits")

    def undo_newest_batch(self) -> None:
        """Leave things as they are after a kill before a Parquet sink's commit."""
        self.undo_newest_commit()
        self._undo_newest(self.output / "_spark_metadata")

    def _undo_newest(self, log: Path) -> None:
        newest = max(int(path.name) for path in log.iterdir() if path.name.isdigit())
        (log / str(newest)).unlink()
        (log / f".{newest}.crc").unlink(missing_ok=True)


@pytest.fixture(params=["parquet", pytest.param("delta", marks=pytest.mark.spark_long)])
def table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    kafka_bootstrap_servers: str,
    tmp_path: Path,
) -> Table:
    """A table that is not there yet, in each format."""
    if request.param == "delta":
        pytest.importorskip("deltalake")
    return Table(spark, kafka_bootstrap_servers, tmp_path, request.param)


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> RealTopic:
    return make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")


@pytest.mark.feature
def test_records_are_kept_as_they_stand(table: Table, topic: RealTopic) -> None:
    """Key, value and headers byte-exact, null and empty apart; place, times, id and birth."""
    topic.commit(
        Real(transaction_id="a1", key=None, value=b"\x00\xff", headers=USER),
        Real(transaction_id="a1", key=b"", value=b"", partition=1, timestamp_ms=DAY_2_MS),
    )
    topic.write_plain(None, key=b"other")
    report = table.ingest(topic)
    first, foreign, last = table.rows()
    assert (report["rows"], report["quarantined"], report["hidden"]) == (3, 0, [])
    assert (first["topic"], first["partition"], first["offset"]) == (topic.name, 0, 0)
    assert (first["key"], first["value"]) == (None, bytearray(b"\x00\xff"))
    *user, _, _ = [(header["key"], header["value"]) for header in first["headers"]]
    assert user == USER
    assert (last["key"], last["value"]) == (b"", b"")
    assert (foreign["key"], foreign["value"], foreign["headers"]) == (b"other", None, None)
    assert [row["transaction_id"] for row in (first, foreign, last)] == ["a1", None, "a1"]
    assert [row["timestamp"].timestamp() * 1000 for row in (first, last)] == [DAY_1_MS, DAY_2_MS]
    assert first["born_timestamp"].timestamp() * 1000 == BORN_MS
    assert foreign["born_timestamp"] is None
    assert [str(row["publish_date"]) for row in (first, last)] == ["2025-10-09", "2025-10-10"]
    assert {row["quarantined"] for row in (first, foreign, last)} == {False}


@pytest.mark.feature
@BOTH_FORMATS
def test_each_record_once_whatever_is_run_again(table: Table, topic: RealTopic) -> None:
    """New rows are added, old ones are not; a batch that Spark runs again is not either."""
    topic.commit(Real(transaction_id="a1"), Real(transaction_id="a1", partition=1))
    assert table.ingest(topic)["rows"] == 2
    table.undo_newest_commit()
    again = table.ingest(topic)
    assert (again["rows"], again["unreported_batches"]) == (0, 1)
    topic.commit(Real(transaction_id="b2"))
    assert table.ingest(topic)["rows"] == 1
    table.undo_newest_commit()
    topic.commit(Real(transaction_id="c3"))
    assert table.ingest(topic)["rows"] == 1
    assert table.ids() == ["a1", "b2", "c3", "a1"]


def test_what_consumers_do_not_see_is_not_there(table: Table, topic: RealTopic) -> None:
    """Aborted records and markers are no rows, also where a batch has nothing else."""
    topic.commit(Real(transaction_id="a1"))
    assert table.ingest(topic)["rows"] == 1
    topic.abort(Real(transaction_id="x"), Real(transaction_id="x", partition=1))
    only_markers = table.ingest(topic)
    assert (only_markers["rows"], only_markers["batches"]) == (0, 1)
    topic.commit(Real(transaction_id="b2", partition=1))
    table.ingest(topic)
    table.undo_newest_commit()
    table.ingest(topic)
    assert table.ids() == ["a1", "b2"]


def test_open_kafka_txn_is_reported_and_read_once_it_has_ended(
    table: Table, topic: RealTopic
) -> None:
    """Rows behind it are not read, the report says how many offsets that is; later they are."""
    topic.commit(Real(transaction_id="a1"))
    producer = topic.begin([Real(transaction_id="b2")], slot=1)
    topic.commit(Real(transaction_id="c3"), Real(transaction_id="c3", partition=1))
    report = table.ingest(topic)
    assert table.ids() == ["a1", "c3"]
    (hidden,) = report["hidden"]
    assert (hidden["topic"], hidden["partition"]) == (topic.name, 0)
    assert hidden["offsets"] >= 2
    topic.end(producer, slot=1)
    assert table.ingest(topic)["hidden"] == []
    assert table.ids() == ["a1", "b2", "c3", "c3"]


def test_empty_topic(table: Table, topic: RealTopic) -> None:
    """Nothing is there, which is no error; what comes later is ingested."""
    assert table.ingest(topic)["rows"] == 0
    assert table.rows() == []
    topic.commit(Real(transaction_id="a1"))
    assert table.ingest(topic)["rows"] == 1


@ONE_FORMAT
def test_several_topics_in_bounded_batches(
    table: Table, topic: RealTopic, kafka_bootstrap_servers: str
) -> None:
    """All topics of a pattern come into one table, in as many batches as --max-offsets makes."""
    other = make_topic(kafka_bootstrap_servers, f"{topic.name}.eu")
    for number in range(6):
        topic.commit(Real(transaction_id=f"a{number}"))
        other.commit(Real(transaction_id=f"b{number}", partition=1))
    arguments = [
        *("--bootstrap-servers", table.servers, "--topic-pattern", f"{topic.name}(\\.eu)?"),
        *("--output", str(table.output), "--checkpoint", str(table.checkpoint)),
        *("--format", table.kind, "--max-offsets", "8", "--json"),
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["batches"] > 1
    assert table.ids() == [*(f"a{n}" for n in range(6)), *(f"b{n}" for n in range(6))]


@ONE_FORMAT
def test_from_a_time_on(table: Table, topic: RealTopic) -> None:
    """A new checkpoint may begin at a publish time; the time no longer counts for an old one."""
    topic.commit(Real(transaction_id="a1"), Real(transaction_id="b2", timestamp_ms=DAY_2_MS))
    table.ingest(topic, "--from", "2025-10-10T00:00Z")
    assert table.ids() == ["b2"]
    topic.commit(Real(transaction_id="c3", timestamp_ms=DAY_2_MS))
    table.ingest(topic, "--from", "latest")
    assert table.ids() == ["b2", "c3"]


@ONE_FORMAT
def test_checkpoint_of_another_job_is_refused(
    table: Table, topic: RealTopic, kafka_bootstrap_servers: str
) -> None:
    """With other topics or another output rows would be lost; the line says what differs."""
    other = make_topic(kafka_bootstrap_servers, f"{topic.name}.eu")
    topic.commit(Real(transaction_id="a1"))
    table.ingest(topic)
    assert json.loads((table.checkpoint / JOB_FILE).read_text("utf-8"))["topics"] == [topic.name]
    refused = table.run(other.name)
    assert refused.exit_code == 1
    assert "topics was" in refused.stderr
    assert other.name in refused.stderr
    moved = table.run(topic.name, "--output", str(table.directory / "elsewhere"))
    assert moved.exit_code == 1
    assert "output was" in moved.stderr
    (table.checkpoint / JOB_FILE).unlink()
    unknown = table.run(topic.name)
    assert unknown.exit_code == 1
    assert "another program" in unknown.stderr


@pytest.mark.parametrize("gone", ["checkpoint", "output"])
def test_checkpoint_and_output_only_go_together(table: Table, topic: RealTopic, gone: str) -> None:
    """With one of them replaced Spark would skip batches without a word: it is refused."""
    topic.commit(Real(transaction_id="a1"))
    table.ingest(topic)
    shutil.rmtree(getattr(table, gone))
    refused = table.run(topic.name)
    assert refused.exit_code == 1
    (line,) = [each for each in refused.stderr.splitlines() if each.startswith("Error")]
    assert str(table.output) in line
    assert str(table.checkpoint) in line


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("parquet", "part-0.parquet"),
        ("parquet", "_delta_log/0.json"),
        ("delta", "part-0.parquet"),
        ("delta", "_spark_metadata/0"),
    ],
    indirect=["table"],
)
def test_output_of_somebody_else_is_refused(table: Table, topic: RealTopic, name: str) -> None:
    """A new table beside other files would hide them, or be hidden by them."""
    topic.commit(Real(transaction_id="a1"))
    stranger = table.output / name
    stranger.parent.mkdir(parents=True)
    stranger.write_text("{}")
    refused = table.run(topic.name)
    assert refused.exit_code == 1
    assert "is not empty" in refused.stderr
    assert [path for path in table.output.rglob("*") if path.is_file()] == [stranger]


@ONE_FORMAT
def test_a_first_run_that_failed_binds_nobody(table: Table, topic: RealTopic) -> None:
    """A misspelt topic, or a kill while job.json was written, does not use a checkpoint up."""
    assert table.run(f"{topic.name}-absent").exit_code == 1
    assert (table.checkpoint / JOB_FILE).exists()
    (table.checkpoint / JOB_FILE).write_text('{"job"')
    (table.checkpoint / f".{JOB_FILE}.crc").unlink(missing_ok=True)
    topic.commit(Real(transaction_id="a1"))
    assert table.ingest(topic)["rows"] == 1


@ONE_FORMAT
def test_errors_are_one_line(table: Table, topic: RealTopic) -> None:
    """A topic that is not there, a cluster that does not answer, a checkpoint in use."""
    absent = table.run(f"{topic.name}-absent")
    assert absent.exit_code == 1
    (line,) = absent.stderr.splitlines()
    assert "UnknownTopicOrPartition" in line
    nowhere = table.run(topic.name, "--bootstrap-servers", "localhost:1")
    assert nowhere.exit_code == 1
    (line,) = nowhere.stderr.splitlines()
    assert "localhost:1" in line


def refused(table: Table, topic: str, *more: str) -> str:
    """Run the command, which must refuse, and return its error's one line."""
    done = table.run(topic, *more)
    assert done.exit_code == 1, done.output
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("Error")]
    return line


@ONE_FORMAT
def test_a_topic_that_was_made_anew_is_an_error(table: Table, topic: RealTopic) -> None:
    """Spark would go on at the old offset, and leave out the first records without an error."""
    topic.commit(Real(transaction_id="a1"))
    table.ingest(topic)
    topic.make_anew()
    topic.commit(*(Real(transaction_id=f"b{number}") for number in range(5)))
    line = refused(table, topic.name)
    assert topic.name in line
    assert "created again" in line
    assert table.ids() == ["a1"]
    assert "created again" in refused(table, topic.name), "an error once is an error until mended"
    topic.delete()
    assert f": {topic.name}. With --accept-deleted" in refused(table, topic.name)


@ONE_FORMAT
def test_a_topic_of_a_pattern_that_is_gone_is_named(table: Table, topic: RealTopic) -> None:
    """Others that match do not hide it, nor does a topic that came after the first run."""
    pattern = ("--topic-pattern", f"{topic.name}.*")
    topic.commit(Real(transaction_id="a1"))
    table.ingest("", *pattern)
    other = make_topic(table.servers, f"{topic.name}.eu")
    other.commit(Real(transaction_id="b1"))
    table.ingest("", *pattern)
    other.delete()
    line = refused(table, "", *pattern)
    assert "deleted" in line
    assert f": {other.name}. " in line
    make_topic(table.servers, other.name)
    assert f"created again, so that they are of other records now: {other.name} " in refused(
        table, "", *pattern
    )
    assert table.ids() == ["a1", "b1"]


def test_a_topic_that_was_made_anew_is_accepted(table: Table, topic: RealTopic) -> None:
    """It is read from its first offset, once, also if the command with the option is repeated."""
    topic.commit(Real(transaction_id="a1"), Real(transaction_id="a1", partition=1))
    table.ingest(topic)
    topic.make_anew()
    topic.commit(*(Real(transaction_id=f"b{number}") for number in range(5)))
    accept = ("--accept-deleted", topic.name)
    assert "--accept-deleted" in refused(table, topic.name)
    assert table.ingest(topic, *accept)["rows"] == 5
    assert table.ingest(topic, *accept)["rows"] == 0
    topic.commit(Real(transaction_id="c1", partition=1))
    assert table.ingest(topic)["rows"] == 1
    assert sorted(map(str, table.ids())) == ["a1", "a1", *(f"b{n}" for n in range(5)), "c1"]


@ONE_FORMAT
@pytest.mark.parametrize("newest", ["done", "written", "planned"])
def test_a_topic_of_a_pattern_that_is_gone_is_accepted(
    table: Table, topic: RealTopic, newest: str
) -> None:
    """Each record of the others is there once, whatever a kill left of the batch before."""
    pattern = ("--topic-pattern", f"{topic.name}.*")
    other = make_topic(table.servers, f"{topic.name}.eu")
    topic.commit(Real(transaction_id="a1"))
    other.commit(Real(transaction_id="b1"))
    table.ingest("", *pattern)
    topic.commit(Real(transaction_id="a2"))
    table.ingest("", *pattern)
    if newest == "written":
        table.undo_newest_commit()
    elif newest == "planned":
        table.undo_newest_batch()
    other.delete()
    topic.commit(Real(transaction_id="a3"))
    assert f": {other.name}. " in refused(table, "", *pattern)
    table.ingest("", *pattern, "--accept-deleted", other.name, "--accept-deleted", topic.name)
    assert table.ids() == ["a1", "a2", "a3", "b1"]
    topic.commit(Real(transaction_id="a4"))
    assert table.ingest("", *pattern)["rows"] == 1


@ONE_FORMAT
def test_a_checkpoint_without_topic_ids_gets_them(table: Table, topic: RealTopic) -> None:
    """One of halfbridge 0.1 has none: its topics are taken for the ones that it was made with."""
    topic.commit(Real(transaction_id="a1"))
    table.ingest(topic)
    (table.checkpoint / TOPIC_IDS_FILE).unlink()
    (table.checkpoint / f".{TOPIC_IDS_FILE}.crc").unlink(missing_ok=True)
    topic.commit(Real(transaction_id="a2"))
    assert table.ingest(topic)["rows"] == 1
    topic.make_anew()
    assert topic.name in refused(table, topic.name)


@ONE_FORMAT
def test_a_topic_that_is_made_anew_under_a_running_stream_ends_it(
    table: Table, topic: RealTopic
) -> None:
    """Whatever Spark makes of it, the error names the topic."""
    job = Ingest(
        topics=Topics.of(topic.name),
        bootstrap_servers=table.servers,
        output=str(table.output),
        checkpoint=str(table.checkpoint),
        kafka={},
        trigger=Trigger("1 seconds"),
    )
    topic.commit(Real(transaction_id="a1"))
    lines: Queue[str] = Queue()
    with connect(table.spark, table.servers, {}) as cluster, ThreadPoolExecutor(1) as threads:
        run = threads.submit(ingest, table.spark, job, cluster, lines.put)
        assert lines.get(timeout=STREAM_S_MAX).startswith("batch 0: 1 rows")
        topic.make_anew()
        topic.commit(*(Real(transaction_id=f"b{number}") for number in range(5)))
        with pytest.raises(TopicsChangedError, match=topic.name):
            run.result(STREAM_S_MAX)
    assert table.spark.streams.active == []


@BOTH_FORMATS
def test_unknown_schemas_are_quarantined_not_dropped(
    table: Table, topic: RealTopic, tmp_path: Path
) -> None:
    """They are separate rows of the same table, with bytes and reason; the job continues.

    Once their schema is given too, records that come later are decoded; what is quarantined stays.
    """
    order, strange = ({"type": "record", "name": name, "fields": []} for name in ("Order", "Other"))
    known, unknown = (tmp_path / name for name in ("order.avsc", "other.avsc"))
    known.write_text(json.dumps({**order, "fields": [{"name": "n", "type": "long"}]}))
    unknown.write_text(json.dumps({**strange, "fields": [{"name": "n", "type": "long"}]}))
    values = [
        MARKER + schema_fingerprint(json.loads(path.read_text())) + b"\x02"
        for path in (known, unknown)
    ]
    topic.commit(*(Real(transaction_id="a1", value=value) for value in (*values, b"{}", None)))
    report = table.ingest(topic, "--schema", str(known))
    assert (report["rows"], report["quarantined"]) == (4, 2)
    rows = table.rows()
    assert [row["value"] for row in rows] == [*values, b"{}", None]
    assert [row["quarantined"] for row in rows] == [False, True, True, False]
    assert rows[0]["payload"]["n"] == 1
    assert "unknown schema avro:" in rows[1]["quarantine_reason"]
    assert "no schema named" in rows[2]["quarantine_reason"]
    assert len(list(table.output.rglob("quarantined=true/*.parquet"))) >= 1
    topic.commit(Real(transaction_id="b2", value=values[1]))
    report = table.ingest(topic, "--schema", str(unknown), "--schema", str(known))
    assert (report["rows"], report["quarantined"]) == (1, 0)
    rows = table.rows()
    assert rows[-1]["payload"]["n"] == 1
    assert [row["quarantined"] for row in rows] == [False, True, True, False, False]

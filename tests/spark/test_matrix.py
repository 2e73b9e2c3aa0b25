"""Each job once on the Spark that is installed; `make spark-matrix` runs this with each line.

Where a Spark lacks what a job needs, the job must refuse in one line, and the test is skipped with
what is missing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from halfbridge.bridge import Message, Resolution, TransactionProducer
from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.spark import read_messages, read_transactions
from halfbridge.spark.stuck import main as stuck
from halfbridge.spark_jobs.audit.command import main as audit
from halfbridge.spark_jobs.capabilities import HAS_DATA_SOURCES, is_text, valid_text
from halfbridge.spark_jobs.dedupe import main as dedupe
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.ingest import main as ingest
from halfbridge.spark_jobs.replay import main as replay
from halfbridge.spark_jobs.sink import register, write_batch
from halfbridge.spark_jobs.sink.errors import BatchOrderError, SinkOptionError
from halfbridge.spark_jobs.tables.delta import read_table
from halfbridge.testkit.children import Children, Interrupts
from tests.spark.real_topic import Real, RealTopic
from tests.spark.sink_scene import SinkScene, check_exactly_once

pytestmark = [
    *(pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("interpreted"),
]

COMMITTED = 12
ROLLED_BACK = 3
MESSAGES = 2  # of each transaction
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
FINGERPRINT = schema_fingerprint(json.loads(SCHEMA))
ROWS = 60
NEEDS_DATA_SOURCES = "Spark 4.0 has them"


def done(command: Command, *words: str, exit_code: int = 0) -> Any:
    """Return the report of a command that ends with this status."""
    result = CliRunner().invoke(command, [*words, "--json"])
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def traffic(
    spark: SparkSession, kafka_bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SinkScene]:
    """What a client and a daemon have left in the topics: committed and rolled back."""
    directory = tmp_path_factory.mktemp("traffic")
    with Children(directory, interrupts=Interrupts(), keep_directory=True) as children:
        prefix = f"{directory.name}-{children.directory.parent.name}-"
        scene = SinkScene(kafka_bootstrap_servers, prefix, directory, children).make()
        scene.daemon()
        producer = TransactionProducer(
            bootstrap_servers=scene.servers,
            producer_group="shop",
            topic_prefix=scene.prefix,
            checker=lambda _: Resolution.UNKNOWN,
        )
        with closing(producer):
            producer.start()
            for number in range(COMMITTED + ROLLED_BACK):
                transaction = producer.begin()
                body = MARKER + FINGERPRINT + bytes([2 * number])  # a varint of one byte
                for _ in range(MESSAGES):
                    transaction.send(Message(scene.orders, key=b"%d" % number, value=body))
                if number < COMMITTED:
                    transaction.commit()
                else:
                    transaction.rollback()
        assert len(scene.settled()) == COMMITTED * MESSAGES
        yield scene


def test_text_is_distinguished_from_bytes(spark: SparkSession) -> None:
    """As Python's own decoder does, which is as strict; the replacement character is text."""
    given = [b"", b"a", "é€𝄞".encode(), "\ufffd".encode(), b"\xff", b"a\x80", b"\xed\xa0\x80"]
    given += [b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
    frame = spark.createDataFrame([(each,) for each in given], "data binary")
    text = F.col("data").cast("string")
    rows = frame.select("data", is_text(text), valid_text(text).cast("binary")).collect()
    for data, is_valid, valid in rows:
        # An error handler of Python's that leaves out what is no text.
        expected = bytes(data).decode(errors="ignore").encode() == data
        assert (is_valid, valid) == (expected, data if expected else None)
    nothing = spark.createDataFrame([(None,)], "data string")
    assert tuple(
        nothing.select(is_text(F.col("data")), valid_text(F.col("data"))).first() or ()
    ) == (
        None,
        None,
    )


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_ingest_and_dedupe(
    spark: SparkSession, traffic: SinkScene, tmp_path: Path, kind: str
) -> None:
    """Each record once, with its payload decoded; again, after another delivery of a record."""
    if kind == "delta":
        pytest.importorskip("deltalake")
    schema, bronze, silver = (tmp_path / name for name in ("order.avsc", "bronze", "silver"))
    schema.write_text(SCHEMA)
    words = ["--bootstrap-servers", traffic.servers, "--topic", traffic.orders]
    words += ["--format", kind, "--output", str(bronze), "--schema", str(schema)]
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--max-offsets", "20"]
    report = done(ingest, *words)
    assert (report["rows"], report["quarantined"]) == (COMMITTED * MESSAGES, 0)
    assert report["batches"] > 1
    assert done(ingest, *words)["rows"] == 0
    table = read_table(spark, str(bronze))
    assert table is not None
    rows = table.collect()
    assert set(Counter(row["transaction_id"] for row in rows).values()) == {MESSAGES}
    assert Counter(row["payload"]["id"] for row in rows) == dict.fromkeys(
        range(COMMITTED), MESSAGES
    )
    assert all(row["born_timestamp"] is not None for row in rows)

    done(dedupe, "--input", str(bronze), "--output", str(silver), "--format", kind)
    unique = read_table(spark, str(silver))
    assert unique is not None
    assert unique.count() == COMMITTED * MESSAGES


def test_frames(spark: SparkSession, traffic: SinkScene) -> None:
    """Each message of what was committed, and each transaction with its state."""
    where: dict[str, Any] = {"bootstrap_servers": traffic.servers, "topics": traffic.orders}
    rows = read_messages(spark, **where).collect()
    assert Counter(row["message_index"] for row in rows) == dict.fromkeys(
        range(MESSAGES), COMMITTED
    )
    found = read_transactions(spark, **where, prefix=traffic.prefix)
    ours = found.where(F.col("real_topic") == traffic.orders).collect()
    assert Counter((row["state"], row["message_count"]) for row in ours) == {
        ("delivered", MESSAGES): COMMITTED,
        ("rolled_back", MESSAGES): ROLLED_BACK,
    }
    delivered = {row["transaction_id"] for row in ours if row["state"] == "delivered"}
    assert delivered == {row["transaction_id"] for row in rows}


def test_stuck(spark: SparkSession, installation: Any) -> None:
    """A transaction that nobody has decided, until it is decided; there is no daemon here."""
    installation.make(partitions=2)
    words = ["--bootstrap-servers", installation.servers, "--older-than", "0s"]
    words += ["--prefix", installation.names.prefix]
    half = installation.half(installation.real("orders"), partition=1)
    report = done(stuck, *words, exit_code=2)
    assert [each["transaction_id"] for each in report["oldest"]] == [half.transaction_id]
    installation.commit(half, message_count=1)
    assert done(stuck, *words)["undecided"] == 0


def test_audit(traffic: SinkScene) -> None:
    """Nothing is found, then the one record that nobody decided to deliver."""
    words = ["--bootstrap-servers", traffic.servers, "--prefix", traffic.prefix]
    report = done(audit, *words)
    assert report["clean"] is True
    assert report["transactions"]["all"] >= COMMITTED + ROLLED_BACK
    RealTopic(traffic.servers, traffic.orders).commit(Real(transaction_id="f" * 32))
    found = done(audit, *words, exit_code=2)["findings_by_kind"]
    assert {kind: count for kind, count in found.items() if count} == {"phantom": 1}


@pytest.fixture
def sink(spark: SparkSession, request: pytest.FixtureRequest) -> SinkScene:
    """An installation for the sink; skips where it refuses, as it must without data sources."""
    if not HAS_DATA_SOURCES:
        with pytest.raises(JobError, match=NEEDS_DATA_SOURCES):
            register(spark)
        pytest.skip("refused: needs Spark 4.0")
    scene: SinkScene = request.getfixturevalue("scene")
    return scene


def check_a_repeated_batch(scene: SinkScene, run: Callable[..., None]) -> list[int]:
    """Run a stream, and again with a batch whose commit Spark has lost; return the rows' numbers.

    Each row is there once and in order, and the manifests name plan and rows of each batch.
    """
    numbers = scene.add_file(ROWS) + scene.add_file(ROWS)
    run(transaction_messages_max="20")
    scene.forget_commit(1)
    numbers += scene.add_file(ROWS)
    run(transaction_messages_max="25")
    check_exactly_once(scene.settled(), numbers)
    assert [(each.batch_id, each.row_count) for each in scene.manifests()] == [
        *((0, ROWS), (1, ROWS), (2, ROWS))
    ]
    assert all(each.plan_hash for each in scene.manifests())
    return numbers


def test_sink_stream(spark: SparkSession, sink: SinkScene) -> None:
    """Each row once, in order, under manifests that name its plan; a batch that is repeated too."""
    check_a_repeated_batch(sink, partial(sink.run, sink.stream(spark)))
    assert sink.undecided() == set()


def test_write_batch_stream(spark: SparkSession, scene: SinkScene) -> None:
    """In foreachBatch rows are published once, and a batch that Spark repeats not again."""

    def run(**options: str) -> None:
        writer = scene.stream(spark).writeStream.option("checkpointLocation", str(scene.checkpoint))
        written = partial(write_batch, options=scene.options(**options))
        query = writer.foreachBatch(written).trigger(availableNow=True).start()
        query.awaitTermination()

    numbers = check_a_repeated_batch(scene, run)
    if HAS_DATA_SOURCES:  # the query continues with the data source
        scene.forget_commit(2)
        numbers += scene.add_file(ROWS)
        scene.run(scene.stream(spark))
        check_exactly_once(scene.settled(), numbers)
    assert scene.undecided() == set()


def test_write_batch_job(spark: SparkSession, scene: SinkScene) -> None:
    """A job's write that is repeated under its number writes nothing; an older one is refused."""
    options = scene.options()
    del options["checkpointLocation"]
    frame = spark.createDataFrame([(b"k", b"v"), (None, None)], "key binary, value binary")
    for _ in range(2):
        write_batch(frame, 7, options)
    assert {(each.key, each.value) for each in scene.settled()} == {(b"k", b"v"), (None, None)}
    with pytest.raises(BatchOrderError) as refused:
        write_batch(frame, 6, options)
    assert refused.value.batch_id == 6
    with pytest.raises(SinkOptionError, match="argument batch_id"):
        write_batch(frame, 8, {**options, "batch.id": "8"})


def test_sink_batch(spark: SparkSession, sink: SinkScene) -> None:
    """Rows are byte-exact; a write that is repeated under its batch.id writes nothing."""
    rows = [(b"k", b"\xff\x00", [("h", b"1"), ("n", None)]), (None, None, None), (b"", b"", [])]
    types = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    options = sink.options(batch_id="7")
    del options["checkpointLocation"]
    for _ in range(2):
        frame = spark.createDataFrame(rows, types)
        frame.write.format("txn_half").mode("append").options(**options).save()
    came = {(each.key, each.value): dict(each.headers) for each in sink.settled()}
    assert set(came) == {(key, value) for key, value, _ in rows}
    first = came[b"k", b"\xff\x00"]
    assert (first["h"], first["n"]) == (b"1", None)
    assert all(TRANSACTION_ID in headers for headers in came.values())


def test_replay(spark: SparkSession, traffic: SinkScene, tmp_path: Path) -> None:
    """Rows of a topic go to another one, once."""
    words = ["--bootstrap-servers", traffic.servers, "--topic-prefix", traffic.prefix]
    words += ["--from-topic", traffic.orders, "--to-topic", traffic.fixes]
    words += ["--replay-id", "fix", "--checkpoint", str(tmp_path / "replay")]
    words += ["--where", f"key = cast('{COMMITTED - 1}' AS binary)"]
    assert done(replay, *words)["rows"] == MESSAGES
    assert len(traffic.settled(traffic.fixes)) == MESSAGES

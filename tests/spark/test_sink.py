"""The sink on a real broker and a real daemon: every row once, in order, whatever is repeated."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import BORN_TIMESTAMP, DEAD, MESSAGE_INDEX, SIGN, TRANSACTION_ID
from halfbridge.serde.manifest import ManifestKind
from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.spark_jobs.audit.command import main as audit
from halfbridge.spark_jobs.sink import register
from halfbridge.testkit.children import Children, Interrupts
from tests.kit.signing import a_table, write_key_file
from tests.spark import sink_faults
from tests.spark.sink_faults import AFTER_MANIFEST, BEFORE_MANIFEST, faulty
from tests.spark.sink_scene import APP, SCHEMA, SinkScene, check_exactly_once, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def faults(spark: SparkSession, scene: SinkScene, fault: str) -> None:
    """Have the sink's commit fail once, under the format `sink_faults.FORMAT`."""
    from pyspark import cloudpickle  # noqa: PLC0415 (the tests' modules are not on workers' path)

    cloudpickle.register_pickle_by_value(sink_faults)
    spark.dataSource.register(faulty(scene.directory))
    (scene.directory / fault).touch()


@pytest.mark.feature
def test_stream_is_published_batch_by_batch(spark: SparkSession, scene: SinkScene) -> None:
    """Every row once, in order per key; one manifest a batch; nothing undecided is left.

    Then `commits/1` is lost, as in a crash between the sink's commit and Spark's own: the batch
    runs again, is found published, and what it sent a second time is rolled back.
    """
    numbers = scene.add_file(300) + scene.add_file(200)
    scene.run(scene.stream(spark), transaction_messages_max="50")
    check_exactly_once(scene.settled(), numbers)
    manifests = [(each.batch_id, each.row_count) for each in scene.manifests()]
    assert manifests == [(0, 300), (1, 200)]
    assert scene.undecided() == set()
    assert set(scene.decisions().values()) == {OpKind.COMMIT}

    scene.forget_commit(1)
    numbers += scene.add_file(100)
    scene.run(scene.stream(spark), transaction_messages_max="70")
    check_exactly_once(scene.settled(), numbers)
    assert [each.batch_id for each in scene.manifests()] == [0, 1, 2]
    assert scene.undecided() == set()
    assert OpKind.ROLLBACK in scene.decisions().values()


@pytest.mark.parametrize(
    "fault", [AFTER_MANIFEST, pytest.param(BEFORE_MANIFEST, marks=pytest.mark.spark_long)]
)
def test_commit_that_raises(spark: SparkSession, scene: SinkScene, fault: str) -> None:
    """The query fails; nothing of the batch is visible; started again it is there once.

    Before the manifest the abort gives the attempts up; after it, what is published stays so.
    """
    first, second = scene.add_file(100), scene.add_file(100)
    faults(spark, scene, fault)
    with pytest.raises(PySparkException, match=fault):
        scene.run(scene.stream(spark), sink_faults.FORMAT)
    assert scene.settled() == []
    assert bool(scene.undecided()) == (fault == AFTER_MANIFEST)

    scene.run(scene.stream(spark))
    check_exactly_once(scene.settled(), first + second)
    assert scene.undecided() == set()


@pytest.mark.spark_long
def test_the_audit_has_nothing_to_say(spark: SparkSession, scene: SinkScene) -> None:
    """Of batches published, run again and aborted; what the sink adds is not delivered."""
    scene.add_file(100)
    scene.add_file(50)
    faults(spark, scene, BEFORE_MANIFEST)
    with pytest.raises(PySparkException, match=BEFORE_MANIFEST):
        scene.run(scene.stream(spark), sink_faults.FORMAT)
    scene.run(scene.stream(spark))
    scene.forget_commit(1)
    scene.run(scene.stream(spark))
    scene.settled()
    audited = CliRunner().invoke(
        audit, ["--bootstrap-servers", scene.servers, "--prefix", scene.prefix, "--json"]
    )
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)["clean"] is True


def test_query_that_fails_for_good(spark: SparkSession, scene: SinkScene) -> None:
    """A row that cannot be sent fails its batch: none of it is visible, all is rolled back."""
    good = scene.add_file(100)
    scene.add_file(100)
    stream = scene.stream(spark).withColumn(
        "topic", F.when(F.col("value") != F.lit(b"row-000199"), F.lit(scene.orders))
    )
    with pytest.raises(PySparkException, match="null topic present in the data"):
        scene.run(stream, topic="")
    check_exactly_once(scene.settled(), good)
    assert scene.undecided() == set()
    assert OpKind.ROLLBACK in scene.decisions().values()


def test_replay_with_other_rows_fails_loudly(spark: SparkSession, scene: SinkScene) -> None:
    """A checkpoint that was reset under the same app.id would lose rows: the query fails."""
    numbers = scene.add_file(50)
    scene.run(scene.stream(spark))
    scene.write_file(0, [*numbers[:-1], 99])
    with pytest.raises(PySparkException, match=r"was published already.*set a new app\.id"):
        scene.run(scene.stream(spark), checkpointLocation=str(scene.directory / "reset"))
    check_exactly_once(scene.settled(), numbers)
    assert scene.undecided() == set()
    # With the option that the error names, it continues.
    scene.run(
        scene.stream(spark), checkpointLocation=str(scene.directory / "reset2"), app_id="feed-2"
    )
    assert len(scene.settled()) == 2 * len(numbers)


@pytest.mark.spark_long
def test_two_queries_under_one_app(spark: SparkSession, scene: SinkScene) -> None:
    """Each with its own checkpoint, at once: one ends with an error, the other continues."""
    numbers = [number for _ in range(4) for number in scene.add_file(60)]
    queries = [
        scene.begin(
            scene.stream(spark),
            checkpointLocation=str(scene.directory / f"checkpoint-{number}"),
            transaction_messages_max="20",
        )
        for number in range(2)
    ]
    ends = []
    for query in queries:
        with suppress(PySparkException):
            query.awaitTermination()
        ends.append(str(query.exception() or "done"))
    assert "done" in ends
    assert any("Or two queries share this app.id" in each for each in ends)
    check_exactly_once(scene.settled(), numbers)
    assert scene.undecided() == set()


def test_batch_write(spark: SparkSession, scene: SinkScene) -> None:
    """Repeated with the same batch.id it writes once; ids must grow; rows are byte-exact."""
    rows = [
        (b"k", b"v", 1, [("h", b"1"), ("h", None), ("empty", b"")]),
        (None, b"\xff\x00", 2, None),
        (b"", None, 0, []),
        (b"k2", b"", None, None),
    ]
    schema = (
        f"{SCHEMA}, partition int, headers array<struct<key: string, value: binary>>, topic string"
    )
    frame = spark.createDataFrame([(*row, scene.orders) for row in rows], schema)

    def write(frame: object, **options: str) -> None:
        given = scene.options(topic="", **options)
        del given["checkpointLocation"]
        frame.repartition(2).write.format("txn_half").mode("append").options(**given).save()

    write(frame, batch_id="7")
    write(frame, batch_id="7")
    came = scene.settled()
    internal = (TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX)
    actual = {
        (
            each.key,
            each.value,
            tuple(header for header in each.headers if header[0] not in internal),
        )
        for each in came
    }
    assert actual == {(key, value, tuple(headers or ())) for key, value, _, headers in rows}
    assert len(came) == len(rows)
    assert {each.value: each.partition for each in came if each.key != b"k2"} == {
        b"v": 1,
        b"\xff\x00": 2,
        None: 0,
    }
    for options, text in (
        ({"batch_id": "7"}, "was published already"),
        ({"batch_id": "6"}, "was never published, but batch 7 was"),
        ({}, "needs the option batch.id"),
        ({"batch_id": "8", "app_id": ""}, "needs the option app.id"),
    ):
        with pytest.raises(PySparkException, match=text):
            write(frame.limit(2), **options)
    assert len(scene.settled()) == len(rows)
    assert scene.undecided() == set()


def test_batches_without_rows(spark: SparkSession, scene: SinkScene) -> None:
    """They are batches like others: a manifest, no half message."""
    numbers = scene.add_file(10) + scene.add_file(10)
    scene.run(scene.stream(spark).where(F.col("value") >= F.lit(b"row-000010")))
    check_exactly_once(scene.settled(), numbers[10:])
    assert [each.row_count for each in scene.manifests()] == [0, 10]


@pytest.mark.spark_long
def test_rows_that_the_daemon_would_not_deliver(spark: SparkSession, scene: SinkScene) -> None:
    """Internal and absent topics, absent partitions, too large rows: refused, not sent."""
    value = F.lit(b"v").alias("value")
    for columns, text in (
        ([value, F.lit(scene.names.half).alias("topic")], "is internal"),
        ([value, F.lit(scene.real_name("nowhere")).alias("topic")], "no real topic .*nowhere"),
        ([value, F.lit(scene.orders).alias("topic"), F.lit(9).alias("partition")], "no partition"),
        (
            [F.repeat(F.lit("v"), 1_000_000).alias("value"), F.lit(scene.orders).alias("topic")],
            "larger",
        ),
    ):
        given = scene.options(topic="", batch_id="1")
        writer = spark.range(1).select(*columns).write.format("txn_half").mode("append")
        del given["checkpointLocation"]
        with pytest.raises(PySparkException, match=text):
            writer.options(**given).save()
    assert {each.kind for each in scene.manifests()} <= {ManifestKind.REJECT}
    assert scene.undecided() == set()


# --- the sink where the daemon demands signatures: on a real broker, a real daemon and executors

GROUP = f"spark-{APP}"  # the sink's own choice


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Keys of each role, and a demand for the sink's group alone."""
    demands = [{"groups": [GROUP], "from_ms": 0}]
    return write_key_file(tmp_path / "keys.toml", a_table(demands=demands))


@pytest.fixture
def demanding(
    spark: SparkSession,
    kafka_bootstrap_servers: str,
    topic_prefix: str,
    tmp_path: Path,
    key_file: Path,
) -> Iterator[SinkScene]:
    """An installation whose daemon demands signatures of the sink."""
    register(spark)
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        scene = SinkScene(kafka_bootstrap_servers, topic_prefix, tmp_path, children).make()
        scene.daemon("--key-file", str(key_file))
        yield scene


@pytest.mark.feature
def test_what_is_signed_is_delivered(
    spark: SparkSession, demanding: SinkScene, key_file: Path
) -> None:
    """Half records and decisions of executors and driver are believed: each row once."""
    numbers = demanding.add_file(100) + demanding.add_file(50)
    demanding.run(demanding.stream(spark), key_file=str(key_file))
    check_exactly_once(demanding.settled(), numbers)
    assert demanding.undecided() == set()
    rows = [each for each in demanding.read(demanding.names.half) if b"row-" in (each.value or b"")]
    assert len(rows) == len(numbers)
    assert all(SIGN in dict(each.headers or ()) for each in rows)


def test_a_snapshot_of_signed_records_is_judged_by_its_own_prefix(
    spark: SparkSession, demanding: SinkScene, key_file: Path
) -> None:
    """An audit of what an earlier one has read believes the same signatures."""
    demanding.run(demanding.stream(spark), key_file=str(key_file))
    demanding.settled()
    path = demanding.directory / "report.json"
    words = ["--bootstrap-servers", demanding.servers, "--key-file", str(key_file)]
    for more in (
        ["--prefix", demanding.names.prefix, "--report", str(path)],
        ["--snapshot", str(path)],
    ):
        done = CliRunner().invoke(audit, [*words, *more])
        assert done.exit_code == 0, done.output


def test_what_is_not_signed_is_a_dead_letter(spark: SparkSession, demanding: SinkScene) -> None:
    """A sink without the option delivers nothing, and loses nothing."""
    numbers = demanding.add_file(30)
    demanding.run(demanding.stream(spark))
    until("all are dead letters", lambda: len(_invalid(demanding)) >= len(numbers))
    assert demanding.settled() == []


def _invalid(scene: SinkScene) -> list[bytes | None]:
    """Return the values of the sink's rows among the dead letters INVALID."""
    letters = [each for each in scene.read(scene.names.dead) if DEAD in dict(each.headers or ())]
    return [
        each.value
        for each in letters
        if b"row-" in (each.value or b"")
        and DEAD_LETTER.decode(dict(each.headers or ())[DEAD] or b"").reason is DeadReason.INVALID
    ]

"""The replay job on a real broker: each row once more, in order, resumable, once under one id."""

import json
from collections import defaultdict
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from halfbridge.serde.headers import RESERVED
from halfbridge.spark_jobs.replay import REPLAY_ID, main
from tests.spark.real_topic import RealTopic
from tests.spark.sink_scene import SinkScene, check_exactly_once, value_of

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROWS = 90
CALL_S = 60.0


@pytest.fixture
def scene(spark: SparkSession, scene: SinkScene) -> SinkScene:
    """An installation with a running daemon and rows in its real topic."""
    scene.add_file(ROWS)
    scene.run(scene.stream(spark))
    scene.settled()
    return scene


def replay(scene: SinkScene, *words: str, source: str = "") -> Result:
    """Run the command."""
    where = ("--source", source) if source else ("--from-topic", scene.orders)
    arguments = [
        *("--bootstrap-servers", scene.servers, "--topic-prefix", scene.prefix),
        *("--to-topic", scene.fixes, *where, "--json", *words),
    ]
    return CliRunner().invoke(main, arguments)


def report(result: Result) -> dict[str, Any]:
    """Return what a run that went well has printed."""
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


@pytest.mark.feature
def test_offset_range_of_a_topic(spark: SparkSession, scene: SinkScene) -> None:
    """A dry run writes nothing; a run sends what the filter wants; a second one is refused.

    So is one that is resumed when the topic was created again.
    """
    checkpoint = str(scene.directory / "replay")
    where = "value >= cast('row-000030' AS binary)"
    words = ("--replay-id", "fix-1", "--where", where, "--slice-rows", "20")
    dry = report(replay(scene, *words, "--dry-run"))
    assert (dry["planned_rows"], dry["planned_slices"], dry["rows"]) == (ROWS - 30, 3, 0)
    assert scene.settled(scene.fixes) == []

    done = report(replay(scene, *words, "--checkpoint", checkpoint, "--rate", "1000"))
    assert (done["rows"], done["slices"]) == (ROWS - 30, 3)
    came = scene.settled(scene.fixes)
    check_exactly_once(came, range(30, ROWS))
    for each in came:
        assert [header for header in each.headers if header[0] not in RESERVED] == [
            (REPLAY_ID, b"fix-1")
        ]

    for again, text in (
        ((*words, "--checkpoint", checkpoint), "replay fix-1 is complete: 60 rows"),
        ((*words, "--checkpoint", f"{checkpoint}-2"), "was begun before: resume it"),
    ):
        refused = replay(scene, *again)
        assert refused.exit_code == 1
        assert text in refused.stderr
    assert len(scene.settled(scene.fixes)) == ROWS - 30
    assert scene.undecided() == set()

    # As if killed before the last slice; offsets of the plan are of other records now.
    (scene.directory / "replay" / "done" / "2").unlink()
    RealTopic(scene.servers, scene.orders).make_anew()
    refused = replay(scene, *words, "--checkpoint", checkpoint)
    assert refused.exit_code == 1
    assert f"other records now: {scene.orders} (id " in refused.stderr
    assert "give another --replay-id" in refused.stderr


@pytest.mark.spark_long
def test_table_resumed_in_the_middle(spark: SparkSession, scene: SinkScene) -> None:
    """What a stopped run had sent is not sent again, noted or not; order per key holds."""
    table = str(scene.directory / "table")
    kafka = {"kafka.bootstrap.servers": scene.servers, "subscribe": scene.orders}
    rows = spark.read.format("kafka").options(**kafka).option("includeHeaders", "true").load()
    rows.repartition(3).write.parquet(table)
    checkpoint = scene.directory / "replay"
    words = ("--replay-id", "fix-2", "--checkpoint", str(checkpoint), "--slice-rows", "30")
    report(replay(scene, *words, source=table))
    # As if killed between the second slice's publication and the note of it.
    for number in (1, 2):
        (checkpoint / "done" / str(number)).unlink()
        (checkpoint / "done" / f".{number}.crc").unlink(missing_ok=True)
    left = report(replay(scene, *words, "--dry-run", source=table))
    assert (left["planned_slices"], left["done_before"], left["slices"]) == (3, 1, 0)
    assert report(replay(scene, *words, source=table))["slices"] == 2
    came = scene.settled(scene.fixes)
    by_key = defaultdict(list)
    for each in came:
        by_key[each.key].append(each.value)
    assert sorted(value for values in by_key.values() for value in values) == [
        value_of(number) for number in range(ROWS)
    ]
    check_exactly_once(came, range(ROWS))

    other = replay(scene, *words, "--where", "offset > 3", source=table)
    assert other.exit_code == 1
    assert "belongs to another job: where was not given, now it is" in other.stderr


@pytest.mark.spark_long
def test_topics_with_markers_and_hidden_rows(spark: SparkSession, scene: SinkScene) -> None:
    """Nothing of an empty topic, of an aborted kafka_txn or of an open one; what is committed once.

    The committed row is between markers, and in front of the open kafka_txn.
    """
    words = ("--where", "topic = 'nothing'", "--checkpoint", str(scene.directory / "none"))
    assert report(replay(scene, "--replay-id", "empty", *words))["rows"] == 0

    committed, aborted, still_open = (writing(scene, slot) for slot in range(3))
    aborted.produce(scene.orders, b"aborted", partition=0)
    aborted.flush(CALL_S)
    aborted.abort_transaction(CALL_S)
    committed.produce(scene.orders, b"committed", partition=0)
    committed.commit_transaction(CALL_S)
    still_open.produce(scene.orders, b"hidden", partition=0)
    still_open.flush(CALL_S)
    where = "cast(value AS string) NOT LIKE 'row-%'"
    words = ("--where", where, "--checkpoint", str(scene.directory / "one"))
    done = report(replay(scene, "--replay-id", "markers", *words))
    still_open.abort_transaction(CALL_S)
    assert (done["planned_rows"], done["rows"]) == (1, 1)
    assert [each.value for each in scene.settled(scene.fixes)] == [b"committed"]


def writing(scene: SinkScene, slot: int) -> Producer:
    """Return a producer with a kafka_txn that is open."""
    name = f"{scene.prefix}{slot}"
    producer = Producer({"bootstrap.servers": scene.servers, "transactional.id": name})
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    return producer

"""The sink where the daemon demands signatures: on a real broker, a real daemon and executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD, SIGN
from halfbridge.serde.records import DeadReason
from halfbridge.spark_jobs.sink import register
from halfbridge.testkit.children import Children, Interrupts
from tests.kit.signing import a_table, write_key_file
from tests.spark.sink_scene import APP, SinkScene, check_exactly_once, until

GROUP = f"spark-{APP}"  # the sink's own choice

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Keys of each role, and a demand for the sink's group alone."""
    demands = [{"groups": [GROUP], "from_ms": 0}]
    return write_key_file(tmp_path / "keys.toml", a_table(demands=demands))


@pytest.fixture
def scene(
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
def test_what_is_signed_is_delivered(spark: SparkSession, scene: SinkScene, key_file: Path) -> None:
    """Half records and decisions of executors and driver are believed: each row once."""
    numbers = scene.add_file(100) + scene.add_file(50)
    scene.run(scene.stream(spark), key_file=str(key_file))
    check_exactly_once(scene.settled(), numbers)
    assert scene.undecided() == set()
    rows = [each for each in scene.read(scene.names.half) if b"row-" in (each.value or b"")]
    assert len(rows) == len(numbers)
    assert all(SIGN in dict(each.headers or ()) for each in rows)


def test_what_is_not_signed_is_a_dead_letter(spark: SparkSession, scene: SinkScene) -> None:
    """A sink without the option delivers nothing, and loses nothing."""
    numbers = scene.add_file(30)
    scene.run(scene.stream(spark))
    until("all are dead letters", lambda: len(_invalid(scene)) >= len(numbers))
    assert scene.settled() == []


def _invalid(scene: SinkScene) -> list[bytes | None]:
    """Return the values of the sink's rows among the dead letters INVALID."""
    letters = [each for each in scene.read(scene.names.dead) if DEAD in dict(each.headers or ())]
    return [
        each.value
        for each in letters
        if b"row-" in (each.value or b"")
        and DEAD_LETTER.decode(dict(each.headers or ())[DEAD] or b"").reason is DeadReason.INVALID
    ]

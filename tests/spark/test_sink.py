"""The sink on a real broker and a real daemon: every row once, in order, whatever is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.children import Children, Interrupts
from spark_jobs.sink import register
from tests.spark.sink_scene import SinkScene, check_exactly_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def scene(
    spark: SparkSession, kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> Iterator[SinkScene]:
    """An installation with a running daemon."""
    register(spark)
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        scene = SinkScene(kafka_bootstrap_servers, topic_prefix, tmp_path, children).make()
        scene.daemon()
        yield scene


def test_stream_is_published_batch_by_batch(spark: SparkSession, scene: SinkScene) -> None:
    """Every row once, in order per key; one manifest a batch; nothing undecided is left."""
    numbers = scene.add_file(spark, 300) + scene.add_file(spark, 200)
    scene.run(scene.stream(spark), transaction_messages_max="50")
    check_exactly_once(scene.settled(), numbers)
    manifests = scene.manifests()
    assert [(each.batch_id, each.row_count) for each in manifests] == [(0, 300), (1, 200)]
    assert scene.undecided() == set()

"""A declarative pipeline of Spark 4.1 writes through the sink, on its own Spark Connect server."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.sink_scene import SinkScene, check_exactly_once

pytestmark = [
    *(pytest.mark.spark, pytest.mark.broker, pytest.mark.more),
    pytest.mark.timeout(600),
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.1 has pipelines"),
]

RUN_S_MAX = 240.0  # 15 s where nothing else runs
COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
SPEC = """
name: orders
storage: file://{directory}/pipeline
libraries:
  - glob:
      include: flows/**
"""
# The part of docs/how-to/spark-out.md, with a source.
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.sink import register

spark = SparkSession.active()
register(spark)
dp.create_sink("orders_out", "txn_half", {options!r})


@dp.append_flow(target="orders_out")
def orders():
    rows = spark.readStream.schema("key binary, value binary").option("maxFilesPerTrigger", 1)
    return rows.parquet({rows!r})
"""


def run(directory: Path) -> None:
    """Run the pipeline until it has read all files."""
    done = subprocess.run(
        [COMMAND, "run", "--spec", directory / "spec.yml"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pipeline_publishes_each_row_once(scene: SinkScene, tmp_path: Path) -> None:
    """The sink knows a batch whose commit the pipeline has lost, and continues after it."""
    options = scene.options()
    del options["checkpointLocation"]  # the pipeline sets its own
    (tmp_path / "flows").mkdir()
    flows = FLOWS.format(options=options, rows=str(scene.rows))
    (tmp_path / "flows" / "orders.py").write_text(flows, "utf-8")
    (tmp_path / "spec.yml").write_text(SPEC.format(directory=tmp_path), "utf-8")

    numbers = scene.add_file(10) + scene.add_file(10)
    run(tmp_path)
    (commit,) = (tmp_path / "pipeline").glob("**/commits/1")
    scene.forget_commit(1, checkpoint=commit.parents[1])
    numbers += scene.add_file(10)
    run(tmp_path)

    check_exactly_once(scene.settled(), numbers)
    assert [each.batch_id for each in scene.manifests()] == [0, 1, 2]
    assert all(each.plan_hash for each in scene.manifests())

"""Tables of ingest from which another engine deleted rows: Spark with Delta's own source."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from halfbridge.java.locked_jars import JarsError, locked_jars
from halfbridge.spark_jobs.dedupe import dedupe
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.ingest import PARTITION_COLUMNS
from halfbridge.spark_jobs.replay import Replay, plan_replay
from halfbridge.testkit.pytest_plugin import leave_out
from tests.kit.caches import jar_settings
from tests.spark.delta_engine import DELETED, JARS, PURGED, RENAMED, ROWS, VECTORS, ingested

pytest.importorskip("deltalake")

from halfbridge.spark_jobs.tables.delta_rs import DeltaWriter  # needs it

pytestmark = [pytest.mark.spark, pytest.mark.spark_long, pytest.mark.timeout(900)]

ENGINE = Path(__file__).with_name("delta_engine.py")
ENGINE_S_MAX = 600.0
LEFT = ROWS - DELETED


@dataclass(frozen=True)
class Engine:
    """What the other engine left.

    Attributes:
        directory: Where its tables are.
        deduped: What `dedupe` came to in a session with Delta's source.
    """

    directory: Path
    deduped: dict[str, Any]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    try:
        locked_jars(JARS, jar_settings())
    except JarsError as error:
        leave_out(str(error))
    directory = tmp_path_factory.mktemp("engine")
    done = subprocess.run(
        [sys.executable, str(ENGINE), str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=ENGINE_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    return Engine(directory, json.loads(done.stdout.splitlines()[-1]))


def test_deleted_rows_stay_deleted_where_deltas_source_reads(engine: Engine) -> None:
    """`dedupe` reads what is left, and keeps one of each two deliveries."""
    assert engine.deduped["rows_read"] == LEFT
    assert engine.deduped["rows_kept"] == LEFT // 2


@pytest.mark.parametrize(
    ("name", "what"), [(VECTORS, "deletion vectors"), (RENAMED, "mapped to other names")]
)
def test_elsewhere_such_tables_are_refused(
    spark: SparkSession, engine: Engine, tmp_path: Path, name: str, what: str
) -> None:
    """`dedupe` and `replay` say why, and write nothing."""
    table = str(engine.directory / name)
    with pytest.raises(JobError, match=what):
        dedupe(spark, table, str(tmp_path / "silver"), "delta")
    assert not (tmp_path / "silver").exists()
    job = Replay(replay_id="r", bootstrap_servers="localhost:1", to_topic="fixes", table=table)
    with pytest.raises(JobError, match=what):
        plan_replay(spark, job)


def test_a_table_with_other_names_takes_no_rows(spark: SparkSession, engine: Engine) -> None:
    """Files and partition values would have names that the table does not know."""
    table = engine.directory / RENAMED
    log = sorted((table / "_delta_log").glob("*.json"))
    writer = DeltaWriter(spark, str(table), PARTITION_COLUMNS)
    with pytest.raises(JobError, match="column mapping"):
        writer.append(ingested(spark), app_id="ingest", version=0)
    assert sorted((table / "_delta_log").glob("*.json")) == log


def test_a_purged_table_is_read(spark: SparkSession, engine: Engine, tmp_path: Path) -> None:
    """Its vectors were applied to the files: these say all there is."""
    table = str(engine.directory / PURGED)
    done = dedupe(spark, table, str(tmp_path / "silver"), "delta")
    assert (done.rows_read, done.rows_kept) == (LEFT, LEFT // 2)

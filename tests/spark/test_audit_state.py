"""An audit step by step, with a state, finds what an audit of the whole finds."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.audit.carried import ADDED, REPLACED, Carried
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.audit.state import LEFT_MS, State
from halfbridge.spark_jobs.errors import JobError
from tests.spark.audit_steps import IDENTITY, STEPS, Log, audit_step, audit_whole, written
from tests.spark.marks import INTERPRETED
from tests.spark.tape import Tape

pytestmark = [*INTERPRETED, pytest.mark.more]

FIRST, COUNT = map(int, os.environ.get("HALFBRIDGE_AUDIT_STATE_SEEDS", "1 20").split())
MANIFEST = "manifest.json"
Result = Mapping[str, Any]


@pytest.fixture(scope="module")
def log() -> Log:
    return written(range(FIRST, FIRST + COUNT))


@pytest.fixture(scope="module")
def whole(spark: SparkSession, interpreted: None, log: Log) -> Result:
    return audit_whole(spark, log)


@pytest.fixture(scope="module")
def state(
    spark: SparkSession, interpreted: None, log: Log, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the state before the last step."""
    path = tmp_path_factory.mktemp("states") / "state"
    for step in range(STEPS - 1):
        audit_step(spark, log, path, step)
    return path


def test_steps_find_what_the_whole_finds(
    spark: SparkSession, log: Log, whole: Result, state: Path, tmp_path: Path
) -> None:
    """All counts and findings are equal, however the logs were cut; also after a kill.

    A run that is killed just before it replaces the manifest leaves the files of a whole run, and
    the manifest of the run before.
    """
    path = tmp_path / "state"
    shutil.copytree(state, path)
    assert len(whole["kinds"]) >= 7, "the lives are too orderly to show anything"
    assert audit_step(spark, log, path, STEPS - 1) == whole
    kill(state, path)
    assert audit_step(spark, log, path, STEPS - 1) == whole
    assert {len(list((path / name).iterdir())) for name in ADDED} == {STEPS + 1}
    assert {len(list((path / name).iterdir())) for name in REPLACED} == {3}
    for name in (*ADDED, *REPLACED):
        newest = max((path / name).iterdir())
        newest.rename(newest.with_name(f"generation={generation_of(newest) - LEFT_MS - 1}"))
    kill(state, path)
    assert audit_step(spark, log, path, STEPS - 1) == whole
    assert {len(list((path / name).iterdir())) for name in ADDED} == {STEPS + 1}


def kill(state: Path, path: Path) -> None:
    """Have `path` be as a run leaves it that was killed before it replaced the manifest."""
    for name in (MANIFEST, f".{MANIFEST}.crc"):  # Hadoop's checksum of it
        shutil.copy(state / name, path / name)


def generation_of(directory: Path) -> int:
    return int(directory.name.removeprefix("generation="))


def forget(name: str) -> Callable[[Carried], Carried]:
    """Return what takes the rows of one table away."""

    def change(carried: Carried) -> Carried:
        empty = {name: getattr(carried, name).limit(0)}
        return replace(carried, **empty)

    return change


@pytest.mark.spark_long
@pytest.mark.parametrize("name", [*ADDED, *REPLACED])
def test_the_comparison_finds_a_state_that_forgets(
    spark: SparkSession, log: Log, whole: Result, state: Path, name: str
) -> None:
    """Without any one of its tables the result differs."""
    found = audit_step(spark, log, state, STEPS - 1, change=forget(name), is_written=False)
    assert found != whole


def test_a_state_of_another_audit_is_refused(spark: SparkSession, state: Path) -> None:
    """The line says what differs, and what to do."""
    with pytest.raises(JobError, match=r"the state .*: prefix was .*it is \"eu\.\".*a new --state"):
        State(spark, str(state), {**IDENTITY, "prefix": "eu."})


def test_a_state_without_some_of_its_files_is_refused(
    spark: SparkSession, state: Path, tmp_path: Path
) -> None:
    """The line names the table; a result without these rows would be wrong."""
    path = tmp_path / "state"
    shutil.copytree(state, path)
    shutil.rmtree(min((path / "facts").iterdir()))
    with pytest.raises(JobError, match=r"facts lacks generations .*begin with a new --state"):
        State(spark, str(path), IDENTITY).carried()


def test_a_damaged_manifest_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is guessed."""
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(JobError, match=r"is damaged: .*begin with a new --state"):
        State(spark, str(tmp_path), IDENTITY)


def test_of_two_runs_at_a_time_one_fails(spark: SparkSession, tmp_path: Path) -> None:
    """The manifest never names rows of two runs; the state of the other one stays whole."""
    first, second = (State(spark, str(tmp_path), IDENTITY) for _ in range(2))
    tape = Tape()
    with audited(tape.facts(spark), tape.bounds()) as audit:
        second.write(audit)
        with pytest.raises(JobError, match="run one at a time"):
            first.write(audit)
    assert len(json.loads((tmp_path / MANIFEST).read_text())["generations"]) == 1
    assert State(spark, str(tmp_path), IDENTITY).carried()

"""The command `audit`: what is wrong on its line is said before a JVM is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit import main
from halfbridge.spark_jobs.reading.offsets import Snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """A file with a snapshot of nothing."""
    names = TopicNames()
    made = Snapshot("", 0, {names.half: {}, names.op: {}}, ())
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(made.as_json()))
    return str(path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--topic", TopicNames().half), "which is read anyway"),
        (("--topic", "__consumer_offsets"), "which is read anyway"),
        (("--report", "no/such/directory/report.json"), "no directory no/such/directory"),
        (("--kafka-opt", "isolation.level=read_uncommitted"), "isolation.level cannot be set"),
        (("--snapshot", "SNAPSHOT", "--topic", "orders"), "--topic says what to read, and so does"),
        (("--snapshot", "SNAPSHOT", "--prefix", "p-"), "--prefix says what to read, and so does"),
        (("--snapshot", "SNAPSHOT", "--settle", "0"), "--settle says what to read, and so does"),
        (("--snapshot", "SNAPSHOT", "--no-others"), "--no-others says what to read, and so does"),
        (("--other-prefix", "eu.", "--no-others"), "--no-others says there are none"),
    ],
)
def test_wrong_usage_is_one_line(words: tuple[str, ...], text: str, snapshot: str) -> None:
    """It says what is wrong; no broker is asked, none is there."""
    given = [snapshot if each == "SNAPSHOT" else each for each in words]
    refused = CliRunner().invoke(main, ["--bootstrap-servers", "localhost:1", *given])
    assert refused.exit_code == 1, refused.output
    (line,) = refused.stderr.splitlines()
    assert text in line

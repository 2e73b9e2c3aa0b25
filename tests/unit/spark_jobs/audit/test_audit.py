"""The command `audit`: errors of its command line are reported before a JVM is started."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.command import main
from halfbridge.spark_jobs.audit.run import Audit, make_report, text_lines
from halfbridge.spark_jobs.reading.offsets import NOTHING_LEFT_MS, Range, Snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
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
        (("--snapshot", "SNAPSHOT", "--state", "s"), "--state says what to read, and so does"),
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


# --- what the report says of what cannot be judged -----------------------------------------

NAMES = TopicNames()
NOON_MS = 1_700_000_000_000


def report(topics: dict[str, dict[int, Range]]) -> dict[str, Any]:
    """Return the report of an audit that found nothing in these topics."""
    snapshot = Snapshot(prefix="", taken_ms=NOON_MS, topics=topics, real_topics=("orders",))
    audit = Audit(
        records={},
        states={},
        examined=0,
        of_others=0,
        bounds=Bounds(snapshot),
        kinds={},
        findings=None,
        judged=None,
    )
    return make_report(audit, [], seconds=1.0)


def test_deleted_records_are_reported_topic_by_topic() -> None:
    """An audit that can find nothing lost must not look like one that found nothing."""
    whole = {0: Range(0, 10)}
    made = report(
        {
            NAMES.half: whole,
            NAMES.op: {0: Range(0, 10), 1: Range(4, 10, NOON_MS)},
            NAMES.dead: {0: Range(3, 3, NOTHING_LEFT_MS)},
            "orders": {0: Range(2, 9, NOON_MS), 1: Range(5, 9, NOON_MS + 1000)},
        }
    )
    assert made["clean"]
    assert made["deleted_until_ms"] == {
        NAMES.op: NOON_MS,
        NAMES.dead: None,
        "orders": NOON_MS + 1000,
    }
    said = "\n".join(text_lines(made))
    assert f"a partition of {NAMES.dead} was emptied: nothing is called lost" in said
    assert "records of orders up to 2023-11-14T22:13:21+00:00 were deleted: nothing of it" in said


def test_whole_logs_are_not_reported() -> None:
    """Then nothing is hidden from it."""
    made = report({NAMES.half: {0: Range(0, 10)}, "orders": {0: Range(0, 0)}})
    assert made["deleted_until_ms"] == {}
    assert "deleted" not in "\n".join(text_lines(made))

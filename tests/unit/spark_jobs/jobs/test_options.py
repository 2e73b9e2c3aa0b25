"""What all jobs' commands share: triggers, exit statuses, errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkValueError

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.jobs.options import (
    EXIT_FINDINGS,
    JobCommand,
    Trigger,
    trigger_option,
    write_report,
)
from halfbridge.spark_jobs.session.locked_jars import JarsError


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("available-now", {"availableNow": True}),
        ("10s", {"processingTime": "10 seconds"}),
        ("5m", {"processingTime": "5 minutes"}),
        ("200ms", {"processingTime": "200 milliseconds"}),
        ("1h", {"processingTime": "1 hours"}),
    ],
)
def test_triggers(text: str, arguments: dict[str, Any]) -> None:
    """Once, or at an interval, as Spark's writer takes them."""
    found: list[Trigger] = []

    @click.command(cls=JobCommand)
    @trigger_option
    def job(*, trigger: Trigger) -> None:
        found.append(trigger)

    assert CliRunner().invoke(job, ["--trigger", text]).exit_code == 0
    assert found[0].arguments() == arguments
    assert found[0].ends is (text == "available-now")


@pytest.mark.parametrize("text", ["", "once", "0s", "10", "-5s", "1d", "1.5s"])
def test_triggers_that_are_none(text: str) -> None:
    """Anything else is wrong usage."""

    @click.command(cls=JobCommand)
    @trigger_option
    def job(*, trigger: Trigger) -> None:
        pytest.fail(f"ran with {trigger}")

    result = CliRunner().invoke(job, ["--trigger", text])
    assert result.exit_code == 1
    assert "available-now" in result.stderr


@pytest.mark.parametrize("as_part_of_a_group", [False, True])
def test_findings_have_an_exit_status_of_their_own(as_part_of_a_group: bool) -> None:
    """A returned number is the status, in a process of its own and below `halfbridge spark`."""

    @click.command(cls=JobCommand)
    def job() -> int:
        return EXIT_FINDINGS

    if as_part_of_a_group:
        group = click.Group("group", commands={"job": job})
        assert group.main(["job"], standalone_mode=False) == EXIT_FINDINGS
    else:
        assert CliRunner().invoke(job, []).exit_code == EXIT_FINDINGS


@pytest.mark.parametrize(
    "error",
    [
        JobError("what\nhappened"),
        JarsError("what happened"),
        OSError("what happened"),
        click.UsageError("what happened"),
        PySparkValueError("what happened\nand its stack"),
    ],
)
def test_errors_are_one_line_and_status_1(error: Exception) -> None:
    """Whatever the user can act upon is told in one line, without a traceback."""

    @click.command(cls=JobCommand)
    def job() -> None:
        raise error

    result = CliRunner().invoke(job, [])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "what happened" in line


def test_a_defect_keeps_its_traceback() -> None:
    """What nobody foresaw is not dressed up as the user's mistake."""

    @click.command(cls=JobCommand)
    def job() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(job, []).exception, ZeroDivisionError)


def test_report_is_written_whole(tmp_path: Path) -> None:
    """The file holds the object and nothing is left beside it; no path, no file."""
    write_report(None, {"a": 1})
    assert list(tmp_path.iterdir()) == []
    write_report(tmp_path / "report.json", {"a": 1})
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]

"""The text that a user sees for an error of the JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkValueError

from halfbridge.java.locked_jars import JarsError
from halfbridge.spark_jobs.errors import JobError, cause_of
from halfbridge.spark_jobs.jobs.options import (
    EXIT_FINDINGS,
    JobCommand,
    Trigger,
    trigger_option,
    write_report,
)
from halfbridge.spark_jobs.jobs.progress import OBSERVED, Totals
from halfbridge.spark_jobs.tables.checkpoints import TopicsChangedError, refuse_changed

_SIMPLE = "no column\n of that name"
_SIMPLE_SHOWN = "ExtendedAnalysisException: no column of that name"
_FRAMES = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    k[1]\n    ~^^^\n'


@dataclass
class _Java:
    """As Py4J shows a Java exception."""

    name: str
    message: str | None = None
    cause: _Java | None = None

    def getCause(self) -> _Java | None:  # noqa: N802 (Java's)
        return self.cause

    def getMessage(self) -> str | None:  # noqa: N802 (Java's)
        return self.message

    def getSimpleMessage(self) -> str:  # noqa: N802 (Java's)
        return _SIMPLE

    def getClass(self) -> _Java:  # noqa: N802 (Java's)
        return self

    def getSimpleName(self) -> str:  # noqa: N802 (Java's)
        return self.name


class _RaisedError(Exception):
    """As Py4J raises it."""

    def __init__(self, java: _Java) -> None:
        super().__init__("an error occurred while calling o42.get")
        self.java_exception = java


@pytest.mark.parametrize(
    ("java", "shown"),
    [
        (
            _Java("SparkException", "job aborted", _Java("AuthException", "\n denied \n for x")),
            "AuthException: denied for x",
        ),
        (_Java("TimeoutException"), "TimeoutException"),
        (_Java("ExtendedAnalysisException", "no column\n'Filter\n+- Range"), _SIMPLE_SHOWN),
    ],
    ids=["the innermost, in one line", "one without a message", "one with a plan"],
)
def test_the_innermost_cause_is_shown_whole(java: _Java, shown: str) -> None:
    """Spark wraps Kafka's errors in several of its own; a query plan is no part of the cause."""
    assert cause_of(_RaisedError(java)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("first\nsecond", "first second"),
        (f"{_FRAMES}KeyError: 'k'", "KeyError: 'k'"),
        (f"failed\n{_FRAMES}Old: x\n\nagain\n\n{_FRAMES}New: a\n  b\nc", "New: a b c"),
        ("Traceback (most recent call last):\n", ""),
        ("", "ValueError"),
    ],
    ids=["several lines", "a traceback", "a chain of tracebacks", "frames only", "no text"],
)
def test_the_text_of_an_error_of_python_is_shown_whole(text: str, shown: str) -> None:
    """Of a traceback all that follows the last frame; an error without a text has its name."""
    assert cause_of(ValueError(text)) == (shown or "ValueError")


# --- what all jobs' commands share: triggers, exit statuses, errors of one line ------------


class Writer:
    """Spark's writer, which returns what it was given."""

    def trigger(self, **given: object) -> dict[str, object]:
        return given


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
    assert found[0].set_in(Writer()) == arguments


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
    """An error that the user can act upon is one line, without a traceback."""

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


# --- totals of a run, from the reports that Spark gives of its batches ---------------------


def report(batch: int, rows: int | None, **more: Any) -> dict[str, Any]:
    """Return a report as Spark's JSON has it; rows None: a batch that the sink had already."""
    observed = {} if rows is None else {OBSERVED: {"rows": rows, "quarantined": 1}}
    return {
        "batchId": batch,
        "timestamp": "2026-11-21T00:00:00.000Z",
        "durationMs": {"addBatch": 5, "triggerExecution": 9},
        "observedMetrics": observed,
        "sources": [
            {
                "endOffset": {"orders": {"0": 5, "1": 5}},
                "latestOffset": {"orders": {"0": 8, "1": 4, "2": 2}},
            }
        ],
        **more,
    }


def test_each_batch_counts_once() -> None:
    """Spark gives the newest reports again and again."""
    totals = Totals()
    assert [totals.add(each) for each in (report(0, 3), report(0, 3), report(1, 4))] == [
        True,
        False,
        True,
    ]
    assert (totals.batches, totals.rows, totals.quarantined) == (2, 7, 2)


def test_offsets_left_are_those_of_the_newest_batch() -> None:
    """A partition that is new counts from its start; one cannot be ahead of its end."""
    totals = Totals()
    totals.add(report(0, 3))
    assert totals.offsets_behind == 3 + 2


def test_a_batch_that_the_sink_had_has_no_rows() -> None:
    """It was run again after a crash; its rows were counted by the run that wrote them."""
    totals = Totals()
    assert totals.add(report(4, None))
    assert (totals.batches, totals.rows) == (1, 0)


def test_a_trigger_without_rows_is_no_batch() -> None:
    """Such reports bear the number of the batch to come."""
    totals = Totals()
    assert not totals.add(report(0, None, durationMs={"triggerExecution": 1}))
    assert totals.add(report(0, 3))
    source = {"endOffset": None, "latestOffset": None}
    assert totals.add(report(1, 1, sources=[source]))
    assert totals.offsets_behind == 0


def test_rows_that_another_run_added_are_not_counted() -> None:
    """The batch was done; its rows are in the other run's report."""
    not_added: set[int] = set()
    totals = Totals(not_added=not_added)
    totals.add(report(0, 3))
    not_added.add(1)
    assert totals.add(report(1, 4))
    assert (totals.batches, totals.rows, totals.quarantined) == (2, 3, 1)


# --- offsets that were kept outside Kafka, of topics that have changed since ---------------

KEPT = {"orders": "A", "invoices": "B", "reports": ""}


@pytest.mark.parametrize(
    ("present", "named"),
    [
        ({**KEPT, "other": "C"}, None),
        ({**KEPT, "reports": "C"}, None),
        ({**KEPT, "orders": ""}, None),
        ({**KEPT, "orders": "C"}, "created again, .* now: orders .id A, now C.. Begin anew"),
        ({"orders": "A", "reports": ""}, "may not DESCRIBE any more: invoices. Begin anew"),
        ({"orders": "C", "invoices": "D"}, "invoices .*, orders .*; and .* reports. Begin anew"),
    ],
    ids=["the same", "no id kept", "no id now", "made anew", "gone", "all at once"],
)
def test_topics_that_changed_are_named(present: dict[str, str], named: str | None) -> None:
    """All of them, with the way on; where an id is not known nothing is guessed."""
    remedy = "Begin anew."
    if named is None:
        refuse_changed("it", KEPT, present, remedy=remedy)
        return
    with pytest.raises(TopicsChangedError, match=named):
        refuse_changed("it", KEPT, present, remedy=remedy)

"""Totals of a run, from the reports that Spark gives of its batches."""

from __future__ import annotations

from typing import Any

from halfbridge.spark_jobs.jobs.progress import OBSERVED, Totals


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


def test_a_look_that_found_nothing_is_no_batch() -> None:
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

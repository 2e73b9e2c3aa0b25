"""What the suites measure, as data."""

from dataclasses import replace

import pytest

from benchmarks.rows import Kind, chosen, scale_rows, suite_rows
from tests.unit.bench.test_bench import CONFIG


def test_the_suite_has_the_promised_rows() -> None:
    """The densest load first, since it warms the broker up; checks and idle last."""
    rows = {row.name: row for row in suite_rows(500)}

    assert list(rows) == [
        *("pipelined", "threads-32", "threads-1", "rate-2000", "rate-200", "undecided", "idle"),
    ]
    assert rows["undecided"].config(CONFIG).messages == 500
    assert rows["rate-200"].config(CONFIG).rate == 200
    assert rows["threads-32"].config(CONFIG).threads == 32
    assert rows["pipelined"].config(CONFIG).is_pipelined


def test_the_scale_is_a_grid_a_slow_row_and_a_restart() -> None:
    """Each number of workers with each number of pairs; the rows have names of their own."""
    rows = scale_rows(1_000)
    grid = {(r.changes["partitions"], r.changes["workers"]) for r in rows if "workers" in r.changes}

    assert grid == {(pairs, workers) for pairs in (4, 16, 64) for workers in (1, 2, 4)}
    assert len({row.name for row in rows}) == len(rows)
    assert rows[-1].kind is Kind.REBUILD
    assert rows[-2].config(CONFIG).rate == rows[-2].config(CONFIG).partitions == 64


def test_rows_keep_what_the_suite_has_in_common() -> None:
    """A row changes what it is about, and lingers only where nobody waits."""
    shared = replace(CONFIG, linger_ms=None, bootstrap_servers="here:1")
    rows = {row.name: row.config(shared) for row in suite_rows()}

    assert {each.bootstrap_servers for each in rows.values()} == {"here:1"}
    assert rows["pipelined"].linger_ms == 5.0
    assert rows["rate-200"].linger_ms is None


def test_rows_are_chosen_by_name() -> None:
    """In their own order; a name that is not known is refused with those that are."""
    rows = suite_rows()
    assert [row.name for row in chosen(rows, ("idle", "rate-200"))] == ["rate-200", "idle"]
    assert chosen(rows, ()) == rows
    with pytest.raises(ValueError, match="no row nothing; known: pipelined"):
        chosen(rows, ("nothing",))

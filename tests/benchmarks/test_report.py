"""The tables of figures."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.idle_requests import Sent, per_second
from benchmarks.machine import load, now, this_machine
from benchmarks.report import report
from benchmarks.rivals import rocketmq
from benchmarks.rivals.comparison import comparison
from benchmarks.rivals.picture import draw, picture
from benchmarks.rivals.workload import Outcome, median_of, rows
from benchmarks.rows import Kind, chosen, scale_rows, shared_config, suite_rows
from benchmarks.sizing import size_for, sizing, sizing_lines
from halfbridge.java.locked_jars import read_lock
from tests.benchmarks.figures import suite_json
from tests.unit.bench.test_bench import CONFIG


def test_a_suite_is_a_table_with_its_origin() -> None:
    """Each row has a line; the last lines say machine, date, load and command."""
    lines = report(suite_json("rate-200", "threads-32", "pipelined")).splitlines()
    figures = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines if line)

    assert figures["rate-200"] == (
        "p50 1.0, p99 2.0 ms; plain p50 0.5, p99 1.5 ms; ratio of p50 2.0;"
        " client 100, worker 200, broker 50 us a transaction"
    )
    assert figures["threads-32"].startswith("25,000/s; visible after p50 1.0, p99 2.0 ms;")
    assert figures["pipelined"].startswith("25,000/s; plain 100,000/s: ratio 0.250;")
    assert figures["worker's peak memory"] == "60 MiB"
    assert figures["first check"] == "6.25 s"
    assert figures["10,000 undecided"] == (
        "all delivered 4.90 s after the last fell due; 2,000 checks/s"
    )
    assert figures["idle worker"] == "0.5 % of a core"
    assert any(line.endswith("29.0 s of processor time, 1200 MiB at most") for line in lines)
    assert figures["lost, duplicates"] == "0, 1"
    assert lines[-3].endswith("2 cores of a <processor>, 24 GiB, Linux 6, Python 3.11")
    assert lines[-2].endswith("2026-11-24 06:00 UTC, load averages 0.5/1/1 then 2/1/1")
    assert lines[-1].endswith("python -m benchmarks.suite")


def test_a_busy_machine_is_named() -> None:
    """Figures from a machine that others used are marked, so that nobody compares them."""
    found = suite_json("rate-200")
    assert "NOT QUIET" not in report(found)
    found["load_before"] = [1.5, 1.0, 1.0]
    assert "NOT QUIET" in report(found)


# --- the table of a comparison, and the lock file of the rival's jars ----------------------


def outcome(per_s: float, p50: float, *, lost: int = 0, cpu: float | None = 50.0) -> Outcome:
    """Return figures that differ in what a test is about."""
    return Outcome(
        transactions_per_s=per_s, p50=p50, p99=2 * p50, lost=lost, duplicates=0, cpu_us_per_tx=cpu
    )


def test_figures_and_ratios_stand_in_one_table() -> None:
    """The first system is set against each other one; what a system lacks is a dash."""
    lines = list(
        comparison(
            {
                "ours": {"rate-200": outcome(200, 4.5), "pipelined": outcome(40_000, 90.0)},
                "theirs": {"rate-200": outcome(200, 1.5, lost=2), "pipelined": None},
            }
        )
    )

    cells = {name: figures for name, *figures in (re.split(r"\s{2,}", each) for each in lines)}
    assert cells[""] == ["ours", "theirs", "ours / theirs"]
    assert cells["200/s: p50 ms"] == ["4.5", "1.5", "3.00"]
    assert cells["200/s: p99 ms"] == ["9.0", "3.0", "3.00"]
    assert cells["pipelined: transactions/s"] == ["40,000", "-", "-"]
    assert cells["lost"] == ["0", "2", "-"]
    assert not any(name.startswith("32 blocking") for name in cells)


def test_a_system_that_falls_behind_a_rate_has_no_latency() -> None:
    """The figure would only say how long the load lasted."""
    lines = comparison(
        {"ours": {"rate-2000": outcome(1_899, 9_000)}, "theirs": {"rate-2000": outcome(1_901, 4.0)}}
    )
    cells = {name: figures for name, *figures in (re.split(r"\s{2,}", each) for each in lines)}
    assert cells["2,000/s: p50 ms"] == ["-", "4.0", "-"]


def test_a_picture_has_a_bar_for_each_figure(tmp_path: Path) -> None:
    """None where a system lacks the workload or the figure."""
    found = {
        "ours": {"rate-200": outcome(200, 4.5), "threads-32": outcome(6_000, 40.0)},
        "theirs": {"rate-200": outcome(200, 1.5), "threads-32": outcome(8_000, 8.0, cpu=None)},
    }
    panels = {
        axes.get_title(): [bar.get_width() for bar in axes.containers[0]]
        for axes in picture(found).axes
    }
    assert panels == {
        "200/s: p50 until visible, ms": [4.5, 1.5],
        "2,000/s: p50 until visible, ms": [],
        "32 blocking threads: transactions/s": [6_000, 8_000],
        "the same: processor time a transaction, us": [50.0],
    }
    draw(found, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_the_median_of_rounds_and_the_sum_of_losses() -> None:
    """One slow round does not move a figure; one lost message is never hidden."""
    found = median_of([outcome(100, 1.0), outcome(300, 9.0, lost=1), outcome(200, 2.0, cpu=None)])
    assert (found.transactions_per_s, found.p50, found.lost) == (200, 2.0, 1)
    assert found.cpu_us_per_tx == 50.0
    assert median_of([outcome(1, 1, cpu=None)]).cpu_us_per_tx is None


def test_all_have_the_same_workloads() -> None:
    """Those of the suite, without baselines, which only one of them has."""
    configs = [row.config(shared_config(warmup_s=1)) for row in rows()]
    assert rows()[0].name == "pipelined"
    assert {(each.size_bytes, each.partitions) for each in configs} == {(1024, 4)}
    assert not any(each.has_plain_rate or each.has_plain_latency for each in configs)


def test_the_lock_file_names_a_broker_and_its_client() -> None:
    """Jars by coordinates and checksums, as the embedded Kafka's."""
    jars = read_lock(Path(rocketmq.__file__).parent / f"rocketmq-{rocketmq.VERSION}.lock")
    names = {each.coordinate for each in jars}
    version = rocketmq.VERSION
    wanted = {
        f"org.apache.rocketmq:rocketmq-{n}:{version}" for n in ("namesrv", "broker", "client")
    }
    assert wanted <= names
    assert len(names) == len(jars)


# --- how the machine is described -----------------------------------------------------------


def test_machine_and_time() -> None:
    """Every figure is printed with what it depends on."""
    machine = this_machine()

    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["cpu"]
    assert list(machine) == ["cpu", "cores", "memory_gib", "system", "python"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", now())
    assert len(load()) == 3


# --- what the suites measure, as data ------------------------------------------------------


def test_the_suite_has_the_promised_rows() -> None:
    """The densest load first, since it warms the broker up; checks and idle last."""
    rows = {row.name: row for row in suite_rows(500)}

    assert list(rows) == [
        *("pipelined", "threads-32", "threads-1", "rate-2000", "rate-200", "undecided", "idle")
    ]
    assert rows["undecided"].config(CONFIG).messages == 500
    assert rows["rate-200"].config(CONFIG).rate == 200
    assert rows["threads-32"].config(CONFIG).threads == 32
    assert rows["pipelined"].config(CONFIG).is_pipelined


def test_the_scale_is_a_grid_a_slow_row_and_a_restart() -> None:
    """Each number of workers with each number of pairs; the rows have names of their own."""
    rows = scale_rows(1_000)
    grid = {(r.changes["pairs"], r.changes["workers"]) for r in rows if "workers" in r.changes}

    assert grid == {(pairs, workers) for pairs in (4, 16, 64) for workers in (1, 2, 4)}
    assert len({row.name for row in rows}) == len(rows)
    assert rows[-1].kind is Kind.REBUILD
    assert rows[-2].config(CONFIG).rate == rows[-2].config(CONFIG).pairs == 64


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


# --- from processor time to machines -------------------------------------------------------


def _row(client: float, worker: float, broker: float | None) -> dict[str, Any]:
    return {"cpu_us_per_tx": {"client": client, "worker": worker, "broker": broker}}


def test_a_rate_times_the_time_of_one_is_how_many_are_busy() -> None:
    """100,000/s at 30 us are 3 processors busy, so 5 at 60 %; four pairs each, rounded up to 32."""
    size = size_for(100_000, client_us=24, worker_us=30, broker_us=20)

    assert (size.workers, size.client_cores, size.broker_cores) == (5, 4, 10)
    assert size.pairs == 32
    assert size.written_mb_per_s == 720
    assert size.brokers == 3


def test_requests_are_counted_from_a_time_on() -> None:
    """What a start sent does not count, and a client that ended before has no rate."""
    counts = (Counter(Fetch=90, Metadata=7), Counter(Fetch=100, Metadata=7), Counter(Fetch=150))
    reports = [Sent(10_000_000 * n, each) for n, each in enumerate(counts)]

    assert per_second(reports, 5_000_000) == {"Fetch": 5.0}
    assert per_second(reports, 15_000_000) is None


def test_small_rates_have_what_survives_a_death() -> None:
    """Two workers and three brokers at least, with pairs to divide."""
    size = size_for(100, client_us=24, worker_us=30, broker_us=20)
    assert (size.workers, size.brokers, size.pairs) == (2, 3, 8)


def test_large_rates_are_bound_by_what_is_written() -> None:
    """A million a second writes 7,200 MB/s with replicas: 12 brokers, whatever their processors."""
    assert size_for(1_000_000, client_us=1, worker_us=1, broker_us=1).brokers == 12


def test_the_dearest_cell_counts() -> None:
    """Growth is against the first cell; a grid without the broker's time sizes nothing."""
    rows = {
        "pairs-4-workers-1": _row(20, 30, 50),
        "pairs-64-workers-4": _row(22, 33, 55),
        "pairs-64-slow": _row(999, 999, 999),
    }
    found = sizing(rows)

    assert found is not None
    assert found["cpu_us_per_tx"] == {"client": 22, "worker": 33, "broker": 55}
    assert found["growth_percent"] == 10.0
    assert [each["rate"] for each in found["sizes"]] == [10_000, 100_000, 1_000_000]
    assert len(list(sizing_lines(found))) == 4
    assert sizing({"pairs-4-workers-1": _row(20, 30, None)}) is None
    assert sizing({"rebuild": {}}) is None

"""The table of a comparison, and the lock file of the rival's jars."""

import re
from pathlib import Path

from benchmarks.rivals import rocketmq
from benchmarks.rivals.comparison import comparison
from benchmarks.rivals.workload import Outcome, median_of, rows
from benchmarks.rows import shared_config
from halfbridge.spark_jobs.session.locked_jars import read_lock


def outcome(per_s: float, p50: float, *, lost: int = 0, cpu: float | None = 50.0) -> Outcome:
    """Return figures that differ in what a test is about."""
    return Outcome(
        transactions_per_s=per_s,
        p50=p50,
        p99=2 * p50,
        lost=lost,
        duplicates=0,
        cpu_us_per_tx=cpu,
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

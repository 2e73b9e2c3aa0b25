"""A value carries its time and number; when messages are due does not depend on their sending."""

import itertools
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfbridge.bench.load import (
    BenchConfig,
    Turns,
    lead_in,
    make_keys,
    make_packer,
    scheduled,
    unpack_head,
)
from halfbridge.bench.procfs import listening_pid, usage_of
from halfbridge.bench.result import (
    PERCENTS,
    BenchResult,
    Latency,
    Usage,
    latency_of,
    per_second,
    percentile,
    run_report,
)
from halfbridge.bench.roles import ArrivalCounter


@pytest.mark.parametrize("size", [16, 1024])
def test_round_trip(size: int) -> None:
    """Time and number come back, negative numbers too; the value has its size."""
    value = make_packer(size)(2**62, -7)

    assert unpack_head(value) == (2**62, -7)
    assert len(value) == size


def test_too_small() -> None:
    """A value without room for time and number is refused."""
    with pytest.raises(ValueError, match="at least 16"):
        make_packer(15)


def test_keys() -> None:
    """There are as many keys as asked for, or one null key."""
    assert make_keys(0) == [None]
    assert len(set(make_keys(10))) == 10


def test_due_times_are_a_ladder_that_nobody_waits_at() -> None:
    """Equal steps, none handed out before its time, and a slow taker gets the late ones at once."""
    taken = []
    for number, due_ns in scheduled(iter(range(20)), 1_000):
        taken.append((number, due_ns, time.monotonic_ns()))
        if number == 5:
            time.sleep(0.01)  # the fault itself: whoever sends is slow
    steps = {after[1] - before[1] for before, after in itertools.pairwise(taken)}

    assert [each[0] for each in taken] == list(range(20))
    assert steps == {1_000_000}
    assert all(due_ns <= now_ns for _, due_ns, now_ns in taken)
    assert taken[6][2] - taken[6][1] >= 5_000_000


def test_lead_in() -> None:
    """Two seconds of messages go in front; without a rate there are none."""
    assert (lead_in(200), lead_in(0)) == (400, 0)


def test_turns_give_each_item_once() -> None:
    """Many threads share a schedule, and then each gets None."""
    turns = Turns(iter([(number, number) for number in range(1_000)]))

    def take() -> list[int]:
        return [turn[0] for turn in iter(turns, None)]

    with ThreadPoolExecutor(4) as pool:
        taken = [each.result() for each in [pool.submit(take) for _ in range(4)]]

    assert sorted(itertools.chain.from_iterable(taken)) == list(range(1_000))


# --- usage is read from /proc, descendants included ----------------------------------------

PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
_ALLOCATE = "x = bytearray(80 << 20); print('up', flush=True); input()"


@pytest.mark.process
@PROC
def test_own_usage_includes_children() -> None:
    """A child's memory counts when it is the greatest, and its processor time adds up."""
    with subprocess.Popen(
        [sys.executable, "-c", _ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = usage_of(os.getpid())
        alone = usage_of(child.pid)
        child.communicate(b"\n")

    assert alone.rss_mb_max > 80
    assert used.rss_mb_max >= alone.rss_mb_max
    assert used.cpu_s > 0


@pytest.mark.process
@PROC
def test_process_that_is_gone() -> None:
    """A process that is gone used nothing that is known."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert usage_of(child.pid) == Usage(0.0, 0.0)


@pytest.mark.process
@PROC
def test_who_listens_on_a_port() -> None:
    """A server of somebody else is found by its port; a client's port is no server's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pid(port) == os.getpid()
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert listening_pid(client.getsockname()[1]) is None
    assert listening_pid(port) is None


# --- what the measuring consumer saw is counted once a number ------------------------------

MS = 1_000_000


def test_sight() -> None:
    """Warm-up is left out, repeats are duplicates, the age counts from when a send was due."""
    pack = make_packer(16)
    sight = ArrivalCounter(3)
    sight.take([pack(0, -1), pack(1 * MS, 0), pack(2 * MS, 2)], 4 * MS)
    sight.take([pack(1 * MS, 0), pack(0, -2)], 9 * MS)

    assert (sight.warm, sight.measured, sight.duplicates) == (2, 2, 1)
    report = sight.report()
    quantiles = report["latency"].pop("quantiles")
    assert report == {
        "measured": 2,
        "duplicates": 1,
        "last_ns": 4 * MS,
        "latency": {"p50": 2.0, "p99": 3.0, "max": 3.0},
    }
    assert (quantiles["1"], quantiles["99"]) == (2.0, 3.0)


# --- the bench's arithmetic, and its JSON --------------------------------------------------

CONFIG = BenchConfig(
    messages=10,
    size_bytes=100,
    in_flight=5,
    workers=1,
    rate=0,
    threads=0,
    warmup_s=0,
    pairs=2,
    partitions=4,
    linger_ms=0.5,
    keys=1,
    daemon_arguments=("--slot", "a"),
)


def result_with(**figures: Any) -> BenchResult:
    """Return a result that differs from a good one by `figures`."""
    given = {
        "transactions_per_s": 25_000.0,
        "latency": Latency(1.0, 2.0, 3.0, {"50": 1.0}),
        "plain_produce_per_s": 100_000.0,
        "plain_latency": Latency(0.5, 1.5, 2.5, {"50": 0.5}),
        "transactions": 10_000,
        "client": Usage(1.0, 50.0),
        "checker": Usage(2.0, 60.0),
        "broker": Usage(0.5, 900.0),
        "config": CONFIG,
        "lost": 0,
        "duplicates": 0,
    }
    return BenchResult(**{**given, **figures})


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_percentile_is_nearest_rank(percent: float, expected: int) -> None:
    """A percentile is an element, the smallest that so many do not exceed."""
    assert percentile(range(1, 101), percent) == expected


def test_latency_is_in_milliseconds() -> None:
    """Ages in nanoseconds become milliseconds, in any order; no ages, zeros."""
    found = latency_of([3_000_000, 1_000_000, 2_000_000])
    assert (found.p50, found.p99, found.max) == (2.0, 3.0, 3.0)
    assert list(found.quantiles) == [f"{each:g}" for each in PERCENTS]
    assert (found.quantiles["1"], found.quantiles["50"], found.quantiles["100"]) == (1.0, 2.0, 3.0)
    assert latency_of([]) == Latency(0.0, 0.0, 0.0, {})


def test_per_second() -> None:
    """A rate is a count over a span; without a span there is none."""
    assert per_second(10, 0, 2_000_000_000) == 5.0
    assert per_second(10, 5, 0) == 0.0


def test_json_has_the_promised_keys() -> None:
    """The JSON holds every promised key, the ratios, and the processor time of a transaction."""
    found = result_with(config=replace(CONFIG, rate=200.0)).to_json()

    assert list(found) == [
        "transactions_per_s",
        "latency_ms",
        "latency_quantiles_ms",
        "lost",
        "duplicates",
        "plain_produce_per_s",
        "ratio_to_plain",
        "plain_latency_ms",
        "plain_latency_quantiles_ms",
        "latency_ratio_to_plain",
        "cpu_us_per_tx",
        "client",
        "checker",
        "broker",
        "config",
    ]
    assert found["latency_ms"] == {"p50": 1.0, "p99": 2.0, "max": 3.0}
    assert found["plain_latency_ms"] == {"p50": 0.5, "p99": 1.5, "max": 2.5}
    assert found["client"] == {"cpu_s": 1.0, "rss_mb_max": 50.0}
    assert found["ratio_to_plain"] == 0.25
    assert found["latency_ratio_to_plain"] == 2.0
    assert found["cpu_us_per_tx"] == {"client": 100.0, "worker": 200.0, "broker": 50.0}


def test_what_was_not_measured_is_null() -> None:
    """Keys stay: a broker elsewhere, no baselines, and no ratio of latencies without a rate."""
    bare = result_with(broker=None, plain_latency=None, plain_produce_per_s=None).to_json()

    assert list(bare) == list(result_with().to_json())
    assert bare["broker"] is None
    assert bare["cpu_us_per_tx"]["broker"] is None
    assert (bare["plain_produce_per_s"], bare["ratio_to_plain"]) == (None, None)
    assert (bare["plain_latency_ms"], bare["plain_latency_quantiles_ms"]) == (None, None)
    assert result_with().to_json()["latency_ratio_to_plain"] is None


def test_usage_between_two_moments() -> None:
    """Time is what was used in between; memory is the maximum, which knows no beginning."""
    assert Usage(3.0, 70.0).since(Usage(1.0, 60.0)) == Usage(2.0, 70.0)
    assert Usage(0.5, 1.0).us_each(1_000) == 500.0
    assert Usage(0.5, 1.0).us_each(0) == 0.0


@pytest.mark.parametrize(("figures", "ok"), [({}, True), ({"lost": 1}, False)])
def test_ok(figures: dict[str, int], ok: bool) -> None:
    """A run is good only if nothing was lost or duplicated."""
    assert result_with(**figures).ok is ok
    assert not result_with(duplicates=1).ok


def test_config_round_trip() -> None:
    """A process gets its config whole."""
    assert BenchConfig.from_json(CONFIG.to_json()) == CONFIG


def test_a_pipelined_client_lingers() -> None:
    """Where no linger is given: 5 ms at full speed, else the client's own default."""
    free = replace(CONFIG, linger_ms=None)
    assert free.with_linger().client_settings == {"linger_ms": 5.0}
    assert replace(free, threads=4).with_linger().client_settings == {}
    assert replace(free, tasks=4).with_linger().client_settings == {}
    assert replace(free, rate=10.0).with_linger().client_settings == {}
    assert CONFIG.with_linger().client_settings == {"linger_ms": 0.5}


def test_a_run_is_a_list_of_figures() -> None:
    """What was not measured is left out."""
    text = run_report(result_with().to_json())
    assert "transactions/s            25,000\n" in text
    assert "plain produce/s           100,000, ratio 0.250\n" in text
    bare = result_with(plain_latency=None, plain_produce_per_s=None, broker=None)
    assert "plain" not in run_report(bare.to_json())
    assert "broker" not in run_report(bare.to_json())

"""From processor time to machines."""

from typing import Any

from benchmarks.sizing import size_for, sizing, sizing_lines


def _row(client: float, worker: float, broker: float | None) -> dict[str, Any]:
    return {"cpu_us_per_tx": {"client": client, "worker": worker, "broker": broker}}


def test_a_rate_times_the_time_of_one_is_how_many_are_busy() -> None:
    """100,000/s at 30 us are 3 processors busy, so 5 at 60 %; four pairs each, rounded up to 32."""
    size = size_for(100_000, client_us=24, worker_us=30, broker_us=20)

    assert (size.workers, size.client_cores, size.broker_cores) == (5, 4, 10)
    assert size.pairs == 32
    assert size.written_mb_per_s == 720
    assert size.brokers == 3


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

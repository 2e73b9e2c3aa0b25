"""What the measuring consumer saw is counted once a number."""

from __future__ import annotations

from halfbridge.bench.load import make_packer
from halfbridge.bench.roles import Sight

MS = 1_000_000


def test_sight() -> None:
    """Warm-up is left out, repeats are duplicates, the age counts from when a send was due."""
    pack = make_packer(16)
    sight = Sight(3)
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

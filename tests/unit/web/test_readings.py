"""What the page takes from the text of /metrics."""

from __future__ import annotations

import math

import pytest
from prometheus_client import generate_latest

from halfbridge.checker.metrics import Metrics
from halfbridge.web.watch import reading_of

FLEET = """\
# TYPE halfbridge_worker_up gauge
halfbridge_worker_up{worker="a-0"} 1.0
halfbridge_worker_up{worker="a-1"} 0.0
"""


def _text() -> str:
    """Return a worker's own metrics, as the daemon writes them."""
    metrics = Metrics()
    metrics.committed({"orders": 3, "bills": 2})
    metrics.rolled_back({"orders": 1})
    metrics.half_messages({"orders": 7})
    metrics.finish_latencies_s([0.003, 0.004, 0.3])
    metrics.oldest_undecided_age_s(12.5)
    metrics.lag(0, "O", records=4)
    metrics.retention_left_s(0, 3600.0)
    metrics.retention_left_s(1, math.inf)
    metrics.dead_letters({"AGE": 2})
    metrics.partitions_stopped(1)
    return generate_latest(metrics.registry).decode()


def test_the_daemons_own_names_are_understood() -> None:
    """A metric that is renamed in the daemon fails here, and shows no 0 to an operator."""
    reading = reading_of([("http://a", _text())], at_s=5.0)
    assert reading.counters["delivered"] == 5
    assert reading.counters["rolled back"] == 1
    assert reading.counters["dead letters"] == 2
    assert reading.totals["undecided"] == 7
    assert reading.totals["stopped"] == 1
    assert reading.buckets[0.005] == 2
    assert reading.buckets[math.inf] == 3
    assert reading.oldest_s == 12.5
    assert reading.retention_s == 3600.0
    assert reading.lags == {(0, "O"): 4}
    assert reading.workers == {"http://a": True}


def test_daemons_add_up_and_silent_ones_are_named() -> None:
    """Counters are sums, the oldest is the oldest of all."""
    texts = [("http://a", _text()), ("http://b", _text() + FLEET), ("http://c", None)]
    reading = reading_of(texts, at_s=5.0)
    assert reading.counters["delivered"] == 10
    assert reading.oldest_s == 12.5
    assert reading.workers == {"http://a": True, "a-0": True, "a-1": False}
    assert reading.silent == ("http://c",)


def test_another_programs_answer_is_refused() -> None:
    """An address that is no metrics port gives an error, and no numbers."""
    with pytest.raises(ValueError, match=r"html|float"):
        reading_of([("http://a", "<html>hello</html> {")], at_s=5.0)

"""Buckets of requests."""

from __future__ import annotations

from halfbridge.web.gate import KEYS_MAX, RateLimit
from tests.kit.web import ManualClock


def test_a_full_bucket_empties_and_fills_again() -> None:
    """Three at once; then one each half second, and the answer says how long to wait."""
    clock = ManualClock()
    limit = RateLimit(2.0, 3, monotonic=clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]
    clock.now_s += 0.5
    assert [limit.take("a") for _ in range(2)] == [0, 1]
    clock.now_s += 3600
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]


def test_keys_have_buckets_of_their_own() -> None:
    """One client's requests cost another nothing."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    assert [limit.take("a"), limit.take("a"), limit.take("b")] == [0, 1, 0]


def test_asking_takes_nothing() -> None:
    """`wait_s` only looks."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    assert [limit.wait_s("a") for _ in range(3)] == [0, 0, 0]


def test_keys_without_end_take_bounded_memory() -> None:
    """The key that was used longest ago is forgotten."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    for each in range(KEYS_MAX + 5):
        limit.take(str(each))
    assert len(limit._buckets) == KEYS_MAX
    assert limit.take(str(KEYS_MAX + 4)) == 1

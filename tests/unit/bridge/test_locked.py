"""A waker held like a lock."""

from __future__ import annotations

import pytest

from halfbridge.kafka.threads import Threads, locked


def test_nobody_else_has_it_meanwhile_and_it_is_given_back() -> None:
    """Also where the block is left by an exception."""
    waker = Threads.waker()
    free = []

    def fail() -> None:
        free.append(waker.acquire(blocking=False))
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"), locked(waker):
        fail()
    assert free == [False]
    assert waker.acquire(blocking=False)

"""A thread for calls that may never return."""

from __future__ import annotations

import threading

import pytest

from checker.outlet.side_thread import SideThread


def test_calls_run_in_order_and_report_their_end() -> None:
    """Each future is done when its call has returned, with what it raised."""
    seen: list[int] = []
    thread = SideThread("test")

    def fail() -> None:
        raise ValueError("no luck")

    first, failed, last = (
        thread.submit(seen.append, 1),
        thread.submit(fail),
        thread.submit(seen.append, 2),
    )

    last.result(5)
    assert first.result(5) is None
    with pytest.raises(ValueError, match="no luck"):
        failed.result(5)
    assert seen == [1, 2]
    thread.leave()


def test_a_call_that_hangs_is_left_behind() -> None:
    """The thread ends by itself once the call returns; nothing that comes later runs in it."""
    release = threading.Event()
    ended = threading.Event()
    thread = SideThread("test-hung")

    def hang() -> None:
        release.wait()
        ended.set()

    future = thread.submit(hang)
    thread.leave()
    assert not future.done()
    (hung,) = (each for each in threading.enumerate() if each.name == "test-hung")
    assert hung.daemon, "it would hold up the end of the process"

    release.set()
    hung.join(5)
    assert ended.is_set()
    assert not hung.is_alive()

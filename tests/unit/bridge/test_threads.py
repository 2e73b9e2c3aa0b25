"""Side threads, and clients that may never close."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from halfbridge.kafka import threads
from halfbridge.kafka.threads import SideThread, Threads


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


class _Client:
    """A client whose end is what a test says."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.close = end


def test_a_client_that_does_not_close_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker's loop would stand still with it, for good."""
    monkeypatch.setattr(threads, "CLOSE_S_MAX", 0.01)
    release = threading.Event()
    Threads.let_go(_Client(release.wait))
    assert "continuing without them" in caplog.text
    release.set()


def test_too_many_clients_left_behind_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads and their memory are this process's; a supervisor starts another one."""
    monkeypatch.setattr(threads, "CLOSE_S_MAX", 0.01)
    monkeypatch.setattr(threads, "LEFT_MAX", 3)
    monkeypatch.setattr(threads, "_left", [])
    release = threading.Event()
    Threads.let_go(*[_Client(release.wait)] * 3)
    with pytest.raises(RuntimeError, match="restart this process"):
        Threads.let_go(_Client(release.wait))
    Threads.let_go(_Client(release.is_set))  # this one is not to blame
    release.set()


def test_a_client_is_closed_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none when it ends, and then is when many a producer is closed."""
    closed: list[object] = []

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    Threads.let_go(_Client(lambda: closed.append(1)))
    assert closed == [1]


def test_a_client_that_cannot_close_is_let_go() -> None:
    """It is broken: what it says of it helps nobody."""
    called = threading.Event()

    def fail() -> None:
        called.set()
        raise RuntimeError("closed already")

    Threads.let_go(_Client(fail))
    assert called.is_set()

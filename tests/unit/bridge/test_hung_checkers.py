"""Hung checkers are told of, at a pace, to the log and to a listener."""

from __future__ import annotations

import logging
from queue import Queue
from threading import Event
from threading import enumerate as all_threads

import pytest

from halfbridge.bridge.check_pool import CheckCounts, HungCheckers, PoolState
from halfbridge.kafka.error_log import LOG_AGAIN_S
from halfbridge.kafka.threads import Threads

TIMEOUT_S = 20.0
WELL = PoolState(able=4)
SOME = PoolState(able=4, hung=2, hung_s=12.0)
ALL = PoolState(able=0, hung=20, hung_s=60.0)


def _levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    levels = [record.levelname for record in caplog.records]
    caplog.clear()
    return levels


def test_hung_checkers_are_told_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """At once, then at a pace; the loss of the last thread at once too; and when all is well."""
    told = HungCheckers("orders", Threads(), counts=CheckCounts, listener=None)
    with caplog.at_level(logging.INFO):
        told.check(WELL, 0.0)
        assert _levels(caplog) == []
        told.check(SOME, 1.0)
        assert "2 checkers of group orders hang, the oldest for 12 s; 4 threads" in caplog.text
        assert _levels(caplog) == ["WARNING"]
        told.check(SOME, LOG_AGAIN_S)
        assert _levels(caplog) == []
        told.check(SOME, 1.0 + LOG_AGAIN_S)
        assert _levels(caplog) == ["WARNING"]
        told.check(ALL, 2.0 + LOG_AGAIN_S)
        assert "leaves its group" in caplog.text
        assert _levels(caplog) == ["ERROR"]
        told.check(ALL, 2.0 + 2 * LOG_AGAIN_S)
        assert _levels(caplog) == ["ERROR"]
        told.check(SOME, 3.0 + 2 * LOG_AGAIN_S)
        told.check(WELL, 4.0 + 2 * LOG_AGAIN_S)
        told.check(WELL, 4.0 + 9 * LOG_AGAIN_S)
        assert _levels(caplog) == ["WARNING", "INFO"]


def _let_calls_end() -> None:
    for thread in all_threads():
        if thread.name == "halfbridge-on-hung":
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def test_a_listener_hears_the_counts() -> None:
    """Each time that the log says something, the last time that none hangs."""
    heard: list[CheckCounts] = []
    counts = CheckCounts(hung=2)
    told = HungCheckers("orders", Threads(), counts=lambda: counts, listener=heard.append)
    told.check(WELL, 0.0)
    told.check(SOME, 1.0)
    _let_calls_end()
    told.check(SOME, 2.0)
    counts = CheckCounts()
    told.check(WELL, 3.0)
    told.check(WELL, 4.0)
    _let_calls_end()
    assert heard == [CheckCounts(hung=2), CheckCounts()]


def test_a_listener_that_hangs_or_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is called again only when it has returned, but then; what it raises is logged."""
    called: Queue[int] = Queue()
    release = Event()

    def listener(counts: CheckCounts) -> None:
        called.put(counts.hung)
        assert release.wait(TIMEOUT_S)
        raise ValueError("a pager that is down")

    hung = 2
    told = HungCheckers(
        "orders", Threads(), counts=lambda: CheckCounts(hung=hung), listener=listener
    )
    told.check(SOME, 0.0)
    assert called.get(timeout=TIMEOUT_S) == 2
    hung = 0
    told.check(WELL, 1.0)
    assert called.empty()
    release.set()
    _let_calls_end()
    told.check(WELL, 2.0)
    _let_calls_end()
    assert called.get(timeout=TIMEOUT_S) == 0
    assert caplog.text.count("ValueError: a pager that is down") == 2

"""Bytes that are late keep their order."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.proxy_lane import LANE_BYTES_MAX, Lane, LaneFullError


def test_what_is_late_holds_up_what_is_behind_it() -> None:
    """Nothing overtakes, whatever its own delay; at once means at once when nothing waits."""

    async def run() -> list[bytes]:
        written: list[bytes] = []
        last = asyncio.Event()

        def write(data: bytes) -> None:
            written.append(data)
            if data == b"4":
                last.set()

        lane = Lane(asyncio.get_running_loop(), write)
        lane.put(b"1")
        assert written == [b"1"]
        lane.put(b"2", 0.05)
        lane.put(b"3")
        lane.put(b"4", 0.01)
        lane.put(b"")
        assert written == [b"1"]
        assert lane.left_s > 0
        await last.wait()
        lane.put(b"5")
        return written

    assert asyncio.run(run()) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_lane_holds_only_so_much_and_forgets_when_closed() -> None:
    """A full lane says so; what waited on a closed one is never written."""

    async def run() -> list[bytes]:
        written: list[bytes] = []
        loop, was_due = asyncio.get_running_loop(), asyncio.Event()
        lane = Lane(loop, written.append)
        lane.put(bytes(LANE_BYTES_MAX), 0.01)
        with pytest.raises(LaneFullError):
            lane.put(b"1")
        lane.close()
        loop.call_later(0.01, was_due.set)  # a loop calls in the order of due times
        await was_due.wait()
        return written

    assert asyncio.run(run()) == []

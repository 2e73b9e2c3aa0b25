"""How virtual time passes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory.log import Row
from halfbridge.testkit.memory.machine import Machine, Passing

POLL_S = 0.1


def idle(machine: Machine, polls: list[float]) -> None:
    """Start a task that asks ten times a second."""
    ports = machine.ports(machine.process("idle"))

    def run() -> None:
        while True:
            ports.run.pause(POLL_S)
            polls.append(ports.clock.monotonic())

    ports.run.start(run, "idle")


def test_idle_polls_are_rare_and_the_end_is_exact() -> None:
    """72 h have 2.6 million polls of 0.1 s; far fewer are made, the last one at the very end."""
    with Machine() as machine:
        polls: list[float] = []
        idle(machine, polls)
        Passing(machine.broker).until(lambda: False, 72 * 3_600)
        assert len(polls) < 2_000
        assert polls[-1] == 72 * 3_600
        assert max(b - a for a, b in pairwise(polls)) <= 240 + 1e-6


def test_a_write_makes_time_exact_again() -> None:
    """While something is written, polls come when they are due; later by a fifth of the quiet."""
    with Machine() as machine:
        machine.broker.create_topic(NewTopic("t", 1, 1, {}))
        passing = Passing(machine.broker)
        polls: list[float] = []
        idle(machine, polls)
        passing.until(lambda: False, 3_600)
        machine.broker.produce("x", ("t", 0), [Row(None, b"v", None, machine.broker.now_ms)], None)
        polls.clear()
        passing.until(lambda: False, 100)
        gaps = [b - a for a, b in pairwise(polls)]
        assert gaps[0] == pytest.approx(POLL_S)
        assert all(
            gap <= max(POLL_S, (at - 3_600) / 5) + 1e-6
            for gap, at in zip(gaps, polls, strict=False)
        )


def test_what_is_due_at_the_end_is_done() -> None:
    """Also what follows from it some tenths of a second later."""
    with Machine() as machine:
        machine.broker.create_topic(NewTopic("t", 1, 1, {}))
        ports = machine.ports(machine.process("p"))
        done: list[str] = []

        def run() -> None:
            ports.run.pause(6)
            done.append("due")
            machine.broker.changed()  # as a write
            ports.run.pause(0.15)
            done.append("finished")

        ports.run.start(run, "p")
        passing = Passing(machine.broker)
        passing.advance(5)
        assert done == []
        passing.advance(1)
        assert done == ["due", "finished"]


def test_a_task_that_never_waits_ends_all_the_same() -> None:
    """Its deadline comes although time stands still while somebody can go on."""
    with Machine() as machine:
        ports = machine.ports(machine.process("spinning"))
        ended: list[bool] = []

        def run() -> None:
            deadline = ports.clock.monotonic() + 0.01
            while ports.clock.monotonic() < deadline:
                ports.run.pause(0)
            ended.append(True)

        ports.run.start(run, "spinning")
        assert Passing(machine.broker).until(lambda: bool(ended), 5)

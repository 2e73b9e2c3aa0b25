"""Marks of pairs that are being read, which workers on other machines find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.intake import FirstReads
from halfbridge.kafka.first_reads import LethalRecord
from halfbridge.kafka.ports import NewTopic, Place
from halfbridge.serde.progress import Progress
from halfbridge.testkit.memory.machine import Machine

CONFIG = CheckerConfig()
HALF, OP = CONFIG.names.half, CONFIG.names.op
PROGRESS = Progress(half=3, op=2, rebuild_to=3, ops_from=1, position=3)
PAIRS = {0: PROGRESS, 1: PROGRESS}


class Taster:
    """Finds the records in `deadly`; notes what it was asked about."""

    def __init__(self) -> None:
        self.deadly: dict[Place, LethalRecord] = {}
        self.asked: list[Mapping[Place, int]] = []

    def __call__(
        self, _properties: Mapping[str, Any], starts: Mapping[Place, int]
    ) -> LethalRecord | None:
        """Read nothing."""
        self.asked.append(starts)
        return next((self.deadly[place] for place in starts if place in self.deadly), None)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers with half and op topic."""
    with Machine() as made:
        for topic in (HALF, OP):
            made.broker.create_topic(NewTopic(topic, 2, 1, {}))
        yield made


def _reads(machine: Machine, name: str, prober: Taster) -> FirstReads:
    return FirstReads(CONFIG, machine.ports(machine.process(name)), prober)


def test_pairs_that_were_rebuilt_are_read_at_once(machine: Machine) -> None:
    """A usual start begins no child process."""
    prober = Taster()
    first = _reads(machine, "first", prober)
    assert first.begin(PAIRS) == {}
    first.rebuilt(PAIRS)
    assert _reads(machine, "second", prober).begin(PAIRS) == {}
    assert prober.asked == []


def test_a_pair_that_ended_its_worker_is_left_out(machine: Machine) -> None:
    """The next worker has all marked pairs tried, each from where its rebuild begins."""
    prober = Taster()
    assert _reads(machine, "first", prober).begin(PAIRS) == {}

    prober.deadly[HALF, 1] = LethalRecord(HALF, 1, 7, "SIGABRT")
    second = _reads(machine, "second", prober)
    (number, why), *more = second.begin(PAIRS).items()
    assert (number, more) == (1, [])
    assert f"{HALF}[1]@7" in why
    assert prober.asked == [{(HALF, pair): 3, (OP, pair): 1} for pair in PAIRS]

    second.rebuilt([0])
    prober.asked.clear()
    prober.deadly.clear()  # it was repaired
    third = _reads(machine, "third", prober)
    assert third.begin(PAIRS) == {}
    assert prober.asked == [{(HALF, 1): 3, (OP, 1): 1}]
    third.rebuilt(PAIRS)
    assert _reads(machine, "fourth", prober).begin(PAIRS) == {}
    assert len(prober.asked) == 1


def test_no_pair_waits_for_marks_that_cannot_be_read(machine: Machine) -> None:
    """The daemon serves without them, for example where it lacks the right."""
    prober = Taster()
    machine.network.is_down = True
    assert _reads(machine, "first", prober).begin(PAIRS) == {}
    assert prober.asked == []

"""Rounds that prove where half partitions end: when they begin, and what they answer."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.barriers import PAUSE_S, RETRY_S, Barriers, EndProof
from halfbridge.checker.loop.clients import SlotIds
from tests.fake_ports import Clock, fake_ports

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_S = 0.001
TURNS_MAX = 10_000


class _Kafka:
    """Kafka of one transactional writer; what it writes stands at `ends`."""

    def __init__(self) -> None:
        self.ends = Counter({0: 7, 1: 9})
        self.told: list[Callable[[], None]] = []
        self.calls: Counter[str] = Counter()
        self.fails = False
        self.infers = False
        self.meanwhile: Callable[[], None] = lambda: None  # what happens while it writes

    def transactional_writer(self, _properties: dict[str, Any]) -> _Kafka:
        return self

    def init(self, _timeout_s: float) -> None:
        self.calls["init"] += 1

    def begin(self) -> None:
        self.calls["begin"] += 1
        if self.fails:
            raise KafkaFailure(Code.FENCED)

    def produce(
        self, _topic: str, _value: bytes, _key: None, partition: int, on_delivery: Any
    ) -> None:
        self.meanwhile()
        offset = None if self.infers else self.ends[partition]
        self.ends[partition] += 2
        record = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        self.told.append(lambda: on_delivery(None, record))

    def flush(self, _timeout_s: float) -> int:
        for tell in self.told:
            tell()
        self.told = []
        return 0

    def abort(self, _timeout_s: float) -> None:
        self.calls["abort"] += 1

    def close(self) -> None:
        self.calls["let go"] += 1


class _Loop:
    """Barriers and the turns of a loop, each a millisecond after the one before."""

    def __init__(self) -> None:
        self.kafka = _Kafka()
        self.clock = Clock()
        ids = SlotIds("w-0", "halfbridge-w-0")
        self.barriers = Barriers(CheckerConfig(), ids, fake_ports(self.kafka, self.clock))

    def turn(self, asked: dict[int, int]) -> list[EndProof]:
        """Take the answers; without any, ask again and begin a round where one is due."""
        self.clock.now += TURN_S
        if found := list(self.barriers.answers()):
            return found
        for partition, token in asked.items():
            self.barriers.ask(partition, token)
        self.barriers.serve(self.clock.now)
        return []

    def proofs(self, asked: dict[int, int]) -> list[EndProof]:
        """Ask in each turn until there are proofs."""
        for _ in range(TURNS_MAX):
            if found := self.turn(asked):
                return found
        raise AssertionError("no proof came")


@pytest.fixture
def loop() -> _Loop:
    """Barriers that were just made."""
    return _Loop()


def test_the_offset_of_an_aborted_record_is_the_end(loop: _Loop) -> None:
    """One round for all partitions that are asked about; the next one comes soon after."""
    assert loop.proofs({0: 5, 1: 6}) == [EndProof(0, 5, 7), EndProof(1, 6, 9)]
    began = loop.clock.now
    assert loop.proofs({0: 8}) == [EndProof(0, 8, 9)]
    assert loop.clock.now - began < 2 * PAUSE_S
    assert loop.kafka.calls == {"init": 1, "begin": 2, "abort": 2}


def test_a_proof_answers_what_was_asked_before_it_was_written(loop: _Loop) -> None:
    """A later question is not answered by it: records may stand behind the end that it shows."""
    loop.kafka.meanwhile = lambda: loop.barriers.ask(0, 6)
    assert loop.proofs({0: 5}) == [EndProof(0, 5, 7)]
    loop.kafka.meanwhile = lambda: None
    assert loop.proofs({}) == [EndProof(0, 6, 9)]


def test_an_inferred_acknowledgement_proves_nothing(loop: _Loop) -> None:
    """The client takes a record for stored that no broker has named the offset of."""
    loop.kafka.infers = True
    while loop.kafka.calls["abort"] < 2:
        assert loop.turn({0: 5}) == []
    loop.kafka.infers = False
    (proof,) = loop.proofs({0: 5})
    assert proof.token == 5


def test_after_a_failure_it_is_tried_anew(loop: _Loop) -> None:
    """By another writer, after a while: the id may be another worker's by now."""
    loop.kafka.fails = True
    while not loop.kafka.calls["let go"]:
        assert loop.turn({0: 5}) == []
    loop.kafka.fails = False
    failed = loop.clock.now
    assert loop.proofs({0: 5}) == [EndProof(0, 5, 7)]
    assert loop.clock.now - failed > RETRY_S
    assert loop.kafka.calls["init"] == 2

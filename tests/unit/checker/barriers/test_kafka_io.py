"""Rounds that prove where half partitions end: when they begin, and what they answer."""

from __future__ import annotations

from collections import Counter
from time import monotonic, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.checker.barriers import kafka_io
from halfbridge.checker.barriers.kafka_io import RETRY_S, Barriers, EndProof
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.slots import SlotIds

if TYPE_CHECKING:
    from collections.abc import Callable

WITHIN_S = 20.0


class _Kafka:
    """Kafka's producer; what it writes stands at `ends`."""

    def __init__(self) -> None:
        self.ends = Counter({0: 7, 1: 9})
        self.told: list[Callable[[], None]] = []
        self.calls: Counter[str] = Counter()
        self.fails = False
        self.infers = False

    def init_transactions(self, _timeout_s: float) -> None:
        self.calls["init"] += 1

    def begin_transaction(self) -> None:
        self.calls["begin"] += 1
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    def produce(self, _topic: str, _value: bytes, *, partition: int, on_delivery: Any) -> None:
        offset = None if self.infers else self.ends[partition]
        self.ends[partition] += 2
        record = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        self.told.append(lambda: on_delivery(None, record))

    def flush(self, _timeout_s: float) -> int:
        for tell in self.told:
            tell()
        self.told = []
        return 0

    def abort_transaction(self, _timeout_s: float) -> None:
        self.calls["abort"] += 1

    def purge(self) -> None:
        self.calls["let go"] += 1

    def poll(self, _timeout_s: float) -> int:
        return 0


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> _Kafka:
    """The producer that is made, each time."""
    made = _Kafka()
    monkeypatch.setattr(kafka_io, "made", lambda *_: made)
    return made


def _proofs(barriers: Barriers, asked: dict[int, int]) -> list[EndProof]:
    """Ask as the loop does, in each of its turns, until there are proofs."""
    until = monotonic() + WITHIN_S
    while monotonic() < until:
        found = list(barriers.answers())
        if found:
            return found
        for partition, token in asked.items():
            barriers.ask(partition, token)
        barriers.serve(monotonic())
        sleep(0.001)
    raise AssertionError("no proof came")


def test_the_offset_of_an_aborted_record_is_the_end(kafka: _Kafka) -> None:
    """One round for all partitions that are asked about; the next one comes soon after."""
    barriers = Barriers(CheckerConfig(), SlotIds("w-0", "halfbridge-w-0"))
    assert _proofs(barriers, {0: 5, 1: 6}) == [EndProof(0, 5, 7), EndProof(1, 6, 9)]
    began = monotonic()
    assert _proofs(barriers, {0: 8}) == [EndProof(0, 8, 9)]
    assert monotonic() - began < WITHIN_S / 2
    assert kafka.calls == {"init": 1, "begin": 2, "abort": 2}
    barriers.close()


def test_an_inferred_acknowledgement_proves_nothing(kafka: _Kafka) -> None:
    """The client takes a record for stored that no broker has named the offset of."""
    barriers = Barriers(CheckerConfig(), SlotIds("w-0", "halfbridge-w-0"))
    kafka.infers = True
    until = monotonic() + WITHIN_S
    while kafka.calls["abort"] < 2 and monotonic() < until:
        barriers.ask(0, 5)
        barriers.serve(monotonic())
        assert list(barriers.answers()) == []
    assert kafka.calls["abort"] >= 2
    kafka.infers = False
    (proof,) = _proofs(barriers, {0: 5})
    assert proof.token == 5
    barriers.close()


def test_after_a_failure_it_is_tried_anew(kafka: _Kafka) -> None:
    """By another producer, after a while: the id may be another worker's by now."""
    barriers = Barriers(CheckerConfig(), SlotIds("w-0", "halfbridge-w-0"))
    kafka.fails = True
    until = monotonic() + WITHIN_S
    while not kafka.calls["let go"] and monotonic() < until:
        barriers.ask(0, 5)
        barriers.serve(monotonic())
        assert list(barriers.answers()) == []
    kafka.fails = False
    failed = monotonic()
    assert _proofs(barriers, {0: 5}) == [EndProof(0, 5, 7)]
    assert monotonic() - failed > RETRY_S / 2
    assert kafka.calls["init"] == 2
    barriers.close()

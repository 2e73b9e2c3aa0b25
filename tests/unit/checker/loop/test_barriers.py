"""Barrier rounds that prove the ends of half partitions: when they begin, and their answers.

The Kafka is a fake, or brokers in memory of which a partition is offline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge import Message, Resolution
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.barriers import PAUSE_S, RETRY_S, Barriers, EndProof
from halfbridge.checker.loop.clients import SlotIds
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.avro import OP
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import OpKind
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.log import Row
from tests.fake_ports import Clock, fake_ports
from tests.ledger_log import op_record

TURN_S = 0.001
TURNS_MAX = 10_000
PARTITIONS = 3
BEYOND = 1 << 40  # an offset without a half message
# A silent partition times out after 5 s, its transactional id after 2 s.
FOUND_S = 10.0
# Several attempts to write to a silent partition, whose pauses double from 5 s on.
ROUNDS, PAUSED_S = 6, 20.0


class _Kafka:
    """Kafka with one transactional writer, whose records get the offsets in `ends`.

    Spare transactional ids get another, uncounted fake.
    """

    def __init__(self) -> None:
        self.ends = Counter({0: 7, 1: 9})
        self.reported: list[Callable[[], None]] = []
        self.calls: Counter[str] = Counter()
        self.fails = False
        self.infers = False
        self.meanwhile: Callable[[], None] = lambda: None  # what happens while it writes

    def transactional_writer(self, properties: dict[str, Any]) -> _Kafka:
        return self if properties["transactional.id"] == "halfbridge-w-0-barrier" else _Kafka()

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
        self.reported.append(lambda: on_delivery(None, record))

    def flush(self, _timeout_s: float) -> int:
        for tell in self.reported:
            tell()
        self.reported = []
        return 0

    def abort(self, _timeout_s: float) -> None:
        self.calls["abort"] += 1

    def close(self) -> None:
        self.calls["let go"] += 1


class _Loop:
    """Barriers and a loop with turns of one millisecond."""

    def __init__(self) -> None:
        self.kafka = _Kafka()
        self.clock = Clock()
        ids = SlotIds("w-0", "halfbridge-w-0")
        self.barriers = Barriers(CheckerConfig(), ids, fake_ports(self.kafka, self.clock))

    def turn(self, asked: dict[int, int]) -> list[EndProof]:
        """Return the answers; without any, ask again and begin a round if due."""
        self.clock.now += TURN_S
        if found := list(self.barriers.answers()):
            return found
        for partition, token in asked.items():
            self.barriers.ask(partition, token)
        self.barriers.serve(self.clock.now)
        return []

    def proofs(self, asked: dict[int, int]) -> list[EndProof]:
        """Ask in each turn until there are proofs; return them."""
        for _ in range(TURNS_MAX):
            if found := self.turn(asked):
                return found
        raise AssertionError("no proof came")


@pytest.fixture
def loop() -> _Loop:
    """Barriers before their first turn."""
    return _Loop()


def test_the_offset_of_an_aborted_record_is_the_end(loop: _Loop) -> None:
    """One aborted kafka_txn proves the ends of all partitions; the next round follows soon."""
    assert loop.proofs({0: 5, 1: 6}) == [EndProof(0, 5, 7), EndProof(1, 6, 9)]
    began = loop.clock.now
    assert loop.proofs({0: 8}) == [EndProof(0, 8, 9)]
    assert loop.clock.now - began < 2 * PAUSE_S
    assert loop.kafka.calls == {"init": 1, "begin": 2, "abort": 2}


def test_a_proof_answers_what_was_asked_before_it_was_written(loop: _Loop) -> None:
    """A question asked during a write is answered by the next round only."""
    loop.kafka.meanwhile = lambda: loop.barriers.ask(0, 6)
    assert loop.proofs({0: 5}) == [EndProof(0, 5, 7)]
    loop.kafka.meanwhile = lambda: None
    assert loop.proofs({}) == [EndProof(0, 6, 9)]


def test_an_inferred_acknowledgement_proves_nothing(loop: _Loop) -> None:
    """An acknowledgement without an offset gives no proof; the next round does."""
    loop.kafka.infers = True
    while loop.kafka.calls["abort"] < 2:
        assert loop.turn({0: 5}) == []
    loop.kafka.infers = False
    (proof,) = loop.proofs({0: 5})
    assert proof.token == 5


def test_after_a_failure_it_is_tried_anew(loop: _Loop) -> None:
    """After a failure a new writer is initialized, after RETRY_S."""
    loop.kafka.fails = True
    while not loop.kafka.calls["let go"]:
        assert loop.turn({0: 5}) == []
    loop.kafka.fails = False
    failed = loop.clock.now
    assert loop.proofs({0: 5}) == [EndProof(0, 5, 7)]
    assert loop.clock.now - failed > RETRY_S
    assert loop.kafka.calls["init"] == 2


@pytest.mark.parametrize("delivery", [each.value for each in Delivery])
@pytest.mark.parametrize("is_leaderless", [False, True], ids=["silent", "leaderless"])
def test_a_half_partition_that_is_away_stops_its_own_pair_only(
    delivery: str, *, is_leaderless: bool
) -> None:
    """If a half partition is offline, other pairs still get proofs and deliver."""
    key = next(k for n in range(99) if partition_of(k := b"%d" % n, PARTITIONS) == 1)
    with MemoryStack(partitions=PARTITIONS, delivery=delivery) as stack:
        topic = stack.create_topic("orders")
        broker, names = stack.machine.broker, stack.config.names

        def op_beyond_the_end(partition: int) -> None:
            op = OP.encode(op_record("nobody", OpKind.COMMIT, half_offset=BEYOND))
            row = Row(b"nobody", op, None, broker.now_ms)
            broker.produce("stranger", (names.op, partition), [row], None)

        with stack.producer("shop", checker=lambda _: Resolution.UNKNOWN) as producer:
            stack.advance(1)
            broker.go_away((names.half, 0), is_leaderless=is_leaderless)
            for number in range(ROUNDS):
                op_beyond_the_end(0)
                op_beyond_the_end(1)
                with producer.begin() as tx:
                    tx.send(Message(topic, key=key, value=b"two shirts"))
                stack.read_committed(topic, count=number + 1, timeout_s=FOUND_S)
                stack.advance(PAUSED_S)
            (worker,) = stack.daemon._workers
            spares = worker.status.metrics.registry.get_sample_value(
                "halfbridge_spare_transactional_ids_total"
            )
            broker.come_back((names.half, 0))
            stack.wait_until_decided()
    assert is_leaderless or spares

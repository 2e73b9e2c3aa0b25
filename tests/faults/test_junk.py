"""Junk in the half and op topics, from writers that know nothing of halfbridge, under load."""

import random
import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError, SerdeError
from halfbridge.serde.headers import DEAD, HALF, parse_half
from halfbridge.serde.records import DeadReason, OpKind, OpSource, new_half, new_op
from halfbridge.testkit.reader import read_all
from tests.faults.plan import Kind
from tests.faults.stage import Stage, seed_of_run
from tests.property.mutants import mutant

pytestmark = [pytest.mark.broker, pytest.mark.long]

_ID = "018f3a5b7c9d7e0f8a1b2c3d4e5f6071"
_HALVES = [
    HALF_METADATA.encode(
        new_half(transaction_id=_ID, born_timestamp=1, producer_group="orders", real_topic="paid")
    )
]
_OPS = [
    OP.encode(
        new_op(
            transaction_id=_ID,
            timestamp=1,
            half_offset=17,
            producer_group="orders",
            kind=OpKind.COMMIT,
            message_count=3,
            source=OpSource.PRODUCER,
            actor="h:1",
        )
    )
]
_PER_S = 100
_JUNK = 4_000
_FLUSH_S = 120  # the brokers are busy, and nobody else waits for it


def _is_read(data: bytes, *, half: bool) -> bool:
    """Tell whether damaged bytes are none: they say something that somebody could have meant."""
    try:
        if half:
            parse_half([(HALF, data)])
        else:
            OP.decode(data)
    except (DecodeError, SerdeError):
        return False
    return True


class _Litterer(threading.Thread):
    """Writes junk to both topics, _PER_S a second, until it has written _JUNK."""

    def __init__(self, stage: Stage, draw: random.Random) -> None:
        super().__init__(name="litterer")
        self._stage = stage
        self._draw = draw
        self._enough = threading.Event()
        self.halves = self.ops = 0

    def run(self) -> None:
        producer: Any = Producer({"bootstrap.servers": self._stage.servers, "linger.ms": 50})
        while self.halves + self.ops < _JUNK and not self._enough.wait(1 / _PER_S):
            half = self._draw.random() < 0.5
            data = mutant(self._draw, _HALVES if half else _OPS)
            if _is_read(data, half=half):
                continue
            topic = self._stage.names.half if half else self._stage.names.op
            place = self._draw.randrange(4)
            if half:
                headers = self._draw.choice(([(HALF, data)], [(HALF, data), (HALF, data)], []))
                producer.produce(topic, data, partition=place, headers=headers)
                self.halves += 1
            else:
                value = self._draw.choice((data, data, None, b""))
                producer.produce(topic, value, partition=place)
                self.ops += 1
            producer.poll(0)
        assert producer.flush(_FLUSH_S) == 0

    def end(self) -> None:
        """Stop before it is done."""
        self._enough.set()
        self.join()


def test_case_23_junk_under_load(stage: Stage) -> None:
    """Every piece of junk is a dead letter, once; what clients sent is as if there were none."""
    seed = seed_of_run()
    stage.make()
    daemon = stage.daemon("--workers", "2")
    lasting = stage.usual_clients(seed=seed, pipelined=200, blocking=60)
    doomed = stage.client("doomed", seed=seed, rate=60, die_at=60)
    litterer = _Litterer(stage, random.Random(seed))
    litterer.start()
    try:
        stage.await_more(8_000, within_s=480)
    finally:
        litterer.end()
    stage.injected["junk half record"] += litterer.halves
    stage.injected["junk op record"] += litterer.ops
    assert doomed.process.wait(60)

    stage.end_judged(lasting)
    assert stage.kinds[Kind.BRINK]["delivered"] == 1
    dead = read_all(stage.direct, [stage.names.dead])
    invalid = [one for one in dead if _is_invalid(one.headers)]
    assert len(invalid) == litterer.halves + litterer.ops
    assert stage.stop(daemon) == 0


def _is_invalid(headers: Any) -> bool:

    letter = dict(headers).get(DEAD)
    return letter is not None and DEAD_LETTER.decode(letter).reason is DeadReason.INVALID

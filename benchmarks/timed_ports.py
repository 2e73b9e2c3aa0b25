"""Kafka clients for a worker that note when each transaction passes a step (`steps`).

The shipped worker runs on these clients unchanged: what is timed are the calls at its ports.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.adapter import KafkaClients
from halfbridge.serde.headers import TRANSACTION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# The steps of a worker, in order.
TAKEN, BEGUN, HANDED_OVER, OFFSETS_SENT, PROVEN, COMMITTED = range(6)
_STEPS = 6  # times noted of each transaction

Noted = dict[str, list[int]]


class TimedKafka(KafkaClients):
    """Makes clients that note each step's monotonic nanoseconds, by transaction id; 0: none."""

    def __init__(self, op_topic: str) -> None:
        super().__init__()
        self.noted: Noted = {}
        self._op_topic = op_topic

    def member(
        self, properties: Mapping[str, object], *, on_lost: Callable[[], None] | None = None
    ) -> Any:
        return _Member(super().member(properties, on_lost=on_lost), self.noted, self._op_topic)

    def transactional_writer(
        self, properties: Mapping[str, object], *, on_lost: Callable[[], None] | None = None
    ) -> Any:
        return _Writer(super().transactional_writer(properties, on_lost=on_lost), self.noted)


class _Member:
    def __init__(self, member: Any, noted: Noted, op_topic: str) -> None:
        self._member = member
        self._noted = noted
        self._op_topic = op_topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def poll(self, wait_s: float) -> Any:
        record = self._member.poll(wait_s)
        if record is not None:
            self._note((record,))
        return record

    def take(self, records_max: int) -> Any:
        records = self._member.take(records_max)
        self._note(records)
        return records

    def _note(self, records: Sequence[Any]) -> None:
        now_ns = monotonic_ns()
        for record in records:
            if record.topic() == self._op_topic and record.error() is None:
                self._noted[(record.key() or b"").decode()] = [now_ns, *(0,) * (_STEPS - 1)]


class _Writer:
    def __init__(self, writer: Any, noted: Noted) -> None:
        self._writer = writer
        self._noted = noted
        self._now: list[list[int]] = []  # the transactions of the kafka_txn at hand
        self._at = [0] * (_STEPS - BEGUN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def begin(self) -> None:
        self._now = []
        self._pass(BEGUN)
        self._writer.begin()

    def produce(self, *arguments: Any) -> None:
        self._writer.produce(*arguments)
        self._pass(HANDED_OVER)
        for name, said in arguments[-1] or ():
            if name == TRANSACTION_ID:
                times = self._noted.get((said or b"").decode())
                if times is not None:
                    self._now.append(times)

    def send_offsets(self, *arguments: object) -> None:
        self._writer.send_offsets(*arguments)
        self._pass(OFFSETS_SENT)

    def flush(self, timeout_s: float) -> Any:
        left = self._writer.flush(timeout_s)
        self._pass(PROVEN)
        return left

    def commit(self, timeout_s: float) -> None:
        self._writer.commit(timeout_s)
        self._pass(COMMITTED)
        for times in self._now:
            times[BEGUN:] = self._at

    def _pass(self, step: int) -> None:
        self._at[step - BEGUN] = monotonic_ns()

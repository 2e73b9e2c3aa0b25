"""The processes of `steps`: a worker, a reader and a client.

`python -m benchmarks.step_roles ROLE RUN` runs one. Each writes the times that it noted,
monotonic nanoseconds by transaction id, to standard output as its last line of JSON, and ends: the
client after its last transaction, the others on SIGTERM. Before, the client prints how many
transactions it sent, and the reader how many messages it has seen.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

from benchmarks.timed_ports import TimedKafka
from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.bench.load import make_keys, make_packer, print_fact, scheduled
from halfbridge.bench.plain_clients import consume, make_consumer
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.service import run_worker
from halfbridge.checker.status import Status
from halfbridge.kafka.adapter import system_ports
from halfbridge.serde.headers import TRANSACTION_ID

if TYPE_CHECKING:
    from benchmarks.timed_ports import Noted

GROUP = "steps"
SIZE_BYTES = 1024  # a usual message; the suite's other rows have the same
KEYS = 1_000  # so that partitions are even
IN_FLIGHT_MAX = 5_000  # a stalled broker bounds the memory of the load
_BATCH_MAX = 5_000  # records of a call: all that was fetched
_POLL_S = 0.1  # how late a stop is seen
_TAIL_S_MAX = 60.0  # after the last send; a run that takes longer has failed
_TICK_S = 0.002  # how late room for another transaction is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRun:
    """One run, which every process of it receives.

    Transactions are sent on schedule for `seconds`, after a warm-up as fast as possible.
    """

    bootstrap_servers: str
    topic_prefix: str
    real_topic: str
    pairs: int
    partitions: int
    rate: float
    seconds: float
    warmup_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Client:
    """Sends and commits; notes when each is due, and when half message and decision are stored."""

    def __init__(self, run: StepsRun, producer: TransactionProducer) -> None:
        self._run = run
        self._producer = producer
        self._pack = make_packer(SIZE_BYTES)
        self._keys = make_keys(KEYS)
        self.begun = 0
        self._ended: list[None] = []  # append is atomic
        self.noted: Noted = {}

    def warm_up(self) -> None:
        until = time.monotonic() + self._run.warmup_s
        while time.monotonic() < until:
            if self.begun - len(self._ended) < IN_FLIGHT_MAX:
                self._send(time.monotonic_ns())
            else:
                time.sleep(_TICK_S)
        self.await_all()
        self.noted = {}

    def measure(self) -> None:
        numbers = iter(range(int(self._run.rate * self._run.seconds)))
        for _, due_ns in scheduled(numbers, self._run.rate):
            self._send(due_ns)
        self.await_all()

    def await_all(self) -> None:
        deadline = time.monotonic() + _TAIL_S_MAX
        while len(self._ended) < self.begun and time.monotonic() < deadline:
            time.sleep(_TICK_S)

    def _send(self, due_ns: int) -> None:
        number = self.begun
        self.begun += 1
        key = self._keys[number % len(self._keys)]
        message = Message(self._run.real_topic, key=key, value=self._pack(due_ns, number))
        tx = self._producer.begin()
        self.noted[tx.id] = [due_ns]
        tx.send_async(message).add_done_callback(self._on_sent)

    def _on_sent(self, future: Any) -> None:
        if future.exception() is not None:
            self._ended.append(None)
            return
        self.noted[future.transaction.id].append(time.monotonic_ns())
        future.transaction.commit_async().add_done_callback(self._on_committed)

    def _on_committed(self, future: Any) -> None:
        if future.exception() is None:
            self.noted[future.transaction.id].append(time.monotonic_ns())
        self._ended.append(None)


def send(run: StepsRun) -> Noted:
    with TransactionProducer(
        bootstrap_servers=run.bootstrap_servers,
        topic_prefix=run.topic_prefix,
        producer_group=GROUP,
        topics=[run.real_topic],
        checker=lambda _view: Resolution.UNKNOWN,
    ) as producer:
        client = _Client(run, producer)
        client.warm_up()
        client.measure()
        print_fact({"sent": client.begun})
        return client.noted


def work(run: StepsRun) -> Noted:
    """Serve as the only worker; return the times of its steps (`timed_ports`)."""
    config = CheckerConfig(bootstrap_servers=run.bootstrap_servers, topic_prefix=run.topic_prefix)
    kafka = TimedKafka(config.names.op)
    ports = replace(system_ports(), kafka=kafka)
    run_worker(config, slot=GROUP, stop=_on_sigterm(), status=Status(), ports=ports)
    return kafka.noted


def read(run: StepsRun) -> Noted:
    """Read the real topic; return when each transaction was seen."""
    stop, noted, seen = _on_sigterm(), {}, 0
    consumer = make_consumer(
        run.bootstrap_servers, run.real_topic, partitions=run.partitions, lively=True
    )
    while not stop.is_set():
        records = consume(consumer, _BATCH_MAX, _POLL_S)
        now_ns = time.monotonic_ns()
        if records:
            seen += len(records)
            print_fact({"seen": seen})
        for record in records:
            noted[dict(record.headers())[TRANSACTION_ID].decode()] = [now_ns]
    consumer.close()
    return noted


def _on_sigterm() -> Event:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    role = {"client": send, "worker": work, "reader": read}[sys.argv[1]]
    print_fact(role(StepsRun(**json.loads(sys.argv[2]))))

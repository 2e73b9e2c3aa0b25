"""The processes of a bench: `python -m halfbridge.bench.roles ROLE <config>`.

`client` runs the measured transactions. It warms up, prints a JSON line, and waits for SIGUSR1.
Then it runs the measured part, prints a JSON line with its figures, and waits for SIGUSR1 again.
During the last wait the bench reads the process's CPU time and memory.

`consumer` prints how many messages it has seen, in JSON lines. After SIGTERM it reads until no more
messages come, and prints its figures in a last line.

`plain-rate` and `plain-latency` are the baselines: a plain idempotent producer with acks=all, at
full speed and on schedule. Each prints one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
import time
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from halfbridge import (
    AsyncTransactionProducer,
    Message,
    MessageView,
    Resolution,
    TransactionProducer,
)
from halfbridge.bench.load import (
    BenchConfig,
    Turns,
    due_times,
    lead_in,
    make_keys,
    make_packer,
    measured,
    print_fact,
    scheduled,
    unpack_head,
)
from halfbridge.bench.plain_clients import consume, make_consumer, make_plain_producer, produce_all
from halfbridge.bench.result import latency_of, per_second
from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRODUCER_GROUP = "bench"
_WARMUP_CHUNK = 2_000  # transactions between two readings of the clock: under a second of a warm-up
_TAIL_S_MAX = 60.0  # after the last send; a run that takes longer has failed
_TICK_S = 0.001  # how late the last outcome is seen
_BATCH_MAX = 5_000  # records of a call: all that was fetched, so that calls do not limit the rate
_POLL_S = 0.1  # how late a stop is seen
_REPORT_S = 0.2  # how late the driver knows a count
_SILENCE_S = 1.0  # a duplicate would follow within this time: a kafka_txn takes milliseconds
_LIVELY_RATE = 5_000  # above this rate the broker's CPU is the limit
_PLAIN_WARM_MESSAGES = 50_000  # a new broker compiles meanwhile
_PLAIN_MESSAGES = 300_000  # some seconds
_PRINTED_MAX = 3  # of failures: they say what is wrong


class Client:
    """Runs transactions, and counts commits and failures."""

    def __init__(self, config: BenchConfig, producer: TransactionProducer) -> None:
        self._config = config
        self._producer = producer
        self._pack = make_packer(config.size_bytes)
        self._keys = make_keys(config.keys)
        # Callbacks in several threads append to it: append is atomic, unlike `+= 1`.
        self._committed: deque[None] = deque()
        self._failed: deque[Any] = deque()
        self._began = 0
        self.first_send_ns = 0

    @property
    def committed(self) -> int:
        """Acknowledged commits."""
        return len(self._committed)

    @property
    def failures(self) -> list[str]:
        """Errors of sends and commits."""
        return [str(error) for error in self._failed]

    def warm_up(self) -> int:
        """Run pipelined for warmup_s; return how many warm-up messages were sent."""
        until = time.monotonic() + self._config.warmup_s
        numbers = itertools.count(-1, -1)
        count = 0
        while time.monotonic() < until:
            for number in itertools.islice(numbers, _WARMUP_CHUNK):
                self._send_pipelined(number, time.monotonic_ns())
            count += _WARMUP_CHUNK
        self._await_all()
        return count

    def measure(self, *, first_number: int) -> int:
        """Run the lead-in, then the measured messages; return the number of lead-in messages."""
        numbers = measured(self._config, first_number=first_number)
        schedule = self._scheduled(numbers) if self._config.rate else self._unpaced(numbers)
        if self._config.threads:
            self._run_threads(schedule)
        else:
            for number, due_ns in schedule:
                self._send_pipelined(number, due_ns)
        self._await_all()
        return lead_in(self._config.rate)

    def _unpaced(self, numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
        clock = time.monotonic_ns
        self.first_send_ns = clock()
        for number in numbers:
            yield number, clock()

    def _scheduled(self, numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
        for number, due_ns in scheduled(numbers, self._config.rate):
            if number == 0:
                self.first_send_ns = due_ns
            yield number, due_ns

    def _send_pipelined(self, number: int, due_ns: int) -> None:
        self._began += 1
        key = self._keys[number % len(self._keys)]
        message = Message(self._config.real_topic, key=key, value=self._pack(due_ns, number))
        self._producer.begin().send_async(message).add_done_callback(self._on_sent)

    def _on_sent(self, future: Any) -> None:
        error = future.exception()
        if error is None:
            future.transaction.commit_async().add_done_callback(self._on_committed)
        else:
            self._failed.append(error)

    def _on_committed(self, future: Any) -> None:
        error = future.exception()
        if error is None:
            self._committed.append(None)
        else:
            self._failed.append(error)

    def _await_all(self) -> None:
        deadline = time.monotonic() + _TAIL_S_MAX
        while self.committed + len(self._failed) < self._began:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._began - self.committed} transactions never ended")
            time.sleep(_TICK_S)

    def _run_threads(self, schedule: Iterator[tuple[int, int]]) -> None:
        """Run threads that take the next number, and block on send and on commit."""
        turns = Turns(schedule)
        with ThreadPoolExecutor(self._config.threads) as pool:
            work = [pool.submit(self._run_blocking, turns) for _ in range(self._config.threads)]
            self._began += sum(each.result() for each in work)

    def _run_blocking(self, turns: Callable[[], tuple[int, int] | None]) -> int:
        count = 0
        while (turn := turns()) is not None:
            number, due_ns = turn
            key = self._keys[number % len(self._keys)]
            message = Message(self._config.real_topic, key=key, value=self._pack(due_ns, number))
            tx = self._producer.begin()
            tx.send(message)
            tx.commit()
            self._committed.append(None)
            count += 1
        return count


class TaskClient:
    """Runs transactions in `BenchConfig.tasks` tasks of asyncio; counts commits and failures."""

    def __init__(self, config: BenchConfig, producer: AsyncTransactionProducer) -> None:
        self._config = config
        self._producer = producer
        self._pack = make_packer(config.size_bytes)
        self._keys = make_keys(config.keys)
        self.committed = 0
        self.failures: list[str] = []
        self.first_send_ns = 0

    async def warm_up(self) -> int:
        """Run for warmup_s; return how many warm-up messages were sent."""
        until = time.monotonic() + self._config.warmup_s
        numbers = itertools.takewhile(lambda _: time.monotonic() < until, itertools.count(-1, -1))
        await self._run((number, 0) for number in numbers)
        return self.committed + len(self.failures)

    async def measure(self, *, first_number: int) -> int:
        """Run the lead-in, then the measured messages; return the number of lead-in messages."""
        rate = self._config.rate
        numbers = measured(self._config, first_number=first_number)
        await self._run(due_times(numbers, rate) if rate else ((each, 0) for each in numbers))
        return lead_in(rate)

    async def _run(self, schedule: Iterator[tuple[int, int]]) -> None:
        """Run each number of the schedule when it is due; due at 0 is due at once."""
        await asyncio.gather(*(self._run_task(schedule) for _ in range(self._config.tasks)))
        await self._producer.flush()

    async def _run_task(self, schedule: Iterator[tuple[int, int]]) -> None:
        for number, due_ns in schedule:
            ahead_ns = due_ns - time.monotonic_ns()
            if ahead_ns > 0:
                await asyncio.sleep(ahead_ns / NS_PER_S)
            sent_ns = due_ns or time.monotonic_ns()
            if number == 0:
                self.first_send_ns = sent_ns
            key = self._keys[number % len(self._keys)]
            value = self._pack(sent_ns, number)
            try:
                transaction = self._producer.begin()
                await transaction.send(Message(self._config.real_topic, key=key, value=value))
                await transaction.commit()
            except Exception as error:  # noqa: BLE001  (a failed transaction fails the run)
                self.failures.append(str(error))
            else:
                self.committed += 1


class ArrivalCounter:
    """Counts arrivals. The first arrival of a number counts; each further one is a duplicate."""

    def __init__(self, messages: int) -> None:
        self._seen = bytearray(messages)
        self._ages_ns = array("q")
        self.warm = 0
        self.measured = 0
        self.duplicates = 0
        self.last_ns = 0

    def take(self, values: list[bytes], now_ns: int) -> None:
        """Count one batch of values that were visible at `now_ns`."""
        measured = self.measured
        seen, ages = self._seen, self._ages_ns.append
        for value in values:
            due_ns, number = unpack_head(value)
            if number < 0:
                self.warm += 1
            elif seen[number]:
                self.duplicates += 1
            else:
                seen[number] = 1
                measured += 1
                ages(now_ns - due_ns)
        if measured != self.measured:
            self.measured, self.last_ns = measured, now_ns

    def report(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "measured": self.measured,
            "duplicates": self.duplicates,
            "last_ns": self.last_ns,
            "latency": asdict(latency_of(self._ages_ns)),
        }


def run_client(config: BenchConfig) -> int:
    """Warm up, wait for the signal, measure; return 1 if a transaction failed."""
    signalled = on_sigusr1()
    if config.tasks:
        return asyncio.run(_run_tasks(config, signalled))
    with TransactionProducer(
        producer_group=PRODUCER_GROUP,
        checker=lambda _: Resolution.UNKNOWN,
        **config.producer_settings,
    ) as producer:
        client = Client(config, producer)
        warm = client.warm_up()
        print_fact({"warm": warm})
        signalled.acquire()
        before = client.committed
        lead = client.measure(first_number=-1 - warm)
        _print_measured(client, client.committed - before - lead, lead)
        signalled.acquire()
    return 1 if client.failures else 0


async def _run_tasks(config: BenchConfig, signalled: threading.Semaphore) -> int:
    """Do as `run_client`, with tasks; return 1 if a transaction failed."""

    async def never(_: MessageView) -> Resolution:
        return Resolution.UNKNOWN

    producer = AsyncTransactionProducer(
        producer_group=PRODUCER_GROUP, checker=never, **config.producer_settings
    )
    async with producer:
        tasks = TaskClient(config, producer)
        warm = await tasks.warm_up()
        print_fact({"warm": warm})
        await asyncio.to_thread(signalled.acquire)
        before = tasks.committed
        lead = await tasks.measure(first_number=-1 - warm)
        _print_measured(tasks, tasks.committed - before - lead, lead)
        await asyncio.to_thread(signalled.acquire)
    return 1 if tasks.failures or producer.failed_decisions else 0


def _print_measured(client: Client | TaskClient, committed: int, lead: int) -> None:
    print_fact(
        {
            "committed": committed,
            "lead": lead,
            "first_send_ns": client.first_send_ns,
            "failed": len(client.failures),
        }
    )
    sys.stderr.write("".join(f"{line}\n" for line in client.failures[:_PRINTED_MAX]))


def run_consumer(config: BenchConfig) -> int:
    """Read until SIGTERM and a silence of _SILENCE_S; print the figures in the last line."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer = make_consumer(
        config.bootstrap_servers,
        config.real_topic,
        partitions=config.partitions,
        lively=0 < config.rate <= _LIVELY_RATE,
    )
    sight = ArrivalCounter(config.messages)
    reported = last = time.monotonic()
    while not stopping or time.monotonic() - last < _SILENCE_S:
        batch = consume(consumer, _BATCH_MAX, _POLL_S)
        now_ns = time.monotonic_ns()
        if batch:
            sight.take([message.value() for message in batch], now_ns)
            last = time.monotonic()
        if now_ns / 1e9 - reported > _REPORT_S:
            reported = now_ns / 1e9
            print_fact({"warm": sight.warm, "measured": sight.measured})
    consumer.close()
    print_fact(sight.report())
    return 0


def run_plain_rate(config: BenchConfig) -> int:
    """Warm up, then produce as fast as possible; return 1 if a record was not acknowledged."""
    producer = make_plain_producer(config.bootstrap_servers)
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    rate = 0.0
    for count in (_PLAIN_WARM_MESSAGES, _PLAIN_MESSAGES):
        first_ns = time.monotonic_ns()
        records = (
            (config.plain_topic, pack(first_ns, number), keys[number % len(keys)])
            for number in range(count)
        )
        if not produce_all(producer, records):
            return _not_acknowledged()
        rate = per_second(count, first_ns, time.monotonic_ns())
    print_fact({"per_s": rate})
    return 0


def run_plain_latency(config: BenchConfig) -> int:
    """Send on schedule to the consumer's topic; return 1 if a record was not acknowledged."""
    producer = make_plain_producer(config.bootstrap_servers, linger_ms=0)
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    failed: list[str] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    numbers = itertools.chain(range(-lead_in(config.rate), 0), range(config.messages))
    for number, due_ns in scheduled(numbers, config.rate):
        key = keys[number % len(keys)]
        producer.produce(config.real_topic, pack(due_ns, number), key, on_delivery=on_delivery)
        producer.poll(0)
    if producer.flush(_TAIL_S_MAX) or failed:
        return _not_acknowledged(*failed[:1])
    print_fact({"acknowledged": config.messages})
    return 0


def on_sigusr1() -> threading.Semaphore:
    """Return a semaphore that each SIGUSR1 releases once."""
    signalled = threading.Semaphore(0)
    signal.signal(signal.SIGUSR1, lambda *_: signalled.release())
    return signalled


def _not_acknowledged(*reasons: str) -> int:
    sys.stderr.write(" ".join(["plain: not all records were acknowledged", *reasons]) + "\n")
    return 1


ROLES: dict[str, Callable[[BenchConfig], int]] = {
    "client": run_client,
    "consumer": run_consumer,
    "plain-rate": run_plain_rate,
    "plain-latency": run_plain_latency,
}


if __name__ == "__main__":
    sys.exit(ROLES[sys.argv[1]](BenchConfig.from_json(sys.argv[2])))

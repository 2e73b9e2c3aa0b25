"""The measured client, a separate process: `python -m halfbridge.bench.client <config>`.

The client warms up, prints a JSON line, and waits for SIGUSR1. Then it runs the measured part,
prints a JSON line with its figures, and waits for SIGUSR1 again. During the last wait the bench
reads the process's CPU time and memory.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.bench.config import BenchConfig
from halfbridge.bench.payload import make_keys, make_packer
from halfbridge.bench.schedule import Turns, lead_in, scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRODUCER_GROUP = "bench"
_WARMUP_CHUNK = 2_000  # transactions between two looks at the time
_TAIL_S_MAX = 60.0  # after the last send; a run that takes longer has failed
_TICK_S = 0.001  # how late the last outcome is seen


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
        """Run the lead-in, then the measured messages; return the number of lead-in messages.

        Args:
            first_number: Number of the first lead-in message, below all numbers of the warm-up. The
                lead-in counts down from it, and exists only at a given rate.
        """
        lead = lead_in(self._config.rate)
        numbers = itertools.chain(
            range(first_number, first_number - lead, -1), range(self._config.messages)
        )
        schedule = self._scheduled(numbers) if self._config.rate else self._unpaced(numbers)
        if self._config.threads:
            self._run_threads(schedule)
        else:
            for number, due_ns in schedule:
                self._send_pipelined(number, due_ns)
        self._await_all()
        return lead

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


def main(arguments: list[str]) -> int:
    """Warm up, wait for the signal, measure; return 1 if a transaction failed."""
    config = BenchConfig.from_json(arguments[0])
    told = threading.Semaphore(0)
    signal.signal(signal.SIGUSR1, lambda *_: told.release())
    with TransactionProducer(
        bootstrap_servers=config.bootstrap_servers,
        topic_prefix=config.topic_prefix,
        producer_group=PRODUCER_GROUP,
        topics=[config.real_topic],
        in_flight_max=config.in_flight,
        **config.client_settings,
        checker=lambda _: Resolution.UNKNOWN,
    ) as producer:
        client = Client(config, producer)
        warm = client.warm_up()
        _say({"warm": warm})
        told.acquire()
        before = client.committed
        lead = client.measure(first_number=-1 - warm)
        _say(
            {
                "committed": client.committed - before - lead,
                "lead": lead,
                "first_send_ns": client.first_send_ns,
                "failed": len(client.failures),
            }
        )
        sys.stderr.write("".join(f"{line}\n" for line in client.failures[:3]))
        told.acquire()
    return 1 if client.failures else 0


def _say(fact: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

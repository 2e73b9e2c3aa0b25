"""The bench's client for asyncio: tasks that await each send and each commit."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import TYPE_CHECKING

from halfbridge import AsyncTransactionProducer, Message, MessageView, Resolution
from halfbridge.bench.load import (
    due_times,
    lead_in,
    make_keys,
    make_packer,
    measured,
    print_fact,
)
from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from halfbridge.bench.load import BenchConfig

# As many failures are printed as say what is wrong.
_PRINTED_MAX = 3


class Tasks:
    """Runs transactions in `BenchConfig.tasks` tasks, and counts commits and failures."""

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


async def run_tasks(
    config: BenchConfig, signalled: threading.Semaphore, *, producer_group: str
) -> int:
    """As `roles.run_client`, with tasks; return 1 if a transaction failed."""

    async def never(_: MessageView) -> Resolution:
        return Resolution.UNKNOWN

    producer = AsyncTransactionProducer(
        producer_group=producer_group, checker=never, **config.producer_settings
    )
    async with producer:
        tasks = Tasks(config, producer)
        warm = await tasks.warm_up()
        print_fact({"warm": warm})
        await asyncio.to_thread(signalled.acquire)
        before = tasks.committed
        lead = await tasks.measure(first_number=-1 - warm)
        print_fact(
            {
                "committed": tasks.committed - before - lead,
                "lead": lead,
                "first_send_ns": tasks.first_send_ns,
                "failed": len(tasks.failures),
            }
        )
        sys.stderr.write("".join(f"{line}\n" for line in tasks.failures[:_PRINTED_MAX]))
        await asyncio.to_thread(signalled.acquire)
    return 1 if tasks.failures or producer.failed_decisions else 0

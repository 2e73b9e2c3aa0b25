"""The shipped daemon and the shipped producer, as simulated processes that can be killed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from halfbridge import environment
from halfbridge.bridge import AsyncTransactionProducer, TransactionProducer
from halfbridge.checker.loop.worker import Worker
from halfbridge.checker.metrics import Metrics
from halfbridge.checker.policy import load_policy
from halfbridge.checker.process.settings_topic import settings_record
from halfbridge.checker.process.slots import slot_ids
from halfbridge.checker.process.tracing import span_exporter, worker_tracing
from halfbridge.checker.signatures import daemon_signatures
from halfbridge.checker.status import Status
from halfbridge.testkit.memory.machine import Passing

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Event
    from halfbridge.testkit.memory.machine import Machine
    from halfbridge.testkit.memory.process import Process

# Virtual: a worker joins at once, or when its predecessor's session on the slot has expired.
_READY_S_MAX = 120.0
_STOP_S_MAX = 10.0  # virtual; the daemon's own limit


class MemoryDaemon:
    """`config.workers` workers, started together and killed together."""

    def __init__(self, machine: Machine, config: CheckerConfig) -> None:
        self._machine = machine
        self._config = config
        self._workers: list[_WorkerProcess] = []

    def start(self) -> None:
        """Start the workers, or start them again after `kill`; return when they are ready.

        Raises:
            TimeoutError: they were not ready in time; the test's author acts on the reasons in the
                text.
        """
        slot, count = self._config.slot or "memory", self._config.workers
        self._workers = [
            _WorkerProcess(self._machine, self._config, f"{slot}-{number}")
            for number in range(count)
        ]
        is_ready = Passing(self._machine.broker).until(
            lambda: all(each.status.snapshot().ready for each in self._workers), _READY_S_MAX
        )
        if not is_ready:
            reasons = "; ".join(each.status.snapshot().reason for each in self._workers)
            raise TimeoutError(f"the daemon is not ready after {_READY_S_MAX:g} s: {reasons}")

    def check_running(self) -> None:
        """Return if the daemon runs.

        Raises:
            RuntimeError: it was killed or stopped, or has ended by itself; the test starts it.
        """
        if not self._workers or any(each.has_ended for each in self._workers):
            raise RuntimeError("the daemon does not run: start it")

    def kill(self) -> None:
        """Kill all workers at once; `start` starts them again on the same slots."""
        for each in self._workers:
            self._machine.scheduler.kill(each.process)
        self._workers = []

    def stop(self) -> None:
        """Stop all workers with a clean shutdown."""
        for each in self._workers:
            each.stop.set()
        workers, self._workers = self._workers, []
        Passing(self._machine.broker).until(
            lambda: all(each.has_ended for each in workers), _STOP_S_MAX
        )


class _WorkerProcess:
    """The process of one worker, on its slot."""

    def __init__(self, machine: Machine, config: CheckerConfig, slot: str) -> None:
        self.process: Process = machine.process(f"worker {slot}")
        self.status = Status(_metrics())
        self.has_ended = False
        self._config, self._slot = config, slot
        self._ports = machine.ports(self.process)
        self.stop: Event = self._ports.run.event()
        self._ports.run.start(self._run, "worker")

    def _run(self) -> None:
        config, slot = self._config, self._slot
        worker = Worker(
            config,
            load_policy(config.policy_file, names=config.names),
            ids=slot_ids(slot, topic_prefix=config.topic_prefix),
            status=self.status,
            ports=self._ports,
            signatures=daemon_signatures(config),
            tracing=worker_tracing(config, span_exporter(environment.variables())),
        )
        record = settings_record(config, slot, self.status, self._ports)
        record.start()
        try:
            worker.run(self.stop)
        finally:
            record.stop()
            self.has_ended = True


@cache
def _metrics() -> Metrics:
    """Return metrics for all workers of this process: nobody reads them."""
    return Metrics()


_CLOSE_S = 10.0  # virtual, as long as the real client's close


class MemoryProducer(TransactionProducer):
    """The shipped producer in a simulated process; it dies with `process`."""

    def __init__(self, process: Process, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.process = process

    def close(self, timeout: float = _CLOSE_S) -> None:
        """As TransactionProducer.close; does nothing if the process has died."""
        if not self.process.is_dead:
            super().close(timeout)


class MemoryAsyncProducer(AsyncTransactionProducer):
    """The shipped asynchronous producer in a simulated process; it dies with `process`."""

    def __init__(self, process: Process, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.process = process

    async def close(self, timeout: float = _CLOSE_S) -> None:
        """As AsyncTransactionProducer.close; does nothing if the process has died."""
        if not self.process.is_dead:
            await super().close(timeout)

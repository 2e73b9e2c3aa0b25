"""Workers: each incarnation is a process that runs the shipped loop."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from halfbridge.checker.errors import SlotTakenError
from halfbridge.checker.loop.worker import Worker
from halfbridge.checker.metrics import Metrics
from halfbridge.checker.process.slots import slot_ids
from halfbridge.checker.status import Status
from halfbridge.kafka.errors import ConfigError
from halfbridge.kafka.signatures import NO_SIGNATURES
from tests.ledger_log import outcomes
from tests.simulation import attacker
from tests.simulation.settings import POLICY, PRODUCERS, daemon_config

if TYPE_CHECKING:
    from halfbridge.checker.loop.failures import KafkaTxnFailedError
    from halfbridge.kafka.ports import Event
    from tests.simulation.world import World


class NotedWorker(Worker):
    """The shipped worker; what it does is kept for the trace."""

    world: World
    instance: str

    def _transact(self, now: float) -> None:
        if self.world.is_verbose:
            for number, plan in self._batch.plans.items():
                self.world.note(self.instance, "writes", number, *outcomes(plan))
        super()._transact(now)

    def _committed(self) -> None:
        pairs, plans = self._batch.pairs, self._batch.plans
        super()._committed()
        for pair in pairs:
            records = plans[pair.partition].records
            self.world.note(self.instance, "committed", pair.committed, records)

    def _after_failure(self, error: KafkaTxnFailedError, stop: Event) -> None:
        why = str(error) if error.failure is None else error.failure.name
        self.world.note(self.instance, "failed:", why)
        self.world.shut.update(topic for topic, _ in error.places)  # they may be given up
        super()._after_failure(error, stop)

    def _recover(self, why: str, stop: Event) -> None:
        self.world.note(self.instance, "recovers:", why)
        super()._recover(why, stop)


class WorkerProcess:
    """One incarnation of a worker slot.

    Attributes:
        process: What dies with it.
        instance: Its name in the group.
        paused_until_ms: It is paused until then.
    """

    def __init__(self, world: World, slot: int) -> None:
        choices = world.choices
        self.world = world
        self.instance = f"worker-{slot}"
        self.process, self._ports = world.new_process(f"{self.instance}.{world.next_number()}")
        self.paused_until_ms = 0
        self.has_ended = False
        batches = world.profile.batches
        self._config = daemon_config(
            world.profile,
            batch_records=batches[choices.below(len(batches))],
            producers=PRODUCERS[choices.below(len(PRODUCERS))],
            delivery=world.delivery,
        )
        self._ports.run.start(self._run, "worker")

    def die(self) -> None:
        """Kill the process."""
        self.has_ended = True
        self.world.scheduler.kill(self.process)

    def _run(self) -> None:
        world = self.world
        try:
            worker = world.worker_type(
                self._config,
                POLICY,
                ids=slot_ids(self.instance, topic_prefix=""),
                status=Status(_metrics()),
                ports=self._ports,
                signatures=attacker.DAEMON if world.is_signed else NO_SIGNATURES,
            )
            if isinstance(worker, NotedWorker):
                worker.world, worker.instance = world, self.instance
            worker.run(self._ports.run.event())
        except SlotTakenError:
            world.note(self.instance, "ends: its slot was taken")
        except ConfigError as error:
            world.note(self.instance, "ends:", str(error))
        self.has_ended = True


@cache
def _metrics() -> Metrics:
    """Return metrics for all workers: what they show is nobody's concern here."""
    return Metrics()

"""A run: one thread, one clock, and one seed that draws which process runs next and what fails.

Workers, clients and the Spark sink are the shipped ones, on the broker in memory. A run has two
phases. While anything may fail, nothing wrong may ever be seen. Then everything is healed, and
within a bounded number of rounds all must be decided and have had its effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.settings import RECENT_MS
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.progress import START
from halfbridge.testkit.memory.machine import Machine
from tests.simulation import attacker, stranger, trouble
from tests.simulation.feed import DAEMON_AGE_MS_MAX, Feed
from tests.simulation.judge import Judge
from tests.simulation.network import ChosenNetwork
from tests.simulation.sent import SentJudge
from tests.simulation.settings import (
    GROUPS,
    LATER,
    NAMES,
    PARTITIONS,
    PROFILES,
    BrokenPromiseError,
    new_topics,
)
from tests.simulation.shop import Shop
from tests.simulation.workers import NotedWorker, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.loop.worker import Worker
    from halfbridge.kafka.ports import Ports, TopicPartition
    from halfbridge.serde.headers import Headers
    from halfbridge.testkit.memory.log import Partition
    from halfbridge.testkit.memory.process import Process
    from tests.simulation.choices import Choices
    from tests.simulation.shop import Sent

STEPS = 500
TRANSACTIONS_MAX = 40
# How often tasks of a client process go on before others do: it has one for each transaction, and
# one that serves acknowledgements.
SHOP_STEPS = (4, 8, 16, 16)
# Longer than any run.
LONG_MS = 1 << 40
# Chances of a fault, in thousandths; a run has one of them.
RATES = (0, 10, 25, 60)
PASSED_MS = (5, 5, 5, 10, 20, 50, 100, 300)
# Rounds after everything is healed, and their length, in which all processes run.
ROUNDS_MAX = 400
ROUND_MS = 200
ROUND_STEPS_MAX = 2_000


class World:
    """All there is.

    Args:
        choices: What is drawn.
        worker_type: The class of the workers.
        delivery: The mode of the installation. Nothing is drawn for it, so that a seed draws the
            same in both modes as far as they go alike.
        is_signed: Signatures are demanded, everybody is honest, and somebody attacks.
        is_sent: Clients do not await their decisions, and some close in order.

    Attributes:
        forged: (topic, partition, offset) of what the attacker wrote.
        profile: What the run is like all along.
        rate: Chance of a fault, in thousandths.
        has_late_halves: Half messages may come after their decision. Those that come, or are read,
            later than decisions are remembered become new transactions; so such runs remember them
            to the end (`remembers_ms`).
        lies: Checkers and strangers may contradict what was decided.
        sent: Value -> the half message that has it.
        database: Transaction id -> committed, rolled back, or open (None).
        owners: Transaction id -> the producer group that began it.
        decided: Those whose client knows that it decided, and that nobody has contradicted.
        closed: Those that somebody decided, maybe before all their messages were sent.
        alive: Transactions whose client may still decide.
        contested: Those about which somebody lied.
        feed: The Spark query; None: the run has none.
        deaf: Producer groups whose checkers hang.
        shut: Real topics that were missing or away, or to which rights were missing, for a while.
        known, keys, partitions, offsets: Of a transaction: its client process, the key of its first
            message, its half partition, its acknowledged half offsets.
    """

    def __init__(
        self,
        choices: Choices,
        *,
        worker_type: type[Worker] = NotedWorker,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        is_signed: bool = False,
        is_sent: bool = False,
    ) -> None:
        self.choices = choices
        self.sent_judge = SentJudge() if is_sent else None
        self.delivery = delivery
        self.is_signed = is_signed
        self.forged: set[tuple[str, int, int]] = set()
        self.profile = PROFILES[choices.below(len(PROFILES))]
        has_feed = choices.has_feed and not is_signed  # the sink does not sign
        if has_feed:
            ledger = replace(self.profile.ledger, transaction_age_ms_max=DAEMON_AGE_MS_MAX)
            self.profile = self.profile._replace(ledger=ledger)
        self._actors = FEED_ACTORS if has_feed else ACTORS
        self.worker_type = worker_type
        self.rate = RATES[choices.below(len(RATES))]
        self.lies = choices.below(2) == 1 and not is_signed
        self.has_late_halves = choices.below(2) == 1
        self.trace: list[tuple[Any, ...]] = []
        self.is_verbose = False
        self.steps = 0
        self._numbers = 0
        self.machine = Machine(network=lambda scheduler: ChosenNetwork(scheduler, self))
        self.scheduler, self.broker = self.machine.scheduler, self.machine.broker
        self.broker.coordinator.marks_at_once = False
        for topic in new_topics(self.profile):
            self.broker.create_topic(topic)
        group = self.broker.group(NAMES.daemon_group)
        for number in range(PARTITIONS):
            begin = {(NAMES.half, number): (0, ""), (NAMES.op, number): (0, START.metadata())}
            group.store(group.next_commit(), begin)
        self.sent: dict[bytes, Sent] = {}
        self.database: dict[str, bool | None] = {}
        self.owners: dict[str, str] = {}
        self.decided: list[str] = []
        self.closed: set[str] = set()
        self.alive: set[str] = set()
        self.contested: set[str] = set()
        self.deaf: set[str] = set()
        self.shut = {LATER} if self.profile.refuses else set()
        self.known: dict[str, Shop] = {}
        self.keys: dict[str, bytes | None] = {}
        self.partitions: dict[str, int] = {}
        self.offsets: dict[str, list[int]] = {}
        self.shops = [Shop(self, group, self.next_number()) for group in GROUPS]
        self.workers: list[WorkerProcess | None] = [
            WorkerProcess(self, slot) for slot in range(self.profile.workers)
        ]
        self.zombies: list[WorkerProcess] = []
        self.feed = Feed(self) if has_feed else None
        trouble.begin(self)
        self.judge = Judge(self)

    @property
    def network(self) -> ChosenNetwork:
        """The way to the brokers."""
        network = self.machine.network
        assert isinstance(network, ChosenNetwork)
        return network

    @property
    def now_ms(self) -> int:
        """True time, ms since 1970."""
        return self.broker.now_ms

    def note(self, *what: Any) -> None:
        """Keep what happened, for the trace."""
        self.trace.append((self.steps, self.scheduler.now_ns // 1_000_000, *what))

    def next_number(self) -> int:
        """Return a number that no process has."""
        self._numbers += 1
        return self._numbers

    def new_process(self, name: str) -> tuple[Process, Ports]:
        """Return a new process and its ports."""
        process = self.machine.process(name)
        return process, self.machine.ports(process)

    def partition(self, place: TopicPartition) -> Partition:
        """Return a partition of the broker."""
        return self.broker.partition(place)

    @property
    def remembers_ms(self) -> int:
        """For how long ledgers remember decisions that no rebuild needs (rule 7)."""
        return LONG_MS if self.has_late_halves else RECENT_MS

    # --- the run ---------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> None:
        """Let anything happen, then heal, and judge.

        Raises:
            BrokenPromiseError: a promise was broken.
        """
        while self.steps < steps:
            self._step()
        self.judge.rule(is_final=False)
        self._heal()
        for _ in range(ROUNDS_MAX):
            if self._is_settled():
                break
            self._round()
        else:
            raise BrokenPromiseError(f"not settled {ROUNDS_MAX} rounds after everything was healed")
        self.judge.rule(is_final=True)
        if self.sent_judge is not None:
            self.sent_judge.rule()

    def close(self) -> None:
        """End what is still there."""
        self.machine.close()

    def _step(self) -> None:
        self.steps += 1
        choices = self.choices
        self.pass_time(PASSED_MS[choices.below(len(PASSED_MS))])
        self._actors[choices.below(len(self._actors))](self)

    def pass_time(self, ms: int) -> None:
        """Let time pass."""
        self.scheduler.advance(ms / 1000)
        for worker in self.workers:
            if worker is not None:
                worker.process.is_frozen = worker.paused_until_ms > self.now_ms
        if self.feed is not None:
            self.feed.thaw()

    def go_on(self, process: Process, steps: tuple[int, ...]) -> None:
        """Let some tasks of a process go on, one after the other."""
        for _ in range(steps[self.choices.below(len(steps))]):
            tasks = [task for task in self.scheduler.runnable() if task.process is process]
            if not tasks:
                return
            self.scheduler.step(tasks[self.choices.below(len(tasks))])

    def step_worker(self) -> None:
        """Let one worker go on, or start one where there is none."""
        slot = self.choices.below(len(self.workers))
        worker = self.workers[slot]
        if worker is None or worker.has_ended:
            if self.choices.below(4) == 0:
                self.start(slot)
        else:
            self.go_on(worker.process, self.profile.worker_steps)

    def start(self, slot: int) -> None:
        """Start a new incarnation on a slot; the present one continues as a zombie."""
        before = self.workers[slot]
        if before is not None and not before.has_ended:
            self.zombies.append(before)
        self.workers[slot] = WorkerProcess(self, slot)
        self.note("a worker starts on slot", slot)

    def step_zombie(self) -> None:
        """Let a worker go on whose slot was taken over."""
        self.zombies = [each for each in self.zombies if not each.has_ended]
        if self.zombies:
            zombie = self.zombies[self.choices.below(len(self.zombies))]
            self.go_on(zombie.process, self.profile.worker_steps)

    def step_shop(self) -> None:
        """Let one client process go on, or begin a transaction in one."""
        which = self.choices.below(len(self.shops))
        shop = self.shops[which]
        if shop.has_left:
            self.replace_shop(which)
            return
        is_full = len(self.database) >= TRANSACTIONS_MAX
        if shop.has_room and not is_full and self.choices.below(3) == 0:
            shop.begin()
        self.go_on(shop.process, SHOP_STEPS)

    def replace_shop(self, which: int) -> None:
        """Kill a client process, and start a new one in its place."""
        shop = self.shops[which]
        self.shops[which] = Shop(self, shop.group, self.next_number())
        self.note("client dies:", shop.process.name)
        shop.die()

    def lose(self, process: Process) -> None:
        """Kill a process; does not return to the process itself."""
        for which, shop in enumerate(self.shops):
            if shop.process is process:
                self.replace_shop(which)
        if self.feed is not None:
            self.feed.lost(process)
        for slot, worker in enumerate(self.workers):
            if worker is not None and worker.process is process:
                self.workers[slot] = None
                worker.die()
        self.scheduler.kill(process)  # a zombie

    def step_feed(self) -> None:
        """Let the Spark query go on."""
        assert self.feed is not None
        self.feed.step()

    def step_marker(self) -> None:
        """Have one marker arrive."""
        writable = self.broker.coordinator.writable
        if writable:
            self.broker.coordinator.mark(writable[self.choices.below(len(writable))])

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int:
        """Store a stranger's record without any trouble; return its offset."""
        return self.network.append(place, key, value, headers)

    # --- healing ---------------------------------------------------------------------------

    def _heal(self) -> None:
        """End all faults: paused and dead processes run again, and no process is hostile."""
        self.note("healed")
        self.choices.is_calm = True
        self.lies = False
        self.deaf.clear()
        trouble.open_topics(self)
        for slot, worker in enumerate(self.workers):
            if worker is None or worker.has_ended:
                self.start(slot)
            else:
                worker.paused_until_ms = 0
        if self.feed is not None:
            self.feed.heal()

    def _round(self) -> None:
        self.steps += 1
        for which, shop in enumerate(self.shops):
            if shop.has_left:
                self.replace_shop(which)
        self.pass_time(ROUND_MS)
        coordinator = self.broker.coordinator
        for _ in range(ROUND_STEPS_MAX):
            while writable := coordinator.writable:
                coordinator.mark(writable[0])
            tasks = self.scheduler.runnable()
            if not tasks:
                break
            for task in tasks:
                self.scheduler.step(task)
        for slot, worker in enumerate(self.workers):
            if worker is None or worker.has_ended:
                self.start(slot)
        if self.feed is not None:
            self.feed.revive()

    def _is_settled(self) -> bool:
        """Tell whether all is applied, nothing is held any more, and no reader waits."""
        if any(shop.open for shop in self.shops) or self.network.late:
            return False
        if self.broker.coordinator.markers or not (self.feed is None or self.feed.is_settled):
            return False
        committed = self.broker.group(NAMES.daemon_group).committed
        for number in range(PARTITIONS):
            for topic in (NAMES.half, NAMES.op):
                if committed[topic, number][1] != self.partition((topic, number)).end:
                    return False
        return not any(
            partition.lso < partition.end
            for topic in self.broker.topics.values()
            for partition in topic.partitions
        )


# Which process runs next, by weight.
ACTORS: tuple[Callable[[World], None], ...] = (
    *[World.step_worker] * 18,
    *[World.step_shop] * 10,
    *[World.step_marker] * 5,
    *[World.step_zombie] * 3,
    *[lambda world: world.network.step_late()] * 1,
    *[lambda world: world.judge.watch()] * 1,
    *[trouble.strike] * 2,
    *[lambda world: (attacker.attack if world.is_signed else stranger.speak)(world)] * 2,
)
FEED_ACTORS = (*ACTORS, *[World.step_feed] * 14)

"""A Spark query that runs with the clients: drivers, executors, a responder, and their faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.producer import TransactionProducer
from halfbridge.kafka.errors import BridgeError
from halfbridge.kafka.ports import NewTopic
from halfbridge.spark.checker import SinkChecker
from halfbridge.spark_jobs.sink.errors import PlanMismatchError, ReplayMismatchError
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess
from tests.simulation.feed_driver import Driver
from tests.simulation.feed_files import FEED_TOPICS, Files
from tests.simulation.feed_judge import FeedJudge

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.memory.process import Process
    from tests.simulation.feed_driver import Executor
    from tests.simulation.feed_files import Row
    from tests.simulation.world import World

APP_ID = "feed"
TIMEOUT_MS = 3_000
# Above what the clocks of two partitions differ by, in a run, by so much that a batch is committed.
AGE_MS_MAX = 6_000
# Longer than any run: the daemon gives no batch up whose driver is away for a while.
DAEMON_AGE_MS_MAX = 300_000
REFUSED_WAITS_MS = (0, 0, 500)
ROWS_MAX = 60
CHECK_TIMEOUT_MS = 4_000
STEPS = (4, 8, 16, 16)
PAUSES_MS = (300, 2_000, 7_000)


class Responder:
    """One process that answers the checks of the query."""

    def __init__(self, feed: Feed) -> None:
        self._world = feed.world
        name = f"responder-{feed.world.next_number()}"
        self.process, ports = feed.world.new_process(name)
        self._ports = ports
        self._producer = TransactionProducer(
            checker=SinkChecker(feed.options, SinkProcess(ports)),
            config=BridgeConfig(
                bootstrap_servers="memory",
                producer_group=feed.options.producer_group,
                requests_in_flight_max=5,  # start() measures nothing: fewer steps a seed
                decision_timeout_ms=TIMEOUT_MS,
                check_timeout_ms=CHECK_TIMEOUT_MS,
                check_threads=2,
            ),
            ports=ports,
        )
        ports.run.start(self._start, "start")

    def _start(self) -> None:
        while True:
            try:
                self._producer.start()
            except BridgeError as error:  # noqa: PERF203  (once a process, mostly)
                self._world.note(self.process.name, "does not start", str(error))
                self._ports.run.pause(0.2)
            else:
                return


class Feed:
    """The query of a run.

    Attributes:
        world: The run.
        options: The sink's options.
        files: The checkpoint.
        is_lax: Its store lets one driver write over the plan of another one.
        is_random: The query makes other rows each time.
        judge: The judge of the query.
        driver: The newest driver; None: the query was not started yet.
    """

    def __init__(self, world: World) -> None:
        choices = world.choices
        self.world = world
        self.is_lax = choices.below(4) == 1
        self.is_random = choices.below(4) == 1
        self.options = parse_options(
            {
                "kafka.bootstrap.servers": "memory",
                "app.id": APP_ID,
                "on.mismatch": "keep-first" if self.is_random else "fail",
                "fail.on.refused": "true",
                "refused.wait.ms": str(REFUSED_WAITS_MS[choices.below(len(REFUSED_WAITS_MS))]),
                "check.immunity.ms": "300",
                "batch.age.max.ms": str(AGE_MS_MAX),
                "send.timeout.ms": str(TIMEOUT_MS),
                "commit.timeout.ms": str(TIMEOUT_MS),
                "transaction.messages.max": "2",
            }
        )
        for topic, partitions in FEED_TOPICS.items():
            world.broker.create_topic(NewTopic(topic, partitions, 1, {}))
        self.files = Files()
        self.judge = FeedJudge(world, self)
        self.driver: Driver | None = None
        self._before: list[Driver] = []
        self._responder = Responder(self)
        self._values = 0

    # --- what drivers and executors ask for ----------------------------------------------------

    def has_rows(self) -> bool:
        """Tell whether the source has rows for another batch."""
        return not self.world.choices.is_calm and self.files.end_of(self.files.newest) < ROWS_MAX

    def value_of(self, row: Row) -> bytes:
        """Return the value of a row: its number, and in a query with `rand()` another end."""
        self._values += self.is_random
        return b"%d:%d" % (row.number, self._values)

    def committed(self, batch: int) -> None:
        """Hear that Spark has noted a batch as done."""
        self.judge.note_committed(batch)

    # --- scheduling ----------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        """All processes of the query that live."""
        everybody: list[Driver | Executor | Responder] = [self._responder]
        for driver in self._drivers():
            everybody += [driver, *driver.executors]
        return [each.process for each in everybody if not each.process.is_dead]

    def step(self) -> None:
        """Let the query go on, or have something happen to it."""
        world, choices = self.world, self.world.choices
        if self.driver is None or self.driver.has_ended:
            if choices.below(3) == 0:
                self.start()
        elif world.rate and choices.fault(20 + 2 * world.rate):
            TROUBLES[choices.below(len(TROUBLES))](self)
        for _ in range(STEPS[choices.below(len(STEPS))]):
            processes = self.processes
            tasks = [task for task in world.scheduler.runnable() if task.process in processes]
            if not tasks:
                return
            world.scheduler.step(tasks[choices.below(len(tasks))])

    def start(self) -> None:
        """Start the query; a driver that runs already continues."""
        if self.driver is not None:
            self._before.append(self.driver)
        self._before = [each for each in self._before if self._may_go_on(each)]
        self.driver = Driver(self)
        self.world.note("the query starts:", self.driver.process.name)

    def lost(self, process: Process) -> None:
        """Have a process be replaced that is about to die."""
        if process is self._responder.process:
            self._responder = Responder(self)

    def thaw(self) -> None:
        """Let drivers go on whose pause is over."""
        for driver in self._drivers():
            driver.process.is_frozen = driver.paused_until_ms > self.world.now_ms

    # --- what befalls them ---------------------------------------------------------------------

    def kill_driver(self) -> None:
        """The driver dies; its executors may end what they do."""
        driver = self.driver
        if driver is None or driver.has_ended:
            return
        for executor in driver.executors:
            if self.world.choices.below(2):
                self.world.scheduler.kill(executor.process)
        self.world.note("dies:", driver.process.name)
        self.world.scheduler.kill(driver.process)

    def kill_executor(self) -> None:
        """Kill an executor."""
        busy = [each for driver in self._drivers() for each in driver.executors if each.is_busy]
        if busy:
            executor = busy[self.world.choices.below(len(busy))]
            self.world.note("dies:", executor.process.name)
            self.world.scheduler.kill(executor.process)

    def kill_responder(self) -> None:
        """The responder dies, and another one starts."""
        process = self._responder.process
        self._responder = Responder(self)
        self.world.note("dies:", process.name)
        self.world.scheduler.kill(process)

    def start_second(self) -> None:
        """A second driver starts on the same checkpoint."""
        self.start()

    def pause_driver(self) -> None:
        """Pause a driver, maybe until another one has replaced it."""
        driver = self.driver
        if driver is not None:
            pause_ms = PAUSES_MS[self.world.choices.below(len(PAUSES_MS))]
            driver.paused_until_ms = self.world.now_ms + pause_ms
            self.world.note("paused:", driver.process.name)
            if self.world.choices.below(2):
                self.start()

    # --- healing -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let everybody go on."""
        for driver in self._drivers():
            driver.paused_until_ms = 0

    def revive(self) -> None:
        """Start the query where it has ended, unless an operator has to act first."""
        if not self.is_stuck and (self.driver is None or self.driver.has_ended):
            self.start()

    @property
    def is_stuck(self) -> bool:
        """Whether the query cannot go on: a plan was written over, as the sink says."""
        return self.driver is not None and self.is_of_a_replaced_plan(self.driver.error)

    def is_of_a_replaced_plan(self, error: Exception | None) -> bool:
        """Tell whether an error may come of a plan that another driver has written over.

        A batch that was published is run again from where the plan of the batch before ends now.
        Its own plan is as it was, so the sink sees other rows by the same plan.
        """
        if isinstance(error, PlanMismatchError):
            return self.is_lax
        return isinstance(error, ReplayMismatchError) and error.batch_id - 1 in self.files.replaced

    @property
    def is_settled(self) -> bool:
        """Whether no driver and no executor has anything to do."""
        drivers = self._drivers()
        if any(each.is_busy for driver in drivers for each in _alive(driver)):
            return False
        if not all(driver.is_idle or driver.has_ended for driver in drivers):
            return False
        return self.is_stuck or (self.driver is not None and self.driver.is_idle)

    def _drivers(self) -> list[Driver]:
        return [*self._before, *([] if self.driver is None else [self.driver])]

    def _may_go_on(self, driver: Driver) -> bool:
        return not driver.has_ended or any(each.is_busy for each in _alive(driver))


def _alive(driver: Driver) -> list[Executor]:
    return [each for each in driver.executors if not each.process.is_dead]


TROUBLES: tuple[Callable[[Feed], None], ...] = (
    Feed.kill_driver,
    Feed.kill_driver,
    Feed.kill_executor,
    Feed.kill_responder,
    Feed.start_second,
    Feed.pause_driver,
)

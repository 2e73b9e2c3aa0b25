"""A whole installation inside a test's own process: brokers, daemon, clients and time in memory.

    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer("order-service", checker=check) as producer:
            ...
            stack.advance(seconds=6)  # checks are due
        assert stack.read_committed(topic)

Nothing needs Java, Docker or a thread. Producer and daemon are the shipped ones; the brokers, the
clocks and the threads below them are those of `halfbridge.testkit.memory.machine`. With pytest take
the fixture `halfbridge_memory`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.config import CheckerConfig
from halfbridge.testkit.memory.crash import Crash, Crashes, WatchedKafka
from halfbridge.testkit.memory.daemon import MemoryDaemon
from halfbridge.testkit.memory.installation import DeadMessage, Installation
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.passing import Passing
from halfbridge.testkit.memory.producer import MemoryProducer
from halfbridge.testkit.memory.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from halfbridge.bridge import Answer, MessageView, Resolution
    from halfbridge.testkit.history import ReadRecord

PARTITIONS = 2  # the fewest with which order across partitions is not by chance
ADDRESS = "memory"
# Virtual. Checks are asked after 6 s and 30 s; a client that died keeps its group for 6 s.
WAIT_S_MAX = 600.0
_SAME = ("bootstrap_servers", "topic_prefix", "transaction_timeout_ms", "transaction_age_ms_max")


class MemoryStack:
    """An installation of its own, with a daemon that serves it. A context manager.

    Not thread-safe: everything happens in the thread that made the stack. Virtual time passes only
    while something waits, and in `advance`. Ages, checks and limits are those of production.

    Args:
        topic_prefix: Prefix of the internal topics.
        partitions: Of half and op topic.
        settings: Any field of halfbridge.checker.config.CheckerConfig, such as check_interval_ms
            or workers.
    """

    def __init__(
        self, *, topic_prefix: str = "", partitions: int = PARTITIONS, **settings: Any
    ) -> None:
        self.config = CheckerConfig(
            bootstrap_servers=ADDRESS, topic_prefix=topic_prefix, **settings
        )
        self._partitions = partitions
        self._stack = ExitStack()
        self._started: _Started | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Return the address that settings show; nothing listens there."""
        return self.config.bootstrap_servers

    @property
    def topic_prefix(self) -> str:
        """Return the prefix of the internal topics."""
        return self.config.topic_prefix

    @property
    def daemon(self) -> MemoryDaemon:
        """Return the daemon, to kill it and to start it again."""
        return self._parts.daemon

    @property
    def machine(self) -> Machine:
        """Return the brokers, processes and clocks below, for tests of other trouble."""
        return self._parts.machine

    def start(self) -> Self:
        """Make the topics and start the daemon; return when it is ready."""
        try:
            machine = self._stack.enter_context(Machine())
            names = self.config.names
            crashes = Crashes(machine.scheduler, names)
            self._stack.callback(crashes.disarm)
            installation = Installation(machine.broker, names, partitions=self._partitions)
            daemon = MemoryDaemon(machine, self.config)
            self._started = _Started(machine, installation, daemon, crashes)
            daemon.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End everything. Idempotent."""
        self._stack.close()
        self._started = None

    def create_topic(self, name: str, *, partitions: int = 1) -> str:
        """Make a real topic, and return its name."""
        self._parts.installation.create_topic(name, partitions=partitions)
        return name

    def producer(
        self,
        producer_group: str,
        *,
        checker: Callable[[MessageView], Resolution | Answer],
        **settings: Any,
    ) -> MemoryProducer:
        """Return a producer of this installation, not started yet: use it in a `with` block.

        Each producer is a process of its own: the others live on when it dies.

        Args:
            producer_group: Name of the group; its check topic is made.
            checker: Answers checks.
            settings: As TransactionProducer takes them, `topics` too.
        """
        shared = {name: getattr(self.config, name) for name in _SAME}
        shared["key_file"] = str(self.config.key_file or "")
        arguments = {**shared, "producer_group": producer_group, **settings, "checker": checker}
        return self._new_producer(arguments)

    # --- time -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, and all that is due by then happen; 72 h take about a second.

        What is begun at the last moment is finished: half a second more may pass.
        """
        self._parts.passing.advance(seconds)

    def wait_until_decided(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return once no transaction is undecided, and what was decided is visible.

        Args:
            timeout_s: Virtual.

        Raises:
            TimeoutError: it names the partitions in which something is left.
            RuntimeError: the daemon does not run.
        """
        parts = self._parts
        parts.daemon.check_running()
        if not parts.passing.until(lambda: not parts.installation.left(), timeout_s):
            left = "; ".join(parts.installation.left())
            raise TimeoutError(f"not decided within {timeout_s:g} s: {left}")

    # --- what is there --------------------------------------------------------------------------

    def read_committed(
        self, *topics: str, count: int = 0, timeout_s: float = WAIT_S_MAX
    ) -> list[ReadRecord]:
        """Return what consumers see of some topics, from their start; wait until `count` are there.

        What is under way is finished first.

        Raises:
            TimeoutError: there were fewer than `count` in time, which is virtual.
        """
        parts = self._parts

        def read() -> list[ReadRecord]:
            return [record for topic in topics for record in parts.installation.read(topic)]

        parts.passing.settle()
        if len(read()) < count:
            parts.passing.until(lambda: len(read()) >= count, timeout_s)
        records = read()
        if len(records) < count:
            raise TimeoutError(f"{len(records)} of {count} records within {timeout_s:g} s")
        return records

    def dead_letters(self) -> list[DeadMessage]:
        """Return what was given up, with the reasons."""
        self._parts.passing.settle()
        return self._parts.installation.dead_letters()

    def undecided(self) -> list[str]:
        """Return the ids of transactions that nobody has decided, oldest first."""
        self._parts.passing.settle()
        return self._parts.installation.undecided()

    # --- crashes --------------------------------------------------------------------------------

    def crash_at(self, step: Step | None) -> Crash:
        """Have the next client that comes to `step` die there: `with stack.crash_at(step): ...`.

        The block ends there; what its code does on the way out has no effect. Its Kafka clients go
        dead, SQLAlchemy's connections that it holds close uncommitted, and no statement runs. Other
        databases are not known: they roll back only where ProcessDeadError leaves their block.

        Args:
            step: None: nowhere, so that the same test has a run without a crash.

        Raises:
            CrashNotReachedError (at the end of the block): the code did not come to the step.
        """
        return self._parts.crashes.arm(step)

    def mark(self, step: Step = Step.AFTER_LOCAL_COMMIT) -> None:
        """Say that the code is at a step of its local transaction, where no fence says so.

        Raises:
            ProcessDeadError: the client that sent last was to die there.
        """
        self._parts.crashes.reach(step)

    @property
    def deaths(self) -> int:
        """How many clients have died at a step so far."""
        return self._parts.crashes.deaths

    @property
    def has_crashed(self) -> bool:
        """Whether a client has died, and none was started in its place."""
        return bool(self._parts.dead())

    def restart(self) -> MemoryProducer:
        """Start a new client in place of the one that died last; return it, started.

        The new client has the same group, checker and settings, and answers checks. The stack
        closes it at its end.

        Raises:
            RuntimeError: no client has died.
        """
        parts = self._parts
        parts.crashes.disarm()
        dead = parts.dead()
        if not dead:
            raise RuntimeError("no client has died: see crash_at")
        parts.made.remove(dead[-1])
        producer = self._new_producer(dead[-1][1])
        producer.start()
        self._stack.callback(producer.close)
        return producer

    # --- parts ----------------------------------------------------------------------------------

    @property
    def _parts(self) -> _Started:
        if self._started is None:
            raise RuntimeError("this stack is not started; use `with` or start()")
        return self._started

    def _new_producer(self, arguments: dict[str, Any]) -> MemoryProducer:
        parts = self._parts
        machine = parts.machine
        process = machine.process(f"{arguments['producer_group']} {len(parts.made)}")
        kafka = WatchedKafka(parts.crashes, machine.broker, machine.network, process)
        ports = replace(machine.ports(process), kafka=kafka)
        producer = MemoryProducer(process, ports=ports, **arguments)
        parts.made.append((producer, arguments))
        return producer

    def __enter__(self) -> Self:
        """Start this."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop this."""
        self.stop()


class _Started:
    """What there is while a stack is started."""

    def __init__(
        self, machine: Machine, installation: Installation, daemon: MemoryDaemon, crashes: Crashes
    ) -> None:
        self.machine = machine
        self.installation = installation
        self.daemon = daemon
        self.crashes = crashes
        self.passing = Passing(machine.broker)
        self.made: list[tuple[MemoryProducer, dict[str, Any]]] = []

    def dead(self) -> list[tuple[MemoryProducer, dict[str, Any]]]:
        """Return the clients that have died and were not replaced."""
        return [made for made in self.made if made[0].process.is_dead]

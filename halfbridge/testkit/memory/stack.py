"""A whole installation inside a test's own process: brokers, daemon, clients and time in memory.

    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer("order-service", checker=check) as producer:
            ...
            stack.advance(seconds=6)  # checks are due
        assert stack.read_committed(topic)

Nothing needs Java, Docker or a thread. Producer and daemon are the shipped ones; their brokers,
clocks and threads are simulated by `halfbridge.testkit.memory.machine`. With pytest use the fixture
`halfbridge_memory`.

`every_crash` runs one test once for each step at which its client may die.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.checker.admin.shape import Layout, wanted_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.avro import DEAD_LETTER, OP
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import DEAD, parse_half
from halfbridge.serde.progress import START
from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.memory.crash import Crash, Crashes, CrashNotReachedError, Step, WatchedKafka
from halfbridge.testkit.memory.loop import VirtualLoop, run_on
from halfbridge.testkit.memory.machine import Machine, Passing
from halfbridge.testkit.memory.programs import (
    MemoryAsyncProducer,
    MemoryDaemon,
    MemoryProducer,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

    from typing_extensions import Self

    from halfbridge.bridge import Answer, MessageView, Resolution
    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.serde.records import DeadLetter, Op
    from halfbridge.serde.topics import TopicNames
    from halfbridge.testkit.memory.broker import Broker
    from halfbridge.testkit.memory.log import Record

T = TypeVar("T")
AnyProducer = TypeVar("AnyProducer", MemoryProducer, MemoryAsyncProducer)
_Made = tuple["MemoryProducer | MemoryAsyncProducer", dict[str, Any]]
PARTITIONS = 2  # the fewest with which order across partitions is not by chance
ADDRESS = "memory"
# Virtual. Checks are sent after 6 s and 30 s; a dead client's session lasts 6 s.
WAIT_S_MAX = 600.0
_SAME = ("bootstrap_servers", "topic_prefix", "transaction_timeout_ms", "transaction_age_ms_max")


class MemoryStack:
    """An installation of its own, with a daemon that serves it. A context manager.

    Not thread-safe: everything happens in the thread that made the stack. Virtual time passes only
    while something waits, and in `advance`. Ages, checks and limits are those of production.

    Args:
        topic_prefix: Prefix of the internal topics.
        partitions: Of the half topic, and of the op topic.
        settings: Any field of halfbridge.checker.config.CheckerConfig, such as check_interval_ms
            or workers.

    Raises:
        ConfigError: a setting is wrong; the test's author corrects it.
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
        """Return the simulated brokers, processes and clocks, for tests of other faults."""
        return self._parts.machine

    def start(self) -> Self:
        """Create the topics and start the daemon; return when it is ready."""
        try:
            machine = self._stack.enter_context(Machine())
            names = self.config.names
            crashes = Crashes(machine, names)
            self._stack.callback(crashes.disarm)
            installation = Installation(machine.broker, names, partitions=self._partitions)
            daemon = MemoryDaemon(machine, self.config)
            self._started = _Started(
                machine, installation, daemon, crashes, Passing(machine.broker)
            )
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
        """Create a real topic, and return its name."""
        self._parts.installation.create_topic(name, partitions=partitions)
        return name

    def producer(
        self,
        producer_group: str,
        *,
        checker: Callable[[MessageView], Resolution | Answer],
        **settings: object,
    ) -> MemoryProducer:
        """Return a producer of this installation, not started yet: use it in a `with` block.

        Each producer is a process of its own: the others live on when it dies.

        Args:
            producer_group: Name of the group; its check topic is created.
            checker: Answers checks.
            settings: Those of TransactionProducer, `topics` too.
        """
        return self._new_producer(
            self._arguments(producer_group, settings, checker), MemoryProducer
        )

    def async_producer(
        self,
        producer_group: str,
        *,
        checker: Callable[[MessageView], Awaitable[Resolution | Answer]],
        **settings: object,
    ) -> MemoryAsyncProducer:
        """Return an asynchronous producer: use it in an `async with` block, inside `run`.

        Arguments are those of `producer`.
        """
        return self._new_producer(
            self._arguments(producer_group, settings, checker), MemoryAsyncProducer
        )

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end as `asyncio.run` does, on a loop in virtual time.

        `asyncio.sleep` takes no time in reality. Executors, `asyncio.to_thread` too, run their
        calls in the test's own thread. While aiosqlite works, virtual time passes no faster than
        real time; it does not wait for threads of other libraries.

        Raises:
            TimeoutError: no task of the loop could run for WAIT_S_MAX virtual seconds; the test's
                author corrects what waits.
        """
        return run_on(VirtualLoop(self._parts.machine, WAIT_S_MAX), main)

    # --- time -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Advance virtual time and do all that is due by then; 72 h take about a second.

        Work that begins at the last moment is finished: half a second more may pass.
        """
        self._parts.passing.advance(seconds)

    def wait_until_decided(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return once every transaction is decided, and its result is visible.

        Args:
            timeout_s: In virtual time.

        Raises:
            TimeoutError: not in time; the text names the unfinished partitions; the test's author
                finds out why.
            RuntimeError: the daemon does not run; the test starts it.
        """
        parts = self._parts
        parts.daemon.check_running()
        if not parts.passing.until(lambda: not parts.installation.left(), timeout_s):
            left = "; ".join(parts.installation.left())
            raise TimeoutError(f"not decided within {timeout_s:g} s: {left}")

    # --- reading --------------------------------------------------------------------------------

    def read_committed(
        self, *topics: str, count: int = 0, timeout_s: float = WAIT_S_MAX
    ) -> list[ReadRecord]:
        """Return the committed records of topics from their start; wait until there are `count`.

        Work under way is finished first. Records of one partition are in the order of offsets.

        Raises:
            TimeoutError: there were fewer than `count` within `timeout_s` (virtual); the test's
                author finds out why.
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
        """Return the dead letters, with their reasons."""
        self._parts.passing.settle()
        return self._parts.installation.dead_letters()

    def undecided(self) -> list[str]:
        """Return the ids of undecided transactions, oldest first."""
        self._parts.passing.settle()
        return self._parts.installation.undecided()

    # --- crashes --------------------------------------------------------------------------------

    def crash_at(self, step: Step | None) -> Crash:
        """Kill the next client that reaches `step`: `with stack.crash_at(step): ...`.

        The block ends there; what its code does while it unwinds has no effect. The client's Kafka
        clients die, its SQLAlchemy connections close uncommitted, and no statement runs. Other
        databases are not detected: they roll back only where ProcessDeadError leaves their block.

        Args:
            step: None: nowhere, so that the same test has a run without a crash.

        Raises:
            CrashNotReachedError (at the end of the block): the code did not reach the step; the
                test's author corrects the step or the code.
        """
        return self._parts.crashes.arm(step)

    def mark(self, step: Step = Step.AFTER_LOCAL_COMMIT) -> None:
        """Mark a step of a local transaction that no fence detects.

        Raises:
            ProcessDeadError: the client that sent last was to die there; nobody acts, and the test
                continues after the block of `crash_at`.
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
        closes it at its end. In place of an asynchronous client it is a blocking one, outside
        `run`, which calls the `async def` checker by `asyncio.run`.

        Raises:
            RuntimeError: no client has died; the test's author calls it after the block of
                `crash_at`.
        """
        parts = self._parts
        parts.crashes.disarm()
        dead = parts.dead()
        if not dead:
            raise RuntimeError("no client has died: see crash_at")
        parts.made.remove(dead[-1])
        died, arguments = dead[-1]
        if isinstance(died, MemoryAsyncProducer):
            arguments = {**arguments, "checker": partial(_run_check, arguments["checker"])}
        producer = self._new_producer(arguments, MemoryProducer)
        producer.start()
        self._stack.callback(producer.close)
        return producer

    # --- parts ----------------------------------------------------------------------------------

    @property
    def _parts(self) -> _Started:
        if self._started is None:
            raise RuntimeError("this stack is not started; use `with` or start()")
        return self._started

    def _arguments(
        self, producer_group: str, settings: dict[str, Any], checker: Callable[..., object]
    ) -> dict[str, Any]:
        shared = {name: getattr(self.config, name) for name in _SAME}
        shared["key_file"] = str(self.config.key_file or "")
        return {**shared, "producer_group": producer_group, **settings, "checker": checker}

    def _new_producer(self, arguments: dict[str, Any], kind: type[AnyProducer]) -> AnyProducer:
        parts = self._parts
        machine = parts.machine
        process = machine.process(f"{arguments['producer_group']} {len(parts.made)}")
        kafka = WatchedKafka(parts.crashes, machine.broker, machine.network, process)
        ports = replace(machine.ports(process), kafka=kafka)
        producer = kind(process, ports=ports, **arguments)
        parts.made.append((producer, arguments))
        return producer

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(slots=True, eq=False)
class _Started:
    """The parts of a started stack."""

    machine: Machine
    installation: Installation
    daemon: MemoryDaemon
    crashes: Crashes
    passing: Passing
    made: list[_Made] = field(default_factory=list)

    def dead(self) -> list[_Made]:
        """Return the clients that have died and were not replaced."""
        return [made for made in self.made if made[0].process.is_dead]


def _run_check(check: Callable[[Any], Coroutine[Any, Any, Any]], view: MessageView) -> object:
    return asyncio.run(check(view))


# Virtual: an undecided transaction is given up after 72 h (transaction_age_ms_max).
_SETTLED_S_MAX = 80 * 3_600.0
Said = tuple[object, object]


class DisagreementError(AssertionError):
    """After a crash the database and the topic disagree; the service is corrected."""


def every_crash(
    test: Callable[[MemoryStack, Step | None], Callable[[], Said]],
    *,
    steps: Iterable[Step] = tuple(Step),
    **settings: Any,
) -> None:
    """Run `test` without a crash, then once for each step; assert that database and topic agree.

    Each run has a new installation, and should have a new database. After the crash a new client is
    started, and time passes until every transaction is decided.

    Args:
        test: Called with the installation and the step. `test` runs the code that is to die in
            `with stack.crash_at(step)`, and returns a function. That function is called once every
            transaction is decided, and returns the state in the database and that in the topic.
        steps: Those that the code reaches.
        settings: Those of MemoryStack.

    Raises:
        DisagreementError: the states differ, and the service is corrected; or the database's is
            empty without a crash, so that no run would prove anything, and the test is corrected.
        CrashNotReachedError: the code never reaches a step; the test's author leaves the step out,
            or corrects the code.
    """
    for step in (None, *steps):
        name = "no crash" if step is None else step.name
        with MemoryStack(**settings) as stack:
            says = test(stack, step)
            if step is not None and not stack.deaths:
                raise CrashNotReachedError(f"the test runs nothing in stack.crash_at({step})")
            if stack.has_crashed:
                stack.restart()
            stack.wait_until_decided(_SETTLED_S_MAX)
            database, topic = says()
        if database != topic:
            raise DisagreementError(f"{name}: the database says {database!r}, the topic {topic!r}")
        if step is None and not database:
            raise DisagreementError(f"{name}: the database says {database!r}: nothing is tested")


_DECISIONS = frozenset((OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD))


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A record of the dead-letter topic.

    Attributes:
        transaction_id: Of the transaction that was given up; empty where none can be read.
        letter: Why the record is there.
        record: Key, value and headers as they were given, and the daemon's own headers.
    """

    transaction_id: str
    letter: DeadLetter
    record: ReadRecord


class Installation:
    """Topics of one installation on brokers in memory."""

    def __init__(self, broker: Broker, names: TopicNames, *, partitions: int) -> None:
        self._broker = broker
        self._names = names
        self._numbers = range(partitions)
        for shape in wanted_topics(names, Layout(partitions=partitions, replication_factor=1)):
            settings = {each.key: each.value for each in shape.settings}
            broker.create_topic(NewTopic(shape.name, shape.partitions, 1, settings))
        group = broker.group(names.daemon_group)
        group.store(
            group.next_commit(),
            {
                **{(names.half, number): (START.half, "") for number in self._numbers},
                **{(names.op, number): (START.op, START.metadata()) for number in self._numbers},
            },
        )

    def create_topic(self, name: str, *, partitions: int) -> None:
        self._broker.create_topic(NewTopic(name, partitions, 1, {}))

    def read(self, topic: str) -> list[ReadRecord]:
        """Return the committed records of a topic, per partition in offset order."""
        return [_read(record) for record in self._records(topic)]

    def dead_letters(self) -> list[DeadMessage]:
        """Return the records of the dead-letter topic, without an operator's marks."""
        return [
            DeadMessage(_life(record)[0], _letter(record), _read(record))
            for record in self._records(self._names.dead)
            if (record.headers() or [("", None)])[-1][0] == DEAD
        ]

    def undecided(self) -> list[str]:
        """Return the ids of undecided transactions, in the order of half offsets.

        These have a half message at or above the daemon's committed offset, and no COMMIT, ROLLBACK
        or DISCARD in the op topic.
        """
        decided = {
            (op.transaction_id, op.resume_count)
            for record in self._records(self._names.op)
            if (op := _op(record)) is not None and op.kind in _DECISIONS
        }
        lives = dict.fromkeys(
            life
            for record in self._records(self._names.half)
            if (record.offset() or 0) >= self._done((self._names.half, record.partition() or 0))
            if (life := _life(record))[0]
        )
        return [life[0] for life in lives if life not in decided]

    def left(self) -> list[str]:
        """Return one line for each partition with something undecided, or not yet visible."""
        return [
            f"{topic}[{number}] is done up to {done} of {end}"
            for topic in (self._names.half, self._names.op)
            for number in self._numbers
            if (done := self._done((topic, number)))
            < (end := self._broker.partition((topic, number)).end)
        ]

    def _done(self, place: TopicPartition) -> int:
        return self._broker.group(self._names.daemon_group).committed[place][1]

    def _records(self, topic: str) -> Iterator[Record]:
        for partition in self._broker.topic(topic).partitions:
            records, _ = partition.read(partition.start, partition.end)
            yield from records


def _read(record: Record) -> ReadRecord:
    return ReadRecord(
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        headers=tuple(record.headers() or ()),
    )


def _letter(record: Record) -> DeadLetter:
    return DEAD_LETTER.decode(dict(record.headers() or ()).get(DEAD) or b"")


def _op(record: Record) -> Op | None:
    try:
        return OP.decode(record.value() or b"")
    except SerdeError:
        return None


def _life(record: Record) -> tuple[str, int]:
    """Return id and resume count of a half record's transaction; an empty id: it cannot be read."""
    try:
        half = parse_half(record.headers())[0]
    except SerdeError:
        return "", 0
    return half.transaction_id, half.resume_count

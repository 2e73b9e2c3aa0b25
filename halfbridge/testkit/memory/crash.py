"""Deaths of a client process at chosen steps of its code.

The user's code runs in the test itself, so its process dies in two moves. First, all that the
process holds goes dead at once: its Kafka clients, its tasks, its database connections. Then the
call that reached the step raises ProcessDeadError. The error alone would not do. On its way out
the error runs `except` and `finally` blocks, and the end of each `with` block. What these blocks
call of the dead process raises again, so that they decide nothing and write nothing.

Database connections are closed uncommitted. Only SQLAlchemy's are known. They are watched from
`Crashes.arm` to the end of the block.
"""

from __future__ import annotations

import sys
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbridge.serde.avro import OP
from halfbridge.serde.records import OpSource
from halfbridge.testkit.memory.machine import MemoryKafka, Passing
from halfbridge.testkit.memory.process import ProcessDeadError
from halfbridge.testkit.memory.writer import MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from sqlalchemy import Connection, Dialect
    from typing_extensions import Self

    from halfbridge.kafka.ports import ClientError, DeliveryCallback, SentRecord
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.topics import TopicNames
    from halfbridge.testkit.memory.machine import Machine
    from halfbridge.testkit.memory.process import Process


# Virtual time, longer than a decision's time-out.
_STORED_S_MAX = 30.0


class CrashNotReachedError(AssertionError):
    """The code never came to the step at which it was to die; the test's author corrects either."""


class Crash:
    """A death to come, or one that has come. A context manager: the code that dies is its block.

    Whatever leaves the block after the death is swallowed, since a dead process tells nobody.

    Attributes:
        step: Where; None: nowhere, so that the code runs to its end.
        process: What has died; None: nothing yet.
    """

    def __init__(self, crashes: Crashes, step: Step | None) -> None:
        self._crashes = crashes
        self.step = step
        self.process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """End the block; raises as `check_reached` where the code survived it."""
        if kind is None and self.step is Step.AFTER_DECISION_SENT:
            self._crashes.await_decisions()
        self._crashes.disarm()
        if self.process is not None:
            return True
        if kind is None:
            self.check_reached()
        return False

    def check_reached(self) -> None:
        """Check that a wanted death has come.

        Raises CrashNotReachedError: it has not; the test's author corrects step or code.
        """
        if self.step is not None and self.process is None:
            raise CrashNotReachedError(
                f"the code never came to {self.step.name} ({self.step.value}): without a fence,"
                f" call stack.mark(Step.{self.step.name}) where the local transaction commits"
            )


class Crashes:
    """What is to die next, and who comes to which step; `deaths` counts those that died at one."""

    def __init__(self, machine: Machine, names: TopicNames) -> None:
        self.deaths = 0
        self.unstored: Counter[Process] = Counter()  # decisions that were sent
        self._scheduler = machine.scheduler
        self._passing = Passing(machine.broker)
        self._names = names
        self._crash: Crash | None = None
        self._last: Process | None = None  # who sent last: whose local transaction runs
        self._databases = _Databases(self)

    def arm(self, step: Step | None) -> Crash:
        """Have the next process that comes to `step` die there."""
        self.disarm()
        self._crash = crash = Crash(self, step)
        self._databases.watch()
        return crash

    def disarm(self) -> None:
        """Let nobody die any more; who is dead stays so."""
        self._databases.unwatch()
        self._crash = None

    @property
    def is_over(self) -> bool:
        """Whether the death has come, and the dead code is still on its way out."""
        return self._crash is not None and self._crash.process is not None

    def check_alive(self) -> None:
        """Stop the test's own code where it goes on after its process died.

        Raises ProcessDeadError: it does; nobody acts.
        """
        if self.is_over and self._scheduler.current is None:
            raise ProcessDeadError("the process was killed: it works on no database any more")

    def reach(self, step: Step, process: Process | None = None) -> None:
        """Say that a process (None: the one that sent last) comes to a step.

        Raises:
            ProcessDeadError: it died there; nobody acts, and the test goes on behind the block of
                `crash_at`.
        """
        crash, process = self._crash, process or self._last
        if crash is None or crash.step is not step or crash.process is not None:
            return
        if process is None or process.is_dead:
            return
        crash.process = process
        self.deaths += 1
        self._databases.close()
        self._scheduler.kill(process)
        raise ProcessDeadError(f"{process.name} was killed {step.value}")

    def await_decisions(self) -> None:
        """Let time pass until the decisions that the code did not await are stored."""
        self._passing.until(lambda: self.is_over or not self._are_unstored(), _STORED_S_MAX)

    def _are_unstored(self) -> bool:
        return any(count for process, count in self.unstored.items() if not process.is_dead)

    def sends(self, process: Process) -> None:
        """Note who is about to send."""
        self._last = process

    def kind_of(self, topic: str, value: bytes | None) -> str:
        """Return what a client sends: "half", "decision", or "" for all else."""
        if topic == self._names.half:
            return "half"
        if topic != self._names.op:
            return ""
        return "decision" if OP.decode(value or b"").source is OpSource.PRODUCER else ""


class WatchedWriter(MemoryWriter):
    """The writer of a client whose process may die."""

    def __init__(self, crashes: Crashes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._crashes = crashes

    def produce(  # noqa: PLR0917  (as the port has it)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        self._scheduler.check(self.process)
        steps = _STEPS.get(self._crashes.kind_of(topic, value))
        if steps is None:
            super().produce(topic, value, key, partition, on_delivery, timestamp_ms, headers)
            return
        before, after = steps
        self._crashes.sends(self.process)
        self._crashes.reach(before, self.process)

        def acknowledged(error: ClientError | None, record: SentRecord) -> None:
            if after is Step.AFTER_DECISION_SENT:
                self._crashes.unstored[self.process] -= 1
            if error is None:
                self._crashes.reach(after, self.process)
            on_delivery(error, record)

        super().produce(topic, value, key, partition, acknowledged, timestamp_ms, headers)
        if after is Step.AFTER_DECISION_SENT:
            self._crashes.unstored[self.process] += 1


class Step(Enum):
    """Where the code of a message transaction may be when its process dies.

    The steps of a local transaction are known of `halfbridge.sql.Fence`; elsewhere the code calls
    `MemoryStack.mark` there.
    """

    BEFORE_HALF = "before a half message is sent"
    AFTER_HALF_ACK = "after a half message is stored"
    BEFORE_LOCAL_COMMIT = "before the local transaction commits"
    AFTER_LOCAL_COMMIT = "after the local transaction has committed"
    BEFORE_DECISION = "before COMMIT or ROLLBACK is sent"
    AFTER_DECISION_SENT = "after COMMIT or ROLLBACK is stored, and before anybody knows"


_STEPS: Mapping[str, tuple[Step, Step]] = {
    "half": (Step.BEFORE_HALF, Step.AFTER_HALF_ACK),
    "decision": (Step.BEFORE_DECISION, Step.AFTER_DECISION_SENT),
}


class WatchedKafka(MemoryKafka):
    """Makes the clients of a process that may die."""

    def __init__(self, crashes: Crashes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._crashes = crashes

    def writer(self, properties: Mapping[str, Any]) -> WatchedWriter:
        return WatchedWriter(self._crashes, *self._parts, properties)


class _Databases:
    """Listens to all engines of this process, while it watches."""

    def __init__(self, crashes: Crashes) -> None:
        self._crashes = crashes
        self._open: set[Connection] = set()
        self._handlers = {
            "begin": self._on_begin,
            "before_cursor_execute": self._on_statement,
            "commit": self._on_commit,
            "rollback": self._on_rollback,
        }
        self._is_watching = False

    def watch(self) -> None:
        if "sqlalchemy" not in sys.modules or self._is_watching:
            return
        from sqlalchemy import Engine, event  # noqa: PLC0415  # an extra

        for name, handler in self._handlers.items():
            event.listen(Engine, name, handler)
        self._is_watching = True

    def unwatch(self) -> None:
        if not self._is_watching:
            return
        from sqlalchemy import Engine, event  # noqa: PLC0415  (SQLAlchemy is optional)

        for name, handler in self._handlers.items():
            event.remove(Engine, name, handler)
        self._is_watching = False
        self._open.clear()

    def close(self) -> None:
        """Close what is open, uncommitted."""
        connections, self._open = self._open, set()
        for connection in connections:
            if connection.closed or connection.invalidated:
                continue
            if _is_in_memory(connection):  # closed, the database itself would be gone
                connection.connection.rollback()
            else:
                connection.invalidate()

    def _on_begin(self, connection: Connection) -> None:
        self._open.add(connection)

    def _on_statement(self, *_: Any) -> None:
        self._crashes.check_alive()

    def _on_commit(self, connection: Connection) -> None:
        from halfbridge.sql.guards import commits_fence_row  # noqa: PLC0415  (SQLAlchemy is optional)

        self._crashes.check_alive()
        if commits_fence_row(connection):
            self._crashes.reach(Step.BEFORE_LOCAL_COMMIT)
            self._follow(connection.dialect)
        self._open.discard(connection)

    def _on_rollback(self, connection: Connection) -> None:
        self._open.discard(connection)

    def _follow(self, dialect: Dialect) -> None:
        """Die right behind the next COMMIT; SQLAlchemy has no event there."""
        commit = dialect.do_commit

        def do_commit(raw: Any) -> None:
            del dialect.do_commit  # the method of the class is there again
            commit(raw)
            self._crashes.reach(Step.AFTER_LOCAL_COMMIT)

        dialect.do_commit = do_commit  # type: ignore[assignment]  # a method, put in place


def _is_in_memory(connection: Connection) -> bool:
    url = connection.engine.url
    return url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}

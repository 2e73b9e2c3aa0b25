"""Crashes of a client process at chosen steps of its code.

The user's code runs in the test itself, so its process dies in two stages. First, its Kafka
clients, tasks and database connections die at once. Then the call that reached the step raises
ProcessDeadError. The error alone would not suffice: while it propagates, `except`, `finally` and
`with` blocks run. Their calls to the dead process raise again, so that they decide nothing and
write nothing.

Database connections are closed uncommitted. Only SQLAlchemy's are detected, from `Crashes.arm` to
the end of the block.
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
    """The code never reached the step at which it was to die; the test's author corrects either."""


class Crash:
    """A crash, pending or past. A context manager: the code that crashes is its block.

    Exceptions that leave the block after the crash are suppressed: a dead process reports nothing.

    Attributes:
        step: Where to crash; None: nowhere, so that the code runs to its end.
        process: The process that has died; None: none yet.
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
        """End the block; raises as `check_reached` if the code survived it."""
        if kind is None and self.step is Step.AFTER_DECISION_SENT:
            self._crashes.await_decisions()
        self._crashes.disarm()
        if self.process is not None:
            return True
        if kind is None:
            self.check_reached()
        return False

    def check_reached(self) -> None:
        """Check that the crash, if one is wanted, has happened.

        Raises CrashNotReachedError: it has not; the test's author corrects step or code.
        """
        if self.step is not None and self.process is None:
            raise CrashNotReachedError(
                f"the code never came to {self.step.name} ({self.step.value}): without a fence,"
                f" call stack.mark(Step.{self.step.name}) where the local transaction commits"
            )


class Crashes:
    """The armed crash, and the steps that processes reach; `deaths` counts crashes."""

    def __init__(self, machine: Machine, names: TopicNames) -> None:
        self.deaths = 0
        self.unstored: Counter[Process] = Counter()  # decisions sent, not yet stored
        self._scheduler = machine.scheduler
        self._passing = Passing(machine.broker)
        self._names = names
        self._crash: Crash | None = None
        self._last: Process | None = None  # the last sender: its local transaction runs
        self._databases = _Databases(self)

    def arm(self, step: Step | None) -> Crash:
        """Kill the next process that reaches `step`."""
        self.disarm()
        self._crash = crash = Crash(self, step)
        self._databases.watch()
        return crash

    def disarm(self) -> None:
        """Kill no more processes; dead ones stay dead."""
        self._databases.unwatch()
        self._crash = None

    @property
    def is_over(self) -> bool:
        """Whether the crash has happened, and the dead code is still unwinding."""
        return self._crash is not None and self._crash.process is not None

    def check_alive(self) -> None:
        """Stop the test's own code where it runs on after its process died.

        Raises ProcessDeadError: the process is dead; nobody acts.
        """
        if self.is_over and self._scheduler.current is None:
            raise ProcessDeadError("the process was killed: it works on no database any more")

    def reach(self, step: Step, process: Process | None = None) -> None:
        """Note that a process (None: the last sender) reached a step; kill it if a crash is armed.

        Raises:
            ProcessDeadError: it died there; nobody acts, and the test continues after the block of
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
        """Advance virtual time until the decisions that the code did not await are stored."""
        self._passing.until(lambda: self.is_over or not self._are_unstored(), _STORED_S_MAX)

    def _are_unstored(self) -> bool:
        return any(count for process, count in self.unstored.items() if not process.is_dead)

    def sends(self, process: Process) -> None:
        """Note the process that is about to send."""
        self._last = process

    def kind_of(self, topic: str, value: bytes | None) -> str:
        """Return the kind of a client's record: "half", "decision", or "" for all else."""
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
    """A step in the code of a message transaction, at which its process may die.

    With `halfbridge.sql.Fence` the steps of a local transaction are detected; other code calls
    `MemoryStack.mark` at them.
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
    """Listens to all SQLAlchemy engines of this Python process, while it watches."""

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
        """Close open connections, uncommitted."""
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
        """Reach the step right after the next COMMIT, where SQLAlchemy has no event."""
        commit = dialect.do_commit

        def do_commit(raw: Any) -> None:
            del dialect.do_commit  # restores the method of the class
            commit(raw)
            self._crashes.reach(Step.AFTER_LOCAL_COMMIT)

        dialect.do_commit = do_commit  # type: ignore[assignment]  # a method, put in place


def _is_in_memory(connection: Connection) -> bool:
    url = connection.engine.url
    return url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}

"""The scheduler: one process, one clock, and one seed that draws who goes on and what fails.

A run has two phases. While anything may fail, nothing wrong may ever be seen. Then everything is
healed, and within a bounded number of rounds all must be decided and have had its effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.settings import RECENT_MS
from halfbridge.checker.routes import Routes
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.progress import START
from tests.simulation import stranger, trouble
from tests.simulation.broker import Broker, Place
from tests.simulation.client import Responder, Sent, Transaction, encoded
from tests.simulation.group import RefusedError
from tests.simulation.judge import Judge
from tests.simulation.settings import (
    BEGIN_MS,
    GROUPS,
    KAFKA_TXN_TIMEOUT_MS,
    LATE_MS,
    NAMES,
    PARTITIONS,
    SESSION_MS,
    TOPICS,
    BrokenPromiseError,
)
from tests.simulation.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import Op
    from tests.simulation.choices import Choices

STEPS = 500
TRANSACTIONS_MAX = 40
OPEN_MAX = 6
WORKERS = 2
# How far a worker comes at most before others go on.
WORKER_STEPS_MAX = 3
# Longer than any run.
LONG_MS = 1 << 40
# Chances of a fault, in thousandths; a run has one of them.
RATES = (0, 10, 25, 60)
# Time-outs come in bunches: a third of them begin an outage.
OUTAGE_MS = 1_000
OUTAGE_RATE = 600
PASSED_MS = (5, 5, 5, 10, 20, 50, 100, 300)
# After everything is healed: so many rounds, of so many steps of each worker and so much time.
ROUNDS_MAX = 400
ROUND_STEPS = 6
ROUND_MS = 200


class World:
    """All there is.

    Args:
        choices: What is drawn.
        worker: The class of the workers.

    Attributes:
        rate: Chance of a fault, in thousandths.
        has_late_halves: Half messages may come twice, or after their decision. Those that come, or
            are read, later than decisions are remembered become new transactions; so such runs
            remember them to the end (`remembers_ms`).
        lies: Checkers and strangers may contradict what was decided.
        sent: Value -> the half message that has it.
        database: Transaction id -> committed, rolled back, or open (None).
        owners: Transaction id -> the producer group that began it.
        closed: Those that somebody decided, maybe before all their messages were sent.
        alive: Transactions whose client may still decide.
        contested: Those about which somebody lied.
        late: (deadline, request) of requests that timed out and are still under way.
    """

    def __init__(self, choices: Choices, *, worker: type[Worker] = Worker) -> None:
        self.choices = choices
        self.now_ms = BEGIN_MS
        self.rate = RATES[choices.below(len(RATES))]
        self.lies = choices.below(2) == 1
        self.has_late_halves = choices.below(2) == 1
        self.trace: list[tuple[Any, ...]] = []
        self.is_verbose = False
        self.steps = 0
        self.broker = Broker(TOPICS, timeout_ms=KAFKA_TXN_TIMEOUT_MS, session_ms=SESSION_MS)
        self.broker.now_ms = BEGIN_MS
        self.broker.group.partitions = PARTITIONS
        for number in range(PARTITIONS):
            self.broker.commit_offsets(
                {(NAMES.half, number): (0, ""), (NAMES.op, number): (0, START.metadata())}
            )
        self.routes = Routes(gone_ms=0)
        self.routes.update(TOPICS, 0)
        self.sent: dict[bytes, Sent] = {}
        self.database: dict[str, bool | None] = {}
        self.owners: dict[str, str] = {}
        self.closed: set[str] = set()
        self.alive: set[str] = set()
        self.contested: set[str] = set()
        self.late: list[tuple[int, tuple[Any, ...]]] = []
        self.clients: list[Transaction] = []
        self.responders = [Responder(self, group) for group in GROUPS]
        self._worker = worker
        self.workers: list[Worker | None] = [worker(self, slot) for slot in range(WORKERS)]
        self.zombies: list[Worker] = []
        self._outage_until_ms = 0
        trouble.begin(self)
        self.judge = Judge(self)

    def note(self, *what: Any) -> None:
        """Keep what happened, for the trace."""
        self.trace.append((self.steps, self.now_ms - BEGIN_MS, *what))

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

    def _step(self) -> None:
        self.steps += 1
        choices = self.choices
        self.pass_time(PASSED_MS[choices.below(len(PASSED_MS))])
        ACTORS[choices.below(len(ACTORS))](self)

    def pass_time(self, ms: int) -> None:
        """Let time pass; what has a deadline keeps it."""
        self.now_ms += ms
        self.broker.now_ms = self.now_ms
        while self.late and self.late[0][0] <= self.now_ms:
            self._arrive(0)
        group = self.broker.group
        for worker in self.workers:
            if worker is not None and worker.paused_until_ms <= self.now_ms:
                group.heartbeat(worker.instance, worker.member_id, self.now_ms)
        self.broker.expire()

    def step_worker(self) -> None:
        """Let one worker go on, or start one where there is none."""
        self.go_on(self.choices.below(WORKERS))

    def go_on(self, slot: int) -> None:
        """Let the worker of a slot go on."""
        worker = self.workers[slot]
        if worker is None:
            if self.choices.below(4) == 0:
                self.start(slot)
        elif worker.paused_until_ms > self.now_ms:
            pass
        else:
            for _ in range(1 + self.choices.below(WORKER_STEPS_MAX)):
                if not worker.step():
                    self.workers[slot] = None
                    return

    def start(self, slot: int) -> None:
        """Start a new incarnation on a slot; one that is there goes on as a zombie."""
        before = self.workers[slot]
        if before is not None:
            self.zombies.append(before)
        self.workers[slot] = self._worker(self, slot)
        self.note("a worker starts on slot", slot)

    def step_zombie(self) -> None:
        """Let a worker go on whose slot was taken over."""
        if self.zombies:
            which = self.choices.below(len(self.zombies))
            if not self.zombies[which].step():
                del self.zombies[which]

    def step_client(self) -> None:
        """Let one client go on, or begin a transaction."""
        clients = self.clients
        is_full = len(clients) >= OPEN_MAX or len(self.database) >= TRANSACTIONS_MAX
        which = self.choices.below(len(clients) + (0 if is_full else 2))
        if which < len(clients):
            if not clients[which].step():
                del clients[which]
        elif not is_full:
            clients.append(Transaction(self))

    def step_responder(self) -> None:
        """Let one check responder go on."""
        self.responders[self.choices.below(len(self.responders))].step()

    def step_marker(self) -> None:
        """Have one marker arrive."""
        if self.broker.markers:
            self.broker.mark(self.choices.below(len(self.broker.markers)))

    def step_late(self) -> None:
        """Have one late request arrive."""
        if self.late:
            self._arrive(self.choices.below(len(self.late)))

    # --- requests --------------------------------------------------------------------------

    def send(
        self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int | None:
        """Send a client's record; None when no acknowledgement came in time."""
        may_be_late = self.has_late_halves or place[0] != NAMES.half
        if may_be_late and self.choices.fault(self.rate // 2):
            self.comes_late("append", place, key, value, headers)  # and once more
        offset: int | None = self.request(
            "append", place, key, value, headers, may_be_late=may_be_late
        )
        return offset

    def send_op(self, partition: int, op: Op) -> int | None:
        """Send an op; None when no acknowledgement came in time."""
        key = op.transaction_id.encode()
        offset = self.send((NAMES.op, partition), key, encoded(op), None)
        self.note(op.transaction_id, op.kind.value, op.source.value, partition, offset)
        return offset

    def append(
        self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int:
        """Store a record without any trouble."""
        return self.broker.append(place, key, value, headers)

    def request(self, *what: Any, may_be_late: bool = True) -> Any:
        """Send a request: it is answered, or times out, and then nobody knows.

        Returns:
            The answer, True where there is none; None after a time-out.

        Raises:
            RefusedError: the broker refuses it.
        """
        is_outage = self.now_ms < self._outage_until_ms
        if not self.choices.fault(OUTAGE_RATE if is_outage else self.rate):
            answer = self._do(what)
            return True if answer is None else answer
        if not is_outage and self.choices.below(3) == 1:
            self._outage_until_ms = self.now_ms + OUTAGE_MS
        fate = self.choices.below(3)
        if fate == 1 and not may_be_late:
            fate = 0
        if fate == 1:
            self.comes_late(*what)
        elif fate == 2:
            self._try(what)
        self.note("timed out", ("and never came", "and comes late", "but was done")[fate], what[0])
        return None

    def comes_late(self, *what: Any) -> None:
        """Have a request arrive later, in a connection of its own."""
        self.late.append((self.now_ms + LATE_MS, what))

    def _arrive(self, which: int) -> None:
        _, what = self.late.pop(which)
        self._try(what)

    def _try(self, what: tuple[Any, ...]) -> None:
        try:
            self._do(what)
        except RefusedError as error:
            self.note("refused", what[0], str(error))
        else:
            self.note("came", what[0])

    def _do(self, what: tuple[Any, ...]) -> Any:
        name, *arguments = what
        broker = self.broker
        if name == "append":
            return broker.append(*arguments)
        if name == "produce":
            return broker.produce(*arguments)
        if name == "offsets":
            return broker.send_offsets(*arguments)
        transactional_id, epoch, is_commit = arguments
        return broker.end_txn(transactional_id, epoch, is_commit=is_commit)

    def partition_of(self, topic: str, partition: int, key: bytes | None) -> int:
        """Return where a producer's partitioner puts a record."""
        if partition >= 0:
            return partition
        count = TOPICS[topic]
        return self.choices.below(count) if key is None else partition_of(key, count)

    # --- healing ---------------------------------------------------------------------------

    def _heal(self) -> None:
        """End all trouble: whoever was paused or dead goes on, everybody is honest."""
        self.note("healed")
        self.choices.is_calm = True
        self.lies = False
        for responder in self.responders:
            responder.is_deaf = False
        for slot, worker in enumerate(self.workers):
            if worker is None:
                self.start(slot)
            else:
                worker.paused_until_ms = 0

    def _round(self) -> None:
        self.steps += 1
        self.pass_time(ROUND_MS)
        self.broker.mark_all()
        for _ in range(ROUND_STEPS):
            self.step_zombie()
            for slot in range(WORKERS):
                self.go_on(slot)
        self.clients = [client for client in self.clients if client.step()]
        for responder in self.responders:
            responder.step()

    def _is_settled(self) -> bool:
        """Tell whether all is applied, nothing is held any more, and no reader waits."""
        broker = self.broker
        if self.clients or self.late or broker.markers:
            return False
        for place, (_, offset, _) in broker.committed.items():
            if offset != broker.partitions[place].end:
                return False
        return not any(partition.open for partition in broker.partitions.values())


# Who goes on, by how often.
ACTORS: tuple[Callable[[World], None], ...] = (
    *[World.step_worker] * 18,
    *[World.step_client] * 8,
    *[World.step_marker] * 5,
    *[World.step_responder] * 2,
    *[World.step_zombie] * 3,
    *[World.step_late] * 1,
    *[lambda world: world.judge.watch()] * 1,
    *[trouble.strike] * 2,
    *[stranger.speak] * 2,
)

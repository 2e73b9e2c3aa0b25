"""Client processes: the shipped producer, several local transactions at a time, and a database.

What the database says of a transaction is the truth that an honest checker tells: committed,
rolled back, or open. A checker that finds an open transaction whose client is gone fences it: the
local transaction can no longer commit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.message import Message, Resolution
from halfbridge.bridge.producer import TransactionProducer
from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.kafka.errors import BridgeError, NoAnswerError, OutcomeUnknownError
from halfbridge.serde.records import PARTITION_BY_KEY
from tests.simulation.attacker import key_file
from tests.simulation.sent import IN_FLIGHT_MAX
from tests.simulation.settings import (
    DECISION_TIMEOUT_MS,
    GROUPS,
    LEDGER,
    SEND_TIMEOUT_MS,
    SMALL_BYTES,
)

if TYPE_CHECKING:
    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.message import MessageView
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.serde.headers import Headers
    from tests.simulation.world import World

KEYS = (b"a", b"b", b"c", None)
# Fewer where deliveries wait: a delivery that waits holds up the others of its key.
KEYS_OF_WAITING = 2
TOPICS = ("alpha", "alpha", "alpha", "alpha", "beta", "beta", "beta", "gamma", "forbidden")
# The topics where deliveries wait: for the last one they always do at first.
WAITED_FOR = ("alpha", "alpha", "beta", "beta", "gamma", "gamma")
IMMUNITIES_MS = (None, None, None, 2_000)
MESSAGES = (1, 1, 1, 2, 3)
# Makes a message too large for a topic of small ones.
PADDING = b" " * SMALL_BYTES
# How long a local transaction takes.
LOCAL_MS = (0, 0, 0, 0, 1_500, 6_000)
COMMIT_TRIES_MAX = 3
# How long a checker that hangs runs: longer than check_timeout_ms.
HANG_MS = 2_500
CHECK_TIMEOUT_MS = 1_000
# Transactions that one client process runs at a time.
AT_ONCE_MAX = 3
# A process that does not await its decisions ends after one of so many.
ENDS_AFTER = 6
# Shorter than a decision's time-out, so that `close` ends in both ways.
CLOSE_S = 2.0


class Placed(NamedTuple):
    """A transaction whose half partition its sender chose."""

    id: str
    half_partition: int


class Sent(NamedTuple):
    """A half message as its client gave it; the value is unique."""

    # A client's transaction has its half partition once its first message is sent.
    transaction: Transaction | Placed
    group: str
    message_index: int
    key: bytes | None
    headers: Headers
    real_topic: str
    real_partition: int

    @property
    def transaction_id(self) -> str:
        return self.transaction.id

    @property
    def partition(self) -> int:
        return self.transaction.half_partition


class Shop:
    """One client process of a producer group.

    Attributes:
        process: What dies with it.
        group: Its producer group.
        open: Ids of the transactions whose code still runs, and the code's task.
        offsets: Transaction id -> half offsets that were acknowledged.
        partitions: Transaction id -> half partition.
        keys: Transaction id -> the first message's key.
    """

    def __init__(self, world: World, group: str, number: int) -> None:
        self.world = world
        self.group = group
        self.process, ports = world.new_process(f"{group}-{number}")
        self.open: dict[str, Any] = {}
        self._ports = ports
        self._producer = TransactionProducer(
            checker=self._check,
            on_decision_failed=self._on_decision_failed,
            config=BridgeConfig(
                bootstrap_servers="memory",
                producer_group=group,
                requests_in_flight_max=5,  # start() measures nothing: fewer steps a seed
                transaction_timeout_ms=LEDGER.transaction_timeout_ms,
                transaction_age_ms_max=LEDGER.transaction_age_ms_max,
                send_timeout_ms=SEND_TIMEOUT_MS,
                decision_timeout_ms=DECISION_TIMEOUT_MS,
                check_timeout_ms=CHECK_TIMEOUT_MS,
                check_threads=1,
                check_hung_max=1,
                key_file=str(key_file()) if world.is_signed else "",
                **({} if world.sent_judge is None else {"in_flight_max": IN_FLIGHT_MAX[group]}),
            ),
            ports=ports,
        )
        self._is_started = False
        self._is_leaving = self.has_left = False
        ports.run.start(self._start, "start")

    def _start(self) -> None:
        while True:
            try:
                self._producer.start()
                self._producer.begin()  # the first one waits for the operators' switch
            except BridgeError as error:  # noqa: PERF203  (once a process, mostly)
                self.world.note(self.process.name, "does not start", str(error))
                self._ports.run.pause(0.2)
            else:
                self._is_started = True
                return

    @property
    def has_room(self) -> bool:
        """Whether another transaction may begin."""
        is_there = self._is_started and not self._is_leaving and not self.process.is_dead
        return is_there and len(self.open) < AT_ONCE_MAX

    def begin(self) -> None:
        """Run one more transaction concurrently."""
        choices = self.world.choices
        immunity_ms = IMMUNITIES_MS[choices.below(len(IMMUNITIES_MS))]
        transaction = self._producer.begin(immunity_ms=immunity_ms)
        name = transaction.id
        self.world.database[name] = None
        self.world.owners[name] = self.group
        self.world.alive.add(name)
        self.world.known[name] = self
        self.open[name] = self._ports.run.start(lambda: self._run(transaction), name)

    def die(self) -> None:
        """Kill the process."""
        for name in self.open:
            self.world.alive.discard(name)
        self.open.clear()
        self.world.scheduler.kill(self.process)

    def leave(self) -> None:
        """Close the producer, as a process that ends in order; then `has_left`."""
        if self._is_started and not self._is_leaving:
            self._is_leaving = True
            self._ports.run.start(self._leave, "leave")

    def _leave(self) -> None:
        began_ms = self.world.now_ms
        self._producer.close(CLOSE_S)
        self.world.note("client has closed:", self.process.name)
        if self.world.sent_judge is not None:
            took_ms = self.world.now_ms - began_ms
            self.world.sent_judge.closed(self.process.name, in_time=took_ms < CLOSE_S * 1000)
        self.has_left = True

    # --- one local transaction ---------------------------------------------------------------

    def _run(self, transaction: Transaction) -> None:
        try:
            self._transact(transaction)
        except (BridgeError, IllegalTransitionError) as error:
            self.world.note(transaction.id, "gives up:", type(error).__name__)
        self.world.alive.discard(transaction.id)
        del self.open[transaction.id]

    def _transact(self, transaction: Transaction) -> None:
        world, choices, name = self.world, self.world.choices, transaction.id
        try:
            self._send_all(transaction)
        except BridgeError as error:
            world.note(name, "is not sent:", type(error).__name__)
            if choices.below(2) and transaction.message_count:
                world.database[name] = False
                self._decide(transaction, is_committed=False)
            return
        self._ports.run.pause(LOCAL_MS[choices.below(len(LOCAL_MS))] / 1000)
        is_kept = choices.below(4) != 1 and world.database[name] is None
        world.database[name] = is_kept
        world.note(name, "in the database:", is_kept)
        if choices.below(6) == 1:
            return  # its code raised: the check finds out
        self._decide(transaction, is_committed=is_kept)

    def _send_all(self, transaction: Transaction) -> None:
        world, choices = self.world, self.world.choices
        topics = WAITED_FOR if world.profile.refuses else TOPICS
        topic = topics[choices.below(len(topics))]
        keys = KEYS[: KEYS_OF_WAITING if world.profile.refuses else None]
        first = keys[choices.below(len(keys))]
        world.keys[transaction.id] = first
        world.partitions[transaction.id] = transaction.shared.half_partition(transaction.id, first)
        for index in range(MESSAGES[choices.below(len(MESSAGES))]):
            if index and world.profile.refuses:  # one message waits, and so do the others
                topic = topics[choices.below(len(topics))]
            key = first if not index or choices.below(3) != 1 else keys[choices.below(len(keys))]
            value = b"%d:%s" % (len(world.sent), transaction.id.encode())
            if not choices.below(5) - 1:
                value += PADDING
            headers: Headers = [("trace", value[:4])]
            world.sent[value] = Sent(
                transaction, self.group, index, key, headers, topic, PARTITION_BY_KEY
            )
            message = Message(topic, key=key, value=value, headers=headers)
            try:
                receipt = transaction.send(message)
            finally:  # others may have chosen a partition while this one waited
                if transaction.message_count:
                    world.partitions[transaction.id] = transaction.half_partition
            world.offsets.setdefault(transaction.id, []).append(receipt.half_offset)
            world.note(transaction.id, "half", index, receipt.half_partition, receipt.half_offset)

    def _decide(self, transaction: Transaction, *, is_committed: bool) -> None:
        decide = transaction.commit if is_committed else transaction.rollback
        if self.world.sent_judge is not None:
            future = self._send_decision(transaction, is_committed=is_committed)
            future.add_done_callback(self._on_decided)
            if self.world.choices.below(ENDS_AFTER) == 1:
                self.leave()
            return
        for _ in range(COMMIT_TRIES_MAX):
            try:
                receipt = decide(wait=True).result()
            except OutcomeUnknownError:  # noqa: PERF203  (at most three times)
                self.world.note(transaction.id, "decision in doubt")
                if self.world.choices.below(2):
                    return  # the check settles it
            else:
                self.world.note(transaction.id, "decided", is_committed, receipt.op_offset)
                self.world.decided.append(transaction.id)
                return

    def _send_decision(self, transaction: Transaction, *, is_committed: bool) -> DecisionFuture:
        judge, name = self.world.sent_judge, self.process.name
        assert judge is not None
        began = judge.begins(name)
        try:
            future = transaction.commit() if is_committed else transaction.rollback()
        except BaseException:
            judge.refused(name)
            raise
        judge.sent(name, future, began=began, in_flight_max=IN_FLIGHT_MAX[self.group])
        self.world.note(transaction.id, "decision sent")
        return future

    def _on_decided(self, future: DecisionFuture) -> None:
        if future.exception() is None:
            is_committed = future.resolution is Resolution.COMMIT
            self.world.note(future.transaction.id, "decided", is_committed, future.offset)
            self.world.decided.append(future.transaction.id)

    def _on_decision_failed(self, future: DecisionFuture) -> None:
        """Repeat a failed decision, or leave it to the check."""
        world, transaction = self.world, future.transaction
        world.note(transaction.id, "decision failed")
        if world.sent_judge is not None and world.choices.below(2):
            is_committed = future.resolution is Resolution.COMMIT
            with suppress(BridgeError):
                self._send_decision(transaction, is_committed=is_committed)

    # --- what the checker says -----------------------------------------------------------------

    def _check(self, view: MessageView) -> Resolution:
        world, choices, name = self.world, self.world.choices, view.transaction_id
        if self.group in world.deaf or choices.fault(world.rate):
            self._ports.run.pause(HANG_MS / 1000)
        if choices.fault(world.rate):
            raise NoAnswerError("the database does not answer")
        answer = self._truth(name)
        if answer is not Resolution.UNKNOWN and world.lies and choices.fault(world.rate):
            world.contested.add(name)
            return Resolution.ROLLBACK if answer is Resolution.COMMIT else Resolution.COMMIT
        return answer

    def _truth(self, name: str) -> Resolution:
        database = self.world.database
        if name not in database or self.world.owners[name] != self.group:
            return Resolution.ROLLBACK
        if database[name] is None and name not in self.world.alive:
            database[name] = False  # the fence
        is_kept = database[name]
        if is_kept is None:
            return Resolution.UNKNOWN
        return Resolution.COMMIT if is_kept else Resolution.ROLLBACK


def other(group: str) -> str:
    """Return the producer group that is not this one."""
    return GROUPS[group == GROUPS[0]]

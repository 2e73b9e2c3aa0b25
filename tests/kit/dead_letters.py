"""Dead letters of each reason on a MemoryStack, and an operator who may die at any request."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from halfbridge import Message, Resolution
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.dead.letters import Choice, DeadTransaction, Remedy, Wanted
from halfbridge.checker.admin.dead.redoing import Change, DeadLetters, Order, redo
from halfbridge.serde.avro import DEAD_MARK, HALF_METADATA, OP, DeadMark
from halfbridge.serde.headers import DEAD_MARK as MARK_HEADER
from halfbridge.serde.headers import HALF, real_identity
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource, new_half, new_op
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.client import Kind, Network
from halfbridge.testkit.memory.machine import MemoryKafka
from halfbridge.testkit.memory.process import ProcessDeadError

TOPIC = "orders"
GROUP = "order-service"
ID = "0199f0c0a5c87a0b8f3e2d1c0b9a88"
WRITES = frozenset((Kind.INIT, Kind.ADD_TO_TXN, Kind.PRODUCE, Kind.END_TXN, Kind.DELETE_RECORDS))


class Dying(Network):
    """Kills whoever asks at the request with a number, before or behind what the broker does.

    Attributes:
        requests: How many requests of WRITES came.
        dies_at: Number of the request, from 1; 0: never.
        is_behind: The broker has done what was asked, and nobody hears of it.
        rival: What happens at that request instead of a death, before what was asked is done.
    """

    requests = 0
    dies_at = 0
    is_behind = False
    rival: Callable[[], object] | None = None

    def request(
        self, client: Any, kind: Kind, place: Any, do: Callable[[], Any], timeout_s: float
    ) -> Any:
        """Have a request done, unless its client dies."""
        self.requests += kind in WRITES
        dies = kind in WRITES and self.requests == self.dies_at
        if dies and self.rival is not None:
            self.dies_at, dies = 0, False
            self.rival()
        if dies and not self.is_behind:
            self._kill(client)
        answer = super().request(client, kind, place, do, timeout_s)
        if dies:
            self._kill(client)
        return answer

    def _kill(self, client: Any) -> None:
        self.scheduler.kill(client.process)
        raise ProcessDeadError


class Scene:
    """A stack with transactions that became dead letters, and operators."""

    def __init__(self, stack: MemoryStack) -> None:
        self.stack = stack
        self.names = stack.config.names
        self.network = Dying(stack.machine.scheduler)
        self._operators = 0
        ports = stack.machine.ports(stack.machine.process("a client"))
        self._writer = ports.kafka.writer({"enable.idempotence": True, "linger.ms": 0})

    # --- records ----------------------------------------------------------------------------

    def half(self, number: int, index: int, *, topic: str = TOPIC, **fields: Any) -> int:
        """Store message `index` of transaction `number` in pair 0; return its offset."""
        metadata = new_half(
            transaction_id=txn(number),
            born_timestamp=1_700_000_000_000,
            producer_group=GROUP,
            real_topic=topic,
            message_index=index,
            **fields,
        )
        headers = [("trace", b"1"), (HALF, HALF_METADATA.encode(metadata))]
        return self.put(self.names.half, b"k", body(number, index), headers)

    def op(self, number: int, kind: OpKind, half_offset: int, **fields: Any) -> None:
        """Say something about a transaction."""
        values = {"message_count": COUNT_UNKNOWN, "source": OpSource.PRODUCER, **fields}
        op = new_op(
            transaction_id=txn(number),
            timestamp=0,
            half_offset=half_offset,
            producer_group=GROUP,
            kind=kind,
            actor="test",
            **values,
        )
        self.put(self.names.op, txn(number).encode(), OP.encode(op), [])

    def put(self, topic: str, key: Any, value: Any, headers: Any) -> int:
        """Store a record in partition 0; return its offset."""
        reported: list[Any] = []
        self._writer.produce(
            topic, value, key, 0, lambda _, record: reported.append(record), 0, headers
        )
        self._writer.flush(10)
        offset: int = reported[0].offset()
        return offset

    def several(self, number: int, count: int, **fields: Any) -> int:
        """Store a transaction of so many messages; return the last offset."""
        return [self.half(number, index, **fields) for index in range(count)][-1]

    # --- what became a dead letter ----------------------------------------------------------

    def undeliverable(self, number: int, count: int = 1) -> None:
        """Commit a transaction to a topic that is not there."""
        last = self.several(number, count, topic="absent")
        self.op(number, OpKind.COMMIT, last, message_count=count)

    def incomplete(self, number: int) -> None:
        """Commit three messages, of which message 1 is missing."""
        self.half(number, 0)
        self.op(number, OpKind.COMMIT, self.half(number, 2), message_count=3)

    def extra(self, number: int) -> None:
        """Commit two of three messages."""
        self.op(number, OpKind.COMMIT, self.several(number, 3), message_count=2)

    def late(self, number: int) -> None:
        """Store message 1 behind the COMMIT of message 0."""
        self.op(number, OpKind.COMMIT, self.half(number, 0), message_count=1)
        self.stack.advance(seconds=1)
        self.half(number, 1)

    def discarded(self, number: int, count: int = 2) -> None:
        """Discard a transaction as an operator does."""
        last = self.several(number, count)
        self.op(number, OpKind.DISCARD, last, source=OpSource.OPERATOR)

    def settle(self) -> None:
        """Wait until all that was decided is visible, missing topics included."""
        self.stack.advance(seconds=90)

    # --- operators --------------------------------------------------------------------------

    def letters(self) -> DeadLetters:
        """Return what a command of a new process sees."""
        self._operators += 1
        machine = self.stack.machine
        process = machine.process(f"operator {self._operators}")
        kafka = MemoryKafka(machine.broker, self.network, process)
        ports = replace(machine.ports(process), kafka=kafka)
        return DeadLetters(Cluster("memory", ports=ports), self.names)

    def redo(self, remedy: Remedy, *numbers: int, **choice: Any) -> list[Change]:
        """Resume or redeliver transactions; all that are open where none is named."""
        return redo(
            self.letters(), order(*numbers), Choice(remedy=remedy, **choice), lambda _reported: True
        )

    def find(self, *numbers: int) -> list[DeadTransaction]:
        return self.letters().find(Wanted(ids=frozenset(map(txn, numbers))))

    # --- what came of it --------------------------------------------------------------------

    def delivered(self, *topics: str) -> list[tuple[str, int, bytes | None]]:
        """Return id, index and value of each real record, in order."""
        records = self.stack.read_committed(*(topics or (TOPIC,)))
        identities = [(real_identity(list(each.headers)), each.value) for each in records]
        return [(*identity, value) for identity, value in identities if identity]

    def marks(self) -> list[DeadMark]:
        """Return the marks in the dead-letter topic."""
        found = []
        for partition in self.stack.machine.broker.topic(self.names.dead).partitions:
            for record in partition.read(partition.start, partition.end)[0]:
                name, value = (record.headers() or [("", None)])[-1]
                if name == MARK_HEADER:
                    found.append(DEAD_MARK.decode(value or b""))
        return found


def txn(number: int) -> str:
    """Return the id of a transaction."""
    return f"{ID}{number:02x}"


def body(number: int, index: int) -> bytes:
    """Return the value of a message."""
    return b"%d.%d" % (number, index)


def sent(*messages: tuple[int, int]) -> list[tuple[str, int, bytes]]:
    """Return real records as `Scene.delivered` does."""
    return [(txn(number), index, body(number, index)) for number, index in messages]


def order(*numbers: int, **changes: Any) -> Order:
    """Return the order of an operator in a hurry."""
    base = Order(
        wanted=Wanted(ids=frozenset(map(txn, numbers)), is_open=True),
        limit=1_000,
        rate=1_000.0,
        who="ann@host",
        why="the topic is there now",
    )
    return replace(base, **changes)


def refusals(reported: Iterable[Change]) -> list[str]:
    """Return why transactions were refused."""
    return [each.refusal for each in reported if each.refusal]


def lose(stack: MemoryStack, answer: Callable[[Any], Resolution], values: Sequence[bytes]) -> str:
    """Send messages and decide nothing; checks are answered by `answer`. Return the id."""
    producer = stack.producer(GROUP, checker=answer, topics=[TOPIC])
    producer.start()
    tx = producer.begin()
    for value in values:
        tx.send(Message(TOPIC, key=b"k", value=value))
    return tx.id

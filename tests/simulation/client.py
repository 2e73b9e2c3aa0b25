"""Clients: message transactions by the real table, a database that knows, and check responders.

What the database says of a transaction is the truth that an honest checker tells: committed,
rolled back, or open. A checker that finds nothing and knows that the client is gone fences it: the
local transaction can no longer commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.bridge.transaction import Event, State, step
from halfbridge.serde.avro import CHECK_REQUEST, HALF_METADATA, OP
from halfbridge.serde.headers import CHECK, HALF
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    DEFAULT_IMMUNITY,
    NO_OFFSET,
    NO_TIMESTAMP,
    PARTITION_BY_KEY,
    CheckRequest,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)
from tests.simulation.settings import GROUPS, NAMES, PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.serde.headers import Headers
    from tests.simulation.world import World

KEYS = (b"a", b"b", b"c", None)
TOPICS = ("alpha", "alpha", "alpha", "alpha", "beta", "beta", "beta", "forbidden")
IMMUNITIES = (DEFAULT_IMMUNITY, DEFAULT_IMMUNITY, DEFAULT_IMMUNITY, 2_000)
MESSAGES = (1, 1, 1, 2, 3)
# How long a local transaction takes.
LOCAL_MS = (0, 0, 0, 0, 1_500, 6_000)
# A partition that the real topic does not have: the broker refuses it for good.
NO_SUCH_PARTITION = 9
COMMIT_TRIES_MAX = 3
# How long a client takes to send all, where halves may not come late: what was discarded for age
# meanwhile is still remembered then.
SENDING_MS = 5_000
# Requests that a responder takes at once; only the newest attempt of each is answered.
POLLED_MAX = 8


class Sent(NamedTuple):
    """A half message as its client gave it; the value is unique."""

    transaction_id: str
    group: str
    message_index: int
    partition: int
    key: bytes | None
    headers: Headers
    real_topic: str
    real_partition: int


class Transaction:
    """One message transaction of one client."""

    def __init__(self, world: World) -> None:
        self.world = world
        choices = world.choices
        self.number = len(world.database)
        self.id = f"{self.number:032x}"
        self.group = GROUPS[choices.below(8) == 1]
        self.state = State.INIT
        self.offsets: list[int] = []
        world.database[self.id] = None
        world.owners[self.id] = self.group
        world.alive.add(self.id)
        self.topic = TOPICS[choices.below(len(TOPICS))]
        self.key = KEYS[choices.below(len(KEYS))]
        self.partition = (
            choices.below(PARTITIONS) if self.key is None else partition_of(self.key, PARTITIONS)
        )
        self.life = self._run()

    def step(self) -> bool:
        """Go on to the next point where it may die; False when it has ended."""
        if next(self.life, False) is not False:
            return True
        self.world.alive.discard(self.id)
        return False

    def _go(self, event: Event) -> None:
        self.state = step(self.state, event, transaction_id=self.id)

    def _run(self) -> Iterator[None]:
        yield from self._send_all()
        if self.state is State.HALF_SENT:
            yield
            until_ms = self.world.now_ms + LOCAL_MS[self.world.choices.below(len(LOCAL_MS))]
            while self.world.now_ms < until_ms:
                yield
            is_kept = self.world.choices.below(4) != 1 and self.world.database[self.id] is None
            self.world.database[self.id] = is_kept
            self.world.note(self.id, "in the database:", is_kept)
            yield
            yield from self._decide(is_committed=is_kept)
        elif self.state is State.SEND_FAILED and self.world.choices.below(2):
            self.world.database[self.id] = False
            yield from self._decide(is_committed=False)

    def _send_all(self) -> Iterator[None]:
        world, choices = self.world, self.world.choices
        began_ms = world.now_ms
        immunity_ms = IMMUNITIES[choices.below(len(IMMUNITIES))]
        real_partition = PARTITION_BY_KEY
        if choices.fault(30):
            real_partition = NO_SUCH_PARTITION
        for index in range(MESSAGES[choices.below(len(MESSAGES))]):
            self._go(Event.SEND)
            yield
            is_old = self.id in world.closed or world.now_ms - began_ms > SENDING_MS
            if is_old and not world.has_late_halves:
                return  # dies
            key = self.key if choices.below(3) != 1 else KEYS[choices.below(len(KEYS))]
            metadata = half_metadata(
                self.id, index, self.group, self.topic, now_ms=world.now_ms
            )._replace(immunity_ms=immunity_ms, real_partition=real_partition)
            offset = send_half(world, self.partition, metadata, key)
            if offset is None:
                self._go(Event.SEND_NOT_ACKED)
                return
            self.offsets.append(offset)
            self._go(Event.SENDS_ACKED)

    def _decide(self, *, is_committed: bool) -> Iterator[None]:
        event = Event.COMMIT if is_committed else Event.ROLLBACK
        for _ in range(COMMIT_TRIES_MAX):
            self._go(event)
            yield
            op = op_of(
                self.world,
                self.id,
                self.group,
                OpKind.COMMIT if is_committed else OpKind.ROLLBACK,
                half_offset=max(self.offsets, default=0),
            )._replace(message_count=len(self.offsets))
            if self.world.send_op(self.partition, op) is not None:
                self._go(Event.DECISION_ACKED)
                return
            self._go(Event.DECISION_NOT_ACKED)
            if self.world.choices.below(2):
                return  # the check will settle it


class Responder:
    """The check responder of one producer group; the next one goes on where it was."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group
        self.position = 0
        self.is_deaf = False
        self._waiting: list[tuple[int, Op]] = []

    def step(self) -> None:
        """Write the answers that are ready, then take new requests."""
        for partition, op in self._waiting:
            self.world.send_op(partition, op)
        self._waiting = []
        requests = self.world.broker.partitions[NAMES.check(self.group), 0]
        if self.is_deaf or self.position == requests.end:
            return
        records, self.position = requests.read(self.position, POLLED_MAX)
        newest: dict[str, CheckRequest] = {}
        for record in records:
            request = CHECK_REQUEST.decode(dict(record.headers() or ())[CHECK] or b"")
            newest[request.transaction_id] = request
        for request in newest.values():
            self._answer(request)

    def _answer(self, request: CheckRequest) -> None:
        world = self.world
        if world.choices.fault(world.rate):
            return  # the checker hangs
        kind, number, reason = self._check(request)
        if kind is not OpKind.UNKNOWN and world.lies and world.choices.fault(world.rate):
            kind = OpKind.ROLLBACK if kind is OpKind.COMMIT else OpKind.COMMIT
            world.contested.add(request.transaction_id)
        # Asked after the checker returned: what it saw committed stands below.
        end = world.broker.partitions[NAMES.half, request.half_partition].end
        op = op_of(world, request.transaction_id, self.group, kind, half_offset=end - 1)
        self._waiting.append(
            (
                request.half_partition,
                op._replace(check_number=number, source=OpSource.CHECK, reason=reason),
            )
        )

    def _check(self, request: CheckRequest) -> tuple[OpKind, int, str]:
        """Return what the database says, as a checker would."""
        world = self.world
        if world.choices.fault(world.rate):
            return OpKind.UNKNOWN, 0, "the checker raised"
        name = request.transaction_id
        if self.group != request.producer_group or name not in world.database:
            return OpKind.ROLLBACK, 0, "no such transaction"
        if world.database[name] is None and name not in world.alive:
            world.database[name] = False  # the fence
        is_kept = world.database[name]
        if is_kept is None:
            return OpKind.UNKNOWN, request.check_number, ""
        return (OpKind.COMMIT if is_kept else OpKind.ROLLBACK), 0, ""


def half_metadata(
    transaction_id: str, index: int, group: str, topic: str, *, now_ms: int
) -> HalfMetadata:
    """Return what an original's header says."""
    return HalfMetadata(
        transaction_id=transaction_id,
        born_timestamp=now_ms,
        resume_count=0,
        message_index=index,
        producer_group=group,
        real_topic=topic,
        real_partition=PARTITION_BY_KEY,
        check_times=0,
        immunity_ms=DEFAULT_IMMUNITY,
        first_append_timestamp=NO_TIMESTAMP,
        origin_offset=NO_OFFSET,
    )


def send_half(
    world: World, partition: int, metadata: HalfMetadata, key: bytes | None, *extra: str
) -> int | None:
    """Send a half message; `extra` names headers besides the user's own."""
    value = b"%d:%s" % (len(world.sent), metadata.transaction_id.encode())
    headers: Headers = [("trace", value[:4]), *((name, b"forged") for name in extra)]
    world.sent[value] = Sent(
        metadata.transaction_id,
        metadata.producer_group,
        metadata.message_index,
        partition,
        key,
        headers,
        metadata.real_topic,
        metadata.real_partition,
    )
    mine = [*headers, (HALF, HALF_METADATA.encode(metadata))]
    offset = world.send((NAMES.half, partition), key, value, mine)
    world.note(metadata.transaction_id, "half", metadata.message_index, partition, offset)
    return offset


def op_of(world: World, transaction_id: str, group: str, kind: OpKind, *, half_offset: int) -> Op:
    """Return what a producer says of a transaction."""
    return Op(
        transaction_id=transaction_id,
        timestamp=world.now_ms,
        half_offset=half_offset,
        resume_count=0,
        producer_group=group,
        kind=kind,
        message_count=COUNT_UNKNOWN,
        check_number=0,
        source=OpSource.PRODUCER,
        actor="someone",
        reason="",
    )


def encoded(op: Op) -> bytes:
    """Return an op's value."""
    return OP.encode(op)

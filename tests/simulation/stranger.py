"""Operators, forgers, and writers of junk: the other records of half and op topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    DEFAULT_IMMUNITY,
    NO_OFFSET,
    NO_TIMESTAMP,
    PARTITION_BY_KEY,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)
from tests.simulation.settings import NAMES, PARTITIONS
from tests.simulation.shop import Placed, Sent, other

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.serde.headers import Headers
    from tests.simulation.world import World

# A partition that the real topic does not have: the broker refuses it for good.
NO_SUCH_PARTITION = 9


def speak(world: World) -> None:
    """Have somebody say something who should not, in a run where people lie."""
    choices = world.choices
    if choices.fault(30):
        misplace(world)
    if world.profile.refuses and world.decided:  # deliveries wait; the decision is valid
        contradict(world, world.decided.pop())
    if not world.lies:
        return
    names = [name for name in world.known if name in world.alive and name in world.partitions]
    if names:
        SAYINGS[choices.below(len(SAYINGS))](world, names[choices.below(len(names))])


def decide(world: World, name: str) -> None:
    """An operator decides, whatever the client does."""
    kinds = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD)
    _say(world, name, kinds[world.choices.below(3)], OpSource.OPERATOR)


def miscount(world: World, name: str) -> None:
    """A COMMIT names one message too many, or too few."""
    _contest(world, name)
    count = max(0, len(world.offsets.get(name, ())) + (1, -1)[world.choices.below(2)])
    _send(world, name, _op(world, name, OpKind.COMMIT)._replace(message_count=count))


def discard(world: World, name: str) -> None:
    """A producer says DISCARD, which it may not."""
    _say(world, name, OpKind.DISCARD, OpSource.PRODUCER)


def answer(world: World, name: str) -> None:
    """Somebody says UNKNOWN without having been asked, or twice."""
    if not world.offsets.get(name):
        return  # a decision would be remembered, this would not
    number = world.choices.below(4)
    op = _op(world, name, OpKind.UNKNOWN)
    _send(world, name, op._replace(check_number=number, source=OpSource.CHECK))


def overreach(world: World, name: str) -> None:
    """An answer names a half offset that does not exist (yet): it holds up the ops after it."""
    if not world.offsets.get(name):
        return
    beyond = _end(world, name) + world.choices.below(4)
    op = _op(world, name, OpKind.UNKNOWN)._replace(half_offset=beyond)
    _send(world, name, op._replace(check_number=99, source=OpSource.CHECK))


def impersonate(world: World, name: str) -> None:
    """Another group decides about a transaction that is not its own."""
    kind = (OpKind.COMMIT, OpKind.ROLLBACK)[world.choices.below(2)]
    world.closed.add(name)
    op = _op(world, name, kind)
    _send(world, name, op._replace(producer_group=other(world.owners[name])))


def forge(world: World, name: str) -> None:
    """A half message under another group's id, or with a header that nobody may send."""
    is_open = name not in world.closed and world.database[name] is None
    if not (is_open or world.has_late_halves):
        return
    world.closed.add(name)  # once is enough, unless halves may come late
    if world.choices.below(2):
        _send_half(world, name, group=other(world.owners[name]), index=0)
    elif world.offsets.get(name):
        world.contested.add(name)
        index = len(world.offsets[name])
        _send_half(world, name, DEAD, group=world.owners[name], index=index)


def repeat(world: World, name: str) -> None:
    """A decision comes twice."""
    offsets = world.offsets.get(name)
    if world.database[name] is not None and offsets:
        kind = OpKind.COMMIT if world.database[name] else OpKind.ROLLBACK
        op = _op(world, name, kind)._replace(half_offset=max(offsets), message_count=len(offsets))
        for _ in range(2):
            _send(world, name, op)


def contradict(world: World, name: str) -> None:
    """An operator says the opposite of what was decided: too late."""
    kind = OpKind.ROLLBACK if world.database[name] else OpKind.COMMIT
    _say(world, name, kind, OpSource.OPERATOR)


def misplace(world: World) -> None:
    """A client of another make commits a message to a partition that its topic does not have."""
    name = f"{len(world.sent):08x}".rjust(32, "f")
    group, place = "orders", world.choices.below(PARTITIONS)
    world.partitions[name], world.owners[name], world.database[name] = place, group, True
    world.contested.add(name)
    offset = _send_half(world, name, group=group, index=0, real_partition=NO_SUCH_PARTITION)
    op = _op(world, name, OpKind.COMMIT)._replace(half_offset=offset, message_count=1)
    _send(world, name, op)


def _contest(world: World, name: str) -> None:
    world.contested.add(name)
    world.closed.add(name)


def _say(world: World, name: str, kind: OpKind, source: OpSource) -> None:
    _contest(world, name)
    _send(world, name, _op(world, name, kind)._replace(source=source))


def _end(world: World, name: str) -> int:
    return world.partition((NAMES.half, world.partitions[name])).end


def _op(world: World, name: str, kind: OpKind) -> Op:
    return Op(
        transaction_id=name,
        timestamp=world.now_ms,
        half_offset=_end(world, name) - 1,
        resume_count=0,
        producer_group=world.owners[name],
        kind=kind,
        message_count=COUNT_UNKNOWN,
        check_number=0,
        source=OpSource.PRODUCER,
        actor="someone",
        reason="",
    )


def _send(world: World, name: str, op: Op) -> None:
    partition = world.partitions[name]
    offset = world.append((NAMES.op, partition), name.encode(), OP.encode(op), None)
    world.note(name, op.kind.value, op.source.value, partition, offset)


def _send_half(
    world: World,
    name: str,
    *extra: str,
    group: str,
    index: int,
    real_partition: int = PARTITION_BY_KEY,
) -> int:
    """Send a half message; `extra` names headers besides the user's own."""
    partition, key = world.partitions[name], world.keys.get(name)
    metadata = HalfMetadata(
        transaction_id=name,
        born_timestamp=world.now_ms,
        resume_count=0,
        message_index=index,
        producer_group=group,
        real_topic="alpha",
        real_partition=real_partition,
        check_times=0,
        immunity_ms=DEFAULT_IMMUNITY,
        first_append_timestamp=NO_TIMESTAMP,
        origin_offset=NO_OFFSET,
    )
    value = b"%d:%s" % (len(world.sent), name.encode())
    headers: Headers = [("trace", value[:4]), *((each, b"forged") for each in extra)]
    world.sent[value] = Sent(
        Placed(name, partition), group, index, key, headers, "alpha", real_partition
    )
    mine = [*headers, (HALF, HALF_METADATA.encode(metadata))]
    offset = world.append((NAMES.half, partition), key, value, mine)
    world.note(name, "half of a stranger", index, partition, offset)
    return offset


SAYINGS: tuple[Callable[[World, str], None], ...] = (
    decide,
    decide,
    miscount,
    discard,
    answer,
    answer,
    *[overreach] * 3,
    impersonate,
    forge,
    repeat,
)

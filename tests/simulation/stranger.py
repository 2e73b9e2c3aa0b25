"""Operators, forgers, and writers of junk: what else may stand in the half and op topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.headers import DEAD
from halfbridge.serde.records import OpKind, OpSource
from tests.simulation.client import Transaction, encoded, half_metadata, op_of, send_half
from tests.simulation.settings import GROUPS, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World


def speak(world: World) -> None:
    """Have somebody say something who should not, in a run where people lie."""
    if world.lies and world.clients:
        client = world.clients[world.choices.below(len(world.clients))]
        SAYINGS[world.choices.below(len(SAYINGS))](world, client)


def decide(world: World, client: Transaction) -> None:
    """An operator decides, whatever the client does."""
    kinds = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD)
    _say(world, client, kinds[world.choices.below(3)], OpSource.OPERATOR)


def miscount(world: World, client: Transaction) -> None:
    """A COMMIT names one message too many, or too few."""
    _contest(world, client)
    count = max(0, len(client.offsets) + (1, -1)[world.choices.below(2)])
    end = world.broker.partitions[NAMES.half, client.partition].end
    op = op_of(world, client.id, client.group, OpKind.COMMIT, half_offset=end - 1)
    world.send_op(client.partition, op._replace(message_count=count))


def discard(world: World, client: Transaction) -> None:
    """A producer says DISCARD, which it may not."""
    _say(world, client, OpKind.DISCARD, OpSource.PRODUCER)


def answer(world: World, client: Transaction) -> None:
    """Somebody says UNKNOWN without having been asked, or twice."""
    if not client.offsets:
        return  # a decision would be remembered, this would not
    end = world.broker.partitions[NAMES.half, client.partition].end
    op = op_of(world, client.id, client.group, OpKind.UNKNOWN, half_offset=end - 1)
    number = world.choices.below(4)
    world.send_op(client.partition, op._replace(check_number=number, source=OpSource.CHECK))


def overreach(world: World, client: Transaction) -> None:
    """An answer names a half offset that does not exist (yet): it holds up the ops behind it."""
    if not client.offsets:
        return
    beyond = world.broker.partitions[NAMES.half, client.partition].end + world.choices.below(4)
    op = op_of(world, client.id, client.group, OpKind.UNKNOWN, half_offset=beyond)
    world.send_op(client.partition, op._replace(check_number=99, source=OpSource.CHECK))


def impersonate(world: World, client: Transaction) -> None:
    """Another group decides about a transaction that is not its own."""
    other = GROUPS[client.group == GROUPS[0]]
    end = world.broker.partitions[NAMES.half, client.partition].end
    kind = (OpKind.COMMIT, OpKind.ROLLBACK)[world.choices.below(2)]
    world.closed.add(client.id)
    world.send_op(client.partition, op_of(world, client.id, other, kind, half_offset=end - 1))


def forge(world: World, client: Transaction) -> None:
    """A half message under another group's id, or with a header that nobody may send."""
    other = GROUPS[client.group == GROUPS[0]]
    now_ms = world.now_ms
    is_open = client.id not in world.closed and world.database[client.id] is None
    if not (is_open or world.has_late_halves):
        return
    world.closed.add(client.id)  # once is enough, unless halves may come late
    if world.choices.below(2):
        metadata = half_metadata(client.id, 0, other, "alpha", now_ms=now_ms)
        send_half(world, client.partition, metadata, client.key)
    elif client.offsets:
        world.contested.add(client.id)
        index = len(client.offsets)
        metadata = half_metadata(client.id, index, client.group, "alpha", now_ms=now_ms)
        send_half(world, client.partition, metadata, client.key, DEAD)


def repeat(world: World, client: Transaction) -> None:
    """A decision comes twice."""
    if world.database[client.id] is not None and client.offsets:
        kind = OpKind.COMMIT if world.database[client.id] else OpKind.ROLLBACK
        op = op_of(world, client.id, client.group, kind, half_offset=max(client.offsets))
        value = encoded(op._replace(message_count=len(client.offsets)))
        for _ in range(2):
            world.append((NAMES.op, client.partition), client.id.encode(), value, None)


def _contest(world: World, client: Transaction) -> None:
    world.contested.add(client.id)
    world.closed.add(client.id)


def _say(world: World, client: Transaction, kind: OpKind, source: OpSource) -> None:
    _contest(world, client)
    end = world.broker.partitions[NAMES.half, client.partition].end
    op = op_of(world, client.id, client.group, kind, half_offset=end - 1)
    world.send_op(client.partition, op._replace(source=source))


SAYINGS: tuple[Callable[[World, Transaction], None], ...] = (
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

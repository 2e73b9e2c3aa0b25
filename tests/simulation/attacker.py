"""Somebody who may write half and op topic, in a run where signatures are demanded.

The attacker knows every id, has read every signed record, and has the key of a producer group of
the attacker's own, and that of a client of each group. Nothing that the attacker writes may have
an effect: `World.forged` has the places of these records, and the judge takes them for junk.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from halfbridge.kafka.signatures import Signatures
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF, SIGN
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource, new_half, new_op
from halfbridge.serde.signatures import Signer, Verifier
from halfbridge.serde.signing_keys import Role, key_ring
from tests.kit.signing import a_key, a_table, write_key_file
from tests.simulation.settings import GROUPS, NAMES, PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import HalfMetadata, Op
    from halfbridge.testkit.memory.log import Record
    from tests.simulation.world import World

STRANGERS = "strangers"
TABLE = a_table(
    *(a_key("client", id=f"client-{group}", groups=[group]) for group in (*GROUPS, STRANGERS)),
    a_key("daemon"),
    a_key("operator"),
)
RING = key_ring(TABLE)
DAEMON = Signatures(RING, Verifier(RING, NAMES), Signer(RING, Role.DAEMON, NAMES))
KINDS = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD, OpKind.UNKNOWN)
SOURCES = tuple(OpSource)
MINE = Signer(RING, Role.CLIENT, NAMES)


@cache
def key_file() -> Path:
    """Return the file that clients read; made once in a process, and gone with the process."""
    return write_key_file(Path(_directory().name) / "keys.toml", TABLE)


def attack(world: World) -> None:
    """Write something, about a transaction of somebody else."""
    names = [name for name in world.partitions if world.offsets.get(name)]
    if names:
        choices = world.choices
        ATTACKS[choices.below(len(ATTACKS))](world, names[choices.below(len(names))])


def decide(world: World, name: str) -> None:
    """An op without a signature."""
    _forge_op(world, name, _op(world, name), [])


def decide_with_my_key(world: World, name: str) -> None:
    """An op about another group's transaction, signed with a key of the attacker's group."""
    op = _op(world, name)
    headers = _signed(world, STRANGERS, world.partitions[name], op)
    _forge_op(world, name, op, headers)


def decide_as_another_role(world: World, name: str) -> None:
    """A client of the group says what only the daemon or an operator may say."""
    sources = (OpSource.CHECKER, OpSource.OPERATOR)
    op = _op(world, name)._replace(source=sources[world.choices.below(len(sources))])
    _forge_op(world, name, op, _signed(world, world.owners[name], world.partitions[name], op))


def decide_with_a_stolen_signature(world: World, name: str) -> None:
    """The signature of another op."""
    stolen = _chosen(world, NAMES.op)
    if stolen is not None:
        _forge_op(world, name, _op(world, name), _signature_of(stolen))


def move(world: World, _name: str) -> None:
    """An unchanged copy of a signed op, in another pair."""
    record = _chosen(world, NAMES.op)
    if record is not None:
        place = (record.partition() + 1) % PARTITIONS
        _forge(world, (NAMES.op, place), record.key(), record.value(), record.headers())


def repeat(world: World, _name: str) -> None:
    """A signed op once more in its place: a duplicate, which changes nothing."""
    record = _chosen(world, NAMES.op)
    if record is not None and OP.decode(record.value() or b"").kind is not OpKind.DISCARD:
        place = (NAMES.op, record.partition())
        world.append(place, record.key(), record.value(), record.headers())
        world.note("repeated", record.partition(), record.offset())


def forge_a_copy(world: World, name: str) -> None:
    """A copy with another payload, which a rebuilt ledger would take for the message."""
    offsets = world.offsets[name]
    index = world.choices.below(len(offsets))
    half = _half(world, name, index)._replace(
        origin_offset=offsets[index], first_append_timestamp=world.now_ms
    )
    _forge_half(world, name, half, is_signed=world.choices.below(2) == 1)


def forge_a_half(world: World, name: str) -> None:
    """Another message of a transaction, or the same one with another payload; unsigned."""
    index = world.choices.below(len(world.offsets[name]) + 1)
    _forge_half(world, name, _half(world, name, index), is_signed=False)


def replace_a_payload(world: World, _name: str) -> None:
    """A signed half message with another value."""
    record = _chosen(world, NAMES.half)
    if record is not None:
        place = (NAMES.half, record.partition())
        _forge(world, place, record.key(), b"forged", record.headers())


ATTACKS: tuple[Callable[[World, str], None], ...] = (
    decide,
    decide_with_my_key,
    decide_as_another_role,
    decide_with_a_stolen_signature,
    move,
    repeat,
    *[forge_a_copy] * 4,
    forge_a_half,
    replace_a_payload,
)


@cache
def _directory() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="halfbridge-")


def _op(world: World, name: str) -> Op:
    choices, place = world.choices, world.partitions[name]
    end = world.partition((NAMES.half, place)).end
    return new_op(
        transaction_id=name,
        timestamp=world.now_ms,
        # An offset beyond the end would hold up the ops after it.
        half_offset=end - 1 + (0, 0, 3)[choices.below(3)],
        producer_group=world.owners[name],
        kind=KINDS[choices.below(len(KINDS))],
        message_count=COUNT_UNKNOWN,
        check_number=choices.below(3),
        source=SOURCES[choices.below(len(SOURCES))],
        actor="attacker",
    )


def _half(world: World, name: str, index: int) -> HalfMetadata:
    return new_half(
        transaction_id=name,
        born_timestamp=world.now_ms,
        message_index=index,
        producer_group=world.owners[name],
        real_topic="alpha",
    )


def _signed(world: World, group: str, partition: int, op: Op) -> Headers:
    key, value = op.transaction_id.encode(), OP.encode(op)
    return MINE.op(group, partition, key=key, value=value, now_ms=world.now_ms)


def _forge_op(world: World, name: str, op: Op, headers: Headers) -> None:
    _forge(world, (NAMES.op, world.partitions[name]), name.encode(), OP.encode(op), headers)


def _forge_half(world: World, name: str, half: HalfMetadata, *, is_signed: bool) -> None:
    place, key, value = world.partitions[name], b"a", b"forged %d" % len(world.forged)
    headers: Headers = [(HALF, HALF_METADATA.encode(half))]
    if is_signed:
        group = world.owners[name]
        headers = MINE.half(group, place, headers, key=key, value=value, now_ms=world.now_ms)
    _forge(world, (NAMES.half, place), key, value, headers)


def _forge(
    world: World,
    place: tuple[str, int],
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> None:
    offset = world.append(place, key, value, headers or None)
    world.forged.add((*place, offset))
    world.note("forged", *place, offset)


def _chosen(world: World, topic: str) -> Record | None:
    """Return a signed record of somebody else that can be read; None: there is none."""
    partition = world.partition((topic, world.choices.below(PARTITIONS)))
    there = [
        record
        for record in partition.slots[: partition.lso]
        if record is not None
        and (record.txn is None or not record.txn.is_aborted)
        and (topic, record.partition(), record.offset()) not in world.forged
        and _signature_of(record)
    ]
    return there[world.choices.below(len(there))] if there else None


def _signature_of(record: Record) -> Headers:
    return [header for header in record.headers() or [] if header[0] == SIGN]

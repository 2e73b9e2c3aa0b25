"""What befalls workers, brokers and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.progress import parse_progress
from tests.simulation.settings import NAMES, PARTITIONS, SESSION_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World

# How far a worker's clock jumps ahead.
JUMP_MS = 1_500
PAUSES_MS = (300, SESSION_MS + 500, 7_000)
SILENCES_MS = (500, SESSION_MS + 100, 6_000)
SKEWS_MS = (0, -40, 1_000, -1_000)


def strike(world: World) -> None:
    """Have one thing happen, as often as the run's rate of faults says."""
    if world.rate and world.choices.fault(50 + world.rate * 6):
        TROUBLES[world.choices.below(len(TROUBLES))](world)


def begin(world: World) -> None:
    """Choose how clocks and check responders are at the beginning."""
    for partition in world.broker.partitions.values():
        partition.skew_ms = SKEWS_MS[world.choices.below(len(SKEWS_MS))] if world.rate else 0
    for responder in world.responders:
        responder.is_deaf = world.choices.below(8) == 1


def kill(world: World) -> None:
    """A worker dies where it stands."""
    slot = world.choices.below(len(world.workers))
    if world.workers[slot] is not None:
        world.workers[slot] = None
        world.note("killed: slot", slot)


def pause(world: World) -> None:
    """A worker stands still, maybe for longer than its session."""
    worker = world.workers[world.choices.below(len(world.workers))]
    if worker is not None:
        worker.paused_until_ms = world.now_ms + PAUSES_MS[world.choices.below(len(PAUSES_MS))]
        world.note("paused:", worker.instance)


def replace(world: World) -> None:
    """A new incarnation takes a slot over while the old one goes on."""
    world.start(world.choices.below(len(world.workers)))


def rebalance(world: World) -> None:
    """The group begins a new generation."""
    world.broker.group.rebalance()
    world.note("rebalance")


def leave(world: World) -> None:
    """A worker leaves for good, and another one comes on its slot."""
    slot = world.choices.below(len(world.workers))
    worker = world.workers[slot]
    if worker is not None:
        world.broker.group.leave(worker.instance)
        world.workers[slot] = None
        world.note("left: slot", slot)


def jump(world: World) -> None:
    """A worker's clock jumps ahead."""
    worker = world.workers[world.choices.below(len(world.workers))]
    if worker is not None:
        worker.skew_ms += JUMP_MS
        world.note("clock jumped:", worker.instance)


def skew(world: World) -> None:
    """A partition moves to a broker with another clock."""
    places = list(world.broker.partitions.values())
    partition = places[world.choices.below(len(places))]
    partition.skew_ms = SKEWS_MS[world.choices.below(len(SKEWS_MS))]
    world.note("clock of", partition.topic, partition.number, partition.skew_ms)


def silence(world: World) -> None:
    """Nobody gets any time for a while."""
    world.pass_time(SILENCES_MS[world.choices.below(len(SILENCES_MS))])


def delete(world: World) -> None:
    """Retention deletes what a rebuild does not need: half records below H, ops below T."""
    number = world.choices.below(PARTITIONS)
    committed = world.broker.fetch_offsets([(NAMES.half, number), (NAMES.op, number)])
    if committed is None:
        return
    half, op = committed[NAMES.half, number], committed[NAMES.op, number]
    progress = parse_progress(half[0], *op)
    world.broker.partitions[NAMES.half, number].delete_before(progress.half)
    world.broker.partitions[NAMES.op, number].delete_before(progress.ops_from)
    world.note("deleted before", number, progress.half, progress.ops_from)


def lose_client(world: World) -> None:
    """A client dies where it stands."""
    if world.clients:
        which = world.choices.below(len(world.clients))
        client = world.clients.pop(which)
        world.alive.discard(client.id)
        world.note("client dies:", client.id)


def deafen(world: World) -> None:
    """A group's check responders are away for long, or come back."""
    responder = world.responders[world.choices.below(len(world.responders))]
    responder.is_deaf = not responder.is_deaf
    world.note("deaf:", responder.group, responder.is_deaf)


def write_junk(world: World) -> None:
    """A record comes that cannot be read."""
    topic = (NAMES.half, NAMES.op)[world.choices.below(2)]
    place = topic, world.choices.below(PARTITIONS)
    world.append(place, b"k", b"junk", None)
    world.note("junk", place)


TROUBLES: tuple[Callable[[World], None], ...] = (
    kill,
    kill,
    pause,
    pause,
    replace,
    replace,
    rebalance,
    leave,
    jump,
    skew,
    silence,
    silence,
    delete,
    delete,
    lose_client,
    lose_client,
    deafen,
    write_junk,
    write_junk,
)

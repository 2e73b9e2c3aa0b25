"""What befalls workers, brokers and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.progress import parse_progress
from halfbridge.testkit.memory.broker import Rights
from halfbridge.testkit.memory.member import MemoryMember
from tests.simulation.settings import (
    ALLOWED,
    GROUPS,
    LATER,
    NAMES,
    PARTITIONS,
    REAL_TOPICS,
    SESSION_MS,
    SMALL,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.memory.log import Partition
    from halfbridge.testkit.memory.process import Process
    from tests.simulation.world import World

# Records that cannot be read, at a time.
JUNK = (1, 1, 2, 6)
# How long the others are awaited when partitions move.
MOVE_MS = 300
# How far a worker's clock jumps ahead.
JUMP_MS = 1_500
PAUSES_MS = (300, SESSION_MS + 500, 7_000)
SILENCES_MS = (500, SESSION_MS + 100, 6_000)
SKEWS_MS = (0, -40, 2_000, -1_000)
# In runs where topics may be shut they are so often, in thousandths, and so much more than others.
SHUT_RATE = 600
SHUT_OFTEN = 40
# Longer than any run: real topics refuse this time to the end, and take the workers' clocks.
FAR_AHEAD_MS = 200_000


def strike(world: World) -> None:
    """Have one thing happen, as often as the run's rate of faults says."""
    refuses = world.profile.refuses
    if world.rate and world.choices.fault(SHUT_RATE if refuses else 50 + world.rate * 6):
        troubles = (*TROUBLES, *[shut] * SHUT_OFTEN) if refuses else TROUBLES
        troubles[world.choices.below(len(troubles))](world)


def begin(world: World) -> None:
    """Choose how clocks and check responders are at the beginning."""
    for partition in _partitions(world):
        partition.skew_ms = SKEWS_MS[world.choices.below(len(SKEWS_MS))] if world.rate else 0
    if world.profile.refuses and world.rate:
        for partition in _partitions(world):
            partition.skew_ms = FAR_AHEAD_MS if partition.topic in {NAMES.half, NAMES.op} else 0
    world.deaf.update(group for group in GROUPS if world.choices.fault(world.profile.deaf))


def kill(world: World) -> None:
    """Kill a worker."""
    slot = world.choices.below(len(world.workers))
    worker = world.workers[slot]
    if worker is not None:
        worker.die()
        world.workers[slot] = None
        world.note("killed: slot", slot)


def pause(world: World) -> None:
    """Pause a worker, maybe for longer than its session."""
    worker = world.workers[world.choices.below(len(world.workers))]
    if worker is not None:
        worker.paused_until_ms = world.now_ms + PAUSES_MS[world.choices.below(len(PAUSES_MS))]
        world.note("paused:", worker.instance)


def replace(world: World) -> None:
    """Start a new incarnation on a slot while the old one continues."""
    world.start(world.choices.below(len(world.workers)))


def rebalance(world: World) -> None:
    """The group begins a new generation."""
    world.network.rebalance()
    world.note("rebalance")


def leave(world: World) -> None:
    """A worker leaves for good, and another one comes on its slot."""
    _leave(world, world.choices.below(len(world.workers)))


def before(world: World, process: Process) -> int | None:
    """Return the first slot that is served, if a process has a later one; else None."""
    slots = [slot for slot, worker in enumerate(world.workers) if worker is not None]
    worker = world.workers[slots[0]] if slots else None
    is_later = any(world.workers[slot].process is process for slot in slots[1:])
    return slots[0] if worker is not None and is_later else None


def move(world: World, process: Process) -> None:
    """A worker before this one leaves: partitions move, whether this one is heard or not."""
    slot = before(world, process)
    if slot is not None:
        world.network.rebalance(MOVE_MS)
        _leave(world, slot)


def _leave(world: World, slot: int) -> None:
    worker = world.workers[slot]
    if worker is not None:
        world.network.leave(worker.instance)
        worker.die()
        world.workers[slot] = None
        world.note("left: slot", slot)


def jump(world: World) -> None:
    """A worker's clock jumps ahead."""
    worker = world.workers[world.choices.below(len(world.workers))]
    if worker is not None and not world.profile.refuses:
        worker.process.skew_ns += JUMP_MS * 1_000_000
        world.note("clock jumped:", worker.instance)


def skew(world: World) -> None:
    """A partition moves to a broker with another clock."""
    if world.profile.refuses:
        return
    places = _partitions(world)
    partition = places[world.choices.below(len(places))]
    partition.skew_ms = SKEWS_MS[world.choices.below(len(SKEWS_MS))]
    world.note("clock of", partition.topic, partition.number, partition.skew_ms)


def silence(world: World) -> None:
    """Nobody gets any time for a while."""
    world.pass_time(SILENCES_MS[world.choices.below(len(SILENCES_MS))])


def delete(world: World) -> None:
    """Retention deletes what a rebuild does not need: half records below H, ops below T."""
    number = world.choices.below(PARTITIONS)
    places = [(NAMES.half, number), (NAMES.op, number)]
    committed = world.broker.group(NAMES.daemon_group).fetch(places, is_stable=True)
    if committed is None:
        return
    half, op = committed[NAMES.half, number], committed[NAMES.op, number]
    progress = parse_progress(half[0], *op)
    world.partition((NAMES.half, number)).delete_before(progress.half)
    world.partition((NAMES.op, number)).delete_before(progress.ops_from)
    world.note("deleted before", number, progress.half, progress.ops_from)


def lose_client(world: World) -> None:
    """A client process dies, with its check responder, or closes in order; a new one starts."""
    which = world.choices.below(len(world.shops))
    if world.sent_judge is not None and world.choices.below(2):
        world.shops[which].leave()
    else:
        world.replace_shop(which)


def deafen(world: World) -> None:
    """A group's checkers hang for long, or work again."""
    group = GROUPS[world.choices.below(len(GROUPS))]
    world.deaf.symmetric_difference_update((group,))
    world.note("deaf:", group, group in world.deaf)


def write_junk(world: World) -> None:
    """A record comes that cannot be read."""
    topic = (NAMES.half, NAMES.op)[world.choices.below(2)]
    place = topic, world.choices.below(PARTITIONS)
    count = JUNK[world.choices.below(len(JUNK))]
    for _ in range(count):
        world.append(place, b"k", b"junk", None)
    world.note("junk", place, count)


def stall(world: World) -> None:
    """A worker's consumer fetches nothing more, without an error and for good."""
    worker = world.workers[world.choices.below(len(world.workers))]
    members = [] if worker is None else worker.process.clients
    world.network.stalled.update(each for each in members if isinstance(each, MemoryMember))
    world.note("stalled:", worker and worker.instance)


def shut(world: World) -> None:
    """A worker loses the right to write to a real topic, or a topic is made, or all is well."""
    if not world.profile.refuses:
        return
    worker = world.workers[world.choices.below(len(world.workers))]
    which = world.choices.below(6)
    if which > 2:
        go_away(world)
    elif worker is None or which < 2:
        open_topics(world)
    else:
        world.shut.add(SMALL)
        world.broker.rights[worker.process.name] = Rights(unwritten={SMALL})
        world.note("lost the right to write:", worker.instance)


def go_away(world: World) -> None:
    """A partition takes neither records nor markers, whether metadata tell it or not.

    Mostly it is one of a real topic, whose deliveries wait.
    """
    is_any = world.choices.below(4) == 0
    places = [
        (each.topic, each.number) for each in _partitions(world) if is_any or each.topic in ALLOWED
    ]
    place = places[world.choices.below(len(places))]
    world.broker.go_away(place, is_leaderless=world.choices.below(2) == 1)
    world.shut.add(place[0])
    world.note("away:", *place)


def open_topics(world: World) -> None:
    """Give all rights back, make the topic that is missing, and bring all partitions back."""
    world.broker.rights.clear()
    for place in [*world.broker.away]:
        world.broker.come_back(place)
    if LATER not in world.broker.topics:
        world.broker.create_topic(NewTopic(LATER, REAL_TOPICS[LATER], 1, {}))
    world.note("all topics may be written")


def tear(world: World) -> None:
    """A process loses its connections; the requests on them may have arrived."""
    world.network.tear()


def _partitions(world: World) -> list[Partition]:
    return [each for topic in world.broker.topics.values() for each in topic.partitions]


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
    tear,
    tear,
    write_junk,
    write_junk,
    stall,
    shut,
)

"""Three brokers that die, fall silent, hand over their roles; workers that fall asleep."""

import os
import signal
import time

import pytest

from tests.faults.scene import Scene
from tests.kit.roles import TRANSACTION_LOG, RoleError

pytestmark = [pytest.mark.broker, pytest.mark.long]

_ROUNDS = 3
_SESSION_S = 6.0
_NAPS = 4
_SILENT_S = 10.0  # the brokers miss one of theirs after 6 s
_START_S = 180.0  # three of them and their load share the cores with a broker that starts
# Four kafka_txn time-outs (5 s), so that each worker tries to commit several times.
_TOO_FEW_S = 20.0
_ACKS_END_S = 2.0  # what was in flight when the second broker died
_MOVES = 25
# Longer than a client needs to find a new leader, so that each move meets traffic.
_MOVE_EVERY_S = 2.0
_OFFSETS_LOG = "__consumer_offsets"


def test_case_06_sleepers_beyond_their_session(three: Scene) -> None:
    """A worker is stopped in the middle of its work until the group has given it up, four times.

    Its requests after it wakes are refused.
    """
    three.begin()
    for nap in range(_NAPS):
        time.sleep(three.draw.uniform(0, 0.3))  # the fault itself: a moment nobody chose
        sleeper = three.workers()[nap % 2]
        os.kill(sleeper, signal.SIGSTOP)
        three.stage.await_members(1, within_s=_SESSION_S * 4)
        three.healed()
        os.kill(sleeper, signal.SIGCONT)
        three.note("worker stopped beyond its session")
        three.stage.await_members(2, within_s=_SESSION_S * 4)
        three.healed()

    three.finish()


def test_case_25_rolling_hard_restart(three: Scene) -> None:
    """Each broker in turn is killed and started again, three rounds, under load.

    Deliveries go on with two brokers, and again with three.
    """
    three.begin()
    for _ in range(_ROUNDS):
        for each in three.cluster.node_ids:
            node = three.cluster.node(each)
            node.kill()
            three.note("broker killed and started again")
            three.healed()
            node.spawn()
            node.wait_ready(brokers_min=3, timeout_s=_START_S)
            three.await_in_sync()
            three.healed()

    three.finish()


def test_case_26_stopped_by_role(three: Scene) -> None:
    """The broker with a role falls silent for longer than the others wait, and wakes up again.

    It believes for a moment that it still has its role.
    """
    three.begin()
    for role, find in {
        "transaction coordinator": three.transaction_coordinator,
        "group coordinator": three.group_coordinator,
        "leader of a half partition": three.half_leader,
        "leader of a real partition": three.real_leader,
    }.items():
        node = three.cluster.node(find())
        node.pause()
        time.sleep(_SILENT_S)
        node.resume()
        three.note(f"{role}: stopped for 10 s")
        three.healed()
        three.await_in_sync()

    three.finish()


def test_case_28_the_group_coordinator_is_gone_for_good(three: Scene) -> None:
    """It is killed and never comes back; no worker hangs, and two brokers do what three did."""
    three.begin()
    three.cluster.node(three.group_coordinator()).kill()
    three.note("group coordinator killed for good")
    three.healed()
    three.stage.await_members(2, within_s=_SESSION_S * 4)
    three.healed(400)

    three.finish()


def test_case_35_too_few_in_sync(three: Scene) -> None:
    """Two of three brokers are away for 20 s: no client gets an acknowledged decision.

    Back again, everything continues, and readers are held up no longer than the bound.
    """
    three.begin()
    gone = three.draw.sample(three.cluster.node_ids, 2)
    for each in gone:
        three.cluster.node(each).kill()
    three.note("two of three brokers killed, back after 20 s")
    time.sleep(_ACKS_END_S)
    reported = three.stage.decisions_reported()
    time.sleep(_TOO_FEW_S)
    reported_without = three.stage.decisions_reported() - reported
    for each in gone:
        three.cluster.node(each).spawn()
    for each in gone:
        three.cluster.node(each).wait_ready(brokers_min=3, timeout_s=_START_S)
    three.healed()

    assert reported_without == 0, f"{reported_without} decisions acknowledged by one broker alone"
    assert reported > 0
    three.finish()


def test_case_48_leaders_move_every_2_s(three: Scene) -> None:
    """Leaders of half, op and real partitions and both coordinators move, one every 2 s."""
    three.begin()
    names = three.stage.names
    places = [
        *((topic, p) for topic in (names.half, names.op) for p in range(4)),
        *((topic, p) for topic in three.stage.real_topics for p in range(4)),
        *((topic, p) for topic in (TRANSACTION_LOG, _OFFSETS_LOG) for p in range(4)),
    ]
    for _ in range(_MOVES):
        began = time.monotonic()
        topic, partition = three.draw.choice(places)
        try:
            three.roles.move_leader(topic, partition)
        except RoleError:
            three.note("move refused")  # a replica is not in sync yet
            continue
        three.note(f"leader of {topic.removeprefix(three.stage.prefix)} moved")
        time.sleep(max(0.0, _MOVE_EVERY_S - (time.monotonic() - began)))
    three.healed()

    moved = sum(count for fault, count in three.stage.injected.items() if "moved" in fault)
    assert moved > _MOVES // 2, three.stage.injected
    three.finish()

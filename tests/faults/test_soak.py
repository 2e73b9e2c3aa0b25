"""An hour of faults drawn at random: the history stays clean, and nothing grows.

`make soak`; HALFBRIDGE_SOAK_MINUTES says how long, HALFBRIDGE_FAULTS_SEED repeats the draws.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from halfbridge.testkit.reader import read_all
from tests.faults.scene import Scene
from tests.kit.proxy import Act, Api, Rule
from tests.kit.roles import TRANSACTION_LOG

MINUTES = float(os.environ.get("HALFBRIDGE_SOAK_MINUTES") or 60)

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(round(MINUTES * 60) + 1800)]

# Shorter and longer than a session (6 s): a worker or broker is missed, or is not.
_LASTS_S = (1.0, 8.0)
# The next fault meets a daemon that still rebuilds, or one at work.
_CALM_S = (0.5, 5.0)
_LATE_MS = (20, 2500)
_ROUNDS_MIN = 8  # fewer say nothing of growth
# A worker that was killed starts again, and one that was cut off holds more for a while.
_RSS_MIB_SLACK, _THREADS_SLACK, _FILES_SLACK = 60, 12, 40
_CALM = 50
_START_S = 180.0  # three of them and their load share the cores with a broker that starts
# Values of __transaction_state (TransactionLogValue): version, producer id and epoch, timeout; then
# the state, of which these are kafka_txns that have not ended.
_STATE_AT = 16
_OPEN_STATES = {1: "ongoing", 2: "commit prepared", 3: "abort prepared"}


@dataclass(frozen=True, slots=True)
class Held:
    """What the daemon's largest worker held at one moment."""

    rss_mib: int
    threads: int
    files: int


def _held(scene: Scene) -> Held:
    pages_mib = os.sysconf("SC_PAGE_SIZE") / 2**20
    each = [
        (
            int(int((process / "statm").read_text().split()[1]) * pages_mib),
            len(list((process / "task").iterdir())),
            len(list((process / "fd").iterdir())),
        )
        for process in (Path(f"/proc/{pid}") for pid in scene.workers())
    ]
    return Held(*(max(values) for values in zip(*each, strict=True)))


def _kafka_txns(scene: Scene) -> dict[bytes, int]:
    """Return transactional id -> state, of all that the brokers know."""
    log = read_all(scene.stage.direct, [TRANSACTION_LOG])
    last = {record.key: record.value for record in log}
    return {key: value[_STATE_AT] for key, value in last.items() if key and value}


def _kill_a_worker(scene: Scene) -> None:
    os.kill(scene.draw.choice(scene.workers()), signal.SIGKILL)


def _stop_a_worker(scene: Scene) -> None:
    sleeper = scene.draw.choice(scene.workers())
    os.kill(sleeper, signal.SIGSTOP)
    time.sleep(scene.draw.uniform(*_LASTS_S))
    os.kill(sleeper, signal.SIGCONT)


def _kill_a_broker(scene: Scene) -> None:
    node = scene.cluster.node(scene.draw.choice(scene.cluster.node_ids))
    node.kill()
    time.sleep(scene.draw.uniform(*_LASTS_S))
    node.spawn()
    node.wait_ready(brokers_min=3, timeout_s=_START_S)
    scene.await_in_sync()


def _stop_a_broker(scene: Scene) -> None:
    node = scene.cluster.node(scene.draw.choice(scene.cluster.node_ids))
    node.pause()
    time.sleep(scene.draw.uniform(*_LASTS_S))
    node.resume()
    scene.await_in_sync()


def _cut_a_broker_off(scene: Scene) -> None:
    node = scene.draw.choice(scene.cluster.node_ids)
    scene.draw.choice((scene.proxy.cut, scene.proxy.blackhole, scene.proxy.drop_answers))(node)
    time.sleep(scene.draw.uniform(*_LASTS_S))
    scene.proxy.heal()


def _lose_answers_to_commits(scene: Scene) -> None:
    scene.proxy.add(Rule(api=Api.END_TXN, act=Act.SWALLOW))
    time.sleep(scene.draw.uniform(*_LASTS_S))
    scene.proxy.heal()


def _deliver_late(scene: Scene) -> None:
    api = scene.draw.choice((Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE))
    late_ms = scene.draw.randrange(*_LATE_MS)
    scene.proxy.add(Rule(api=api, act=Act.STRAND, delay_ms=late_ms, times=2))
    time.sleep(scene.draw.uniform(*_LASTS_S))
    scene.proxy.heal()


_FAULTS: dict[str, Callable[[Scene], None]] = {
    "worker killed": _kill_a_worker,
    "worker stopped": _stop_a_worker,
    "broker killed and started again": _kill_a_broker,
    "broker stopped": _stop_a_broker,
    "broker cut off from clients": _cut_a_broker_off,
    "answers to EndTxn lost": _lose_answers_to_commits,
    "requests late": _deliver_late,
}


def test_case_60_soak(three: Scene) -> None:
    """Faults one after the other, each healed before the next; then everything is judged.

    Memory, threads and open files of the workers are those of the first half; the brokers know
    the daemon's transactional ids and no others, and none of them is in a kafka_txn at the end.
    """
    three.begin()
    until = time.monotonic() + MINUTES * 60
    held: list[Held] = []
    while time.monotonic() < until or len(held) < _ROUNDS_MIN:
        name = three.draw.choice(sorted(_FAULTS))
        _FAULTS[name](three)
        three.note(name)
        three.healed(_CALM)
        time.sleep(three.draw.uniform(*_CALM_S))
        held.append(_held(three))

    three.finish()
    _assert_flat(held)
    known = _kafka_txns(three)
    assert len(known) == len(three.transactional_ids()), known
    left_open = {key: _OPEN_STATES[state] for key, state in known.items() if state in _OPEN_STATES}
    assert not left_open


def _assert_flat(held: list[Held]) -> None:
    half = len(held) // 2
    early, late = held[:half], held[half:]
    for what, slack in (
        ("rss_mib", _RSS_MIB_SLACK),
        ("threads", _THREADS_SLACK),
        ("files", _FILES_SLACK),
    ):
        before, after = (median(getattr(each, what) for each in part) for part in (early, late))
        print(f"{what}: {before} in the first half, {after} in the second")
        assert after <= before + slack, f"{what} grows: {before}, then {after}"

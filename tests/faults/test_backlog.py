"""A daemon that was away while a million transactions were decided."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.testkit.reader import read_all
from tests.faults.mass import PARTITIONS, Mass, Worker
from tests.faults.stage import Stage, seed_of_run
from tests.kit.reading import reader_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

DECIDED = int(os.environ.get("HALFBRIDGE_BACKLOG_DECIDED") or 1_000_000)
_BENCH = 100_000
_BENCH_S_MAX = 300
_SAME = 0.75  # other tests may run beside one of the two; the figures are printed
_ROOT = Path(__file__).parents[2]
_DRAINED_S_MAX = 900.0  # a busy machine's bound; the figure is printed
# A delivery follows within a fraction of a second of what decides it.
_NOTHING_MORE_S = 3.0
_AT_ONCE = 10_000
_KILL_EVERY = DECIDED // 30  # deliveries, on average
# After the deliveries that were counted: kills fall at any point of the next kafka_txn.
_PAUSE_S_MAX = 0.5


def _bench_per_s(servers: str) -> float:
    """Return what the bench delivers on this broker, in transactions a second."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "halfbridge", "bench", "--bootstrap-servers", servers),
            *("--messages", str(_BENCH), "--json"),
        ],
        capture_output=True,
        check=True,
        text=True,
        timeout=_BENCH_S_MAX,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    return float(json.loads(done.stdout)["transactions_per_s"])


class _Drained:
    """What a reader saw, compared with what was decided, as it comes."""

    def __init__(self, mass: Mass) -> None:
        self._mass = mass
        self._next = list(range(PARTITIONS))  # number that each partition shows next
        self.count = 0

    def see(self, message: Any) -> None:
        """Take a record; the next one of its partition, byte-exact, or the test fails."""
        assert message.error() is None, message.error()
        number = self._next[message.partition()]
        assert message.value() == self._mass.body(number), f"not transaction {number}"
        headers = dict(message.headers())
        assert headers[TRANSACTION_ID].decode() == self._mass.transaction_ids[number]
        self._next[message.partition()] += PARTITIONS
        self.count += 1


def _decided(stage: Stage, name: str) -> Mass:
    """Store the backlog, with no daemon there."""
    stage.make()
    mass = Mass(stage, producer_group="shop", real_topic=stage.real_topics[0])
    mass.store_halves(DECIDED)
    mass.store_commits()
    stage.load.append(f"{DECIDED} decided, then {name}")
    stage.injected["daemon away for a million decisions"] += 1
    return mass


def _nothing_else(stage: Stage, reader: Any, worker: Worker) -> None:
    """Fail if anything is delivered again, or was dead-lettered, once all are applied."""
    until("the worker has applied them all", lambda: worker.metric("rocketmq_half_messages") == 0)
    more = reader.consume(1, _NOTHING_MORE_S)
    dead = read_all(stage.direct, [stage.names.dead])
    stage.judged = {
        "transactions": DECIDED,
        "messages": DECIDED,
        "delivered": DECIDED,
        "violations": len(more) + len(dead),
    }
    assert not more, "something was delivered twice"
    assert not dead


def test_a_million_decided_while_the_daemon_was_away(own_stage: Stage) -> None:
    """All are delivered once, in order, as fast as the bench delivers on the same broker."""
    stage = own_stage
    bench_per_s = _bench_per_s(stage.servers)
    mass = _decided(stage, "checker run")
    reader, drained = (
        reader_of(stage.servers, stage.real_topics[:1], partitions=PARTITIONS),
        _Drained(mass),
    )
    began = time.monotonic()
    worker = Worker(stage, "back")
    first = 0.0
    deadline = began + _DRAINED_S_MAX
    while drained.count < DECIDED and time.monotonic() < deadline:
        for message in reader.consume(_AT_ONCE, 0.2):
            first = first or time.monotonic()
            drained.see(message)
    drained_per_s = drained.count / (time.monotonic() - first)
    assert drained.count == DECIDED
    _nothing_else(stage, reader, worker)
    reader.close()
    print(
        f"{DECIDED} decided: first delivered {first - began:.1f} s after the worker's start, then"
        f" {drained_per_s:.0f}/s, bench {bench_per_s:.0f}/s, peak {worker.peak_mib()} MiB"
    )
    assert drained_per_s >= bench_per_s * _SAME


def test_a_million_decided_and_kills_in_the_drain(own_stage: Stage) -> None:
    """The worker is killed again and again while it delivers them: each still once, in order."""
    stage = own_stage
    seed = stage.seed = seed_of_run()
    draw = random.Random(seed)
    mass = _decided(stage, "checker run, killed")
    reader, drained = (
        reader_of(stage.servers, stage.real_topics[:1], partitions=PARTITIONS),
        _Drained(mass),
    )
    worker = Worker(stage, "worker-0")
    kills = 0
    kill_at = draw.randrange(_KILL_EVERY)
    deadline = time.monotonic() + _DRAINED_S_MAX
    while drained.count < DECIDED and time.monotonic() < deadline:
        for message in reader.consume(_AT_ONCE, 0.2):
            drained.see(message)
        if drained.count >= kill_at:
            time.sleep(draw.uniform(0, _PAUSE_S_MAX))
            stage.children.kill(worker.child)
            kills += 1
            kill_at = drained.count + draw.randrange(2 * _KILL_EVERY)
            worker = Worker(stage, f"worker-{kills}")
    stage.injected["worker killed"] += kills
    assert drained.count == DECIDED
    assert kills > 0
    _nothing_else(stage, reader, worker)
    reader.close()

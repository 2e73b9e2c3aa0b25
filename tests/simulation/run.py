"""Running seeds: one by one, or by the thousand, and telling what went wrong."""

from __future__ import annotations

import logging
import os
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from halfbridge.bridge import shared
from halfbridge.checker.core import deferred, entries, ledger
from halfbridge.checker.loop import asking, at_least_once, collector, producers, routes, topic_watch
from halfbridge.checker.loop import worker as worker_module
from halfbridge.checker.loop.clients import QUESTION_S
from halfbridge.serde.delivery import Delivery
from tests.simulation.choices import Choices, shrink
from tests.simulation.workers import NotedWorker
from tests.simulation.world import STEPS, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfbridge.checker.loop.worker import Worker

SEED_VARIABLE = "HALFBRIDGE_SIM_SEED"  # one seed, and no other
SEEDS_VARIABLE = "HALFBRIDGE_SIM_SEEDS"  # how many seeds
# Seeds that one process runs at a time: a second or two of work.
CHUNK = 100
# Short, so that a run has several proofs of the end of a half partition.
OP_WAIT_MS = 50
# Short, so that a run replaces a stalled consumer.
STALLED_S = 5.0
POLL_S = 1.0
# So that most batches of a short run at least once are written without a kafka_txn.
FIRST_KAFKA_TXNS = 1
# Partitions go away in runs where brokers refuse: only these need spare transactional ids, and give
# a partition up sooner than its kafka_txn.
SPARES = 3
AWAY_S = 0.5
NEVER_S = 1e9
# A schedule may be slower than the client's time limit of a check request. A run without faults
# loses no request.
NEVER_MS = 1_000_000_000
# So that a short run comes to the end of a wait, and to further attempts. Elsewhere a partition
# whose records time out is not given up: no promise allows it there.
AWAY_MS_MIN = 1_000
BLAMED_MS = 500
# So that a short run has time for more than look-ups.
FRESH_S = 30.0


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        failure: What was broken; empty when nothing was.
        place: The line of the judge that found it, which names the promise.
        steps: How many there were.
        digest: Of all that happened.
        world: The world at the end of the run.
    """

    failure: str
    place: str
    steps: int
    digest: str
    world: World


def seeds(count: int) -> range:
    """Return the seeds to run: `count` of them, unless the environment says otherwise."""
    one = os.environ.get(SEED_VARIABLE)
    if one is not None:
        return range(int(one), int(one) + 1)
    return range(int(os.environ.get(SEEDS_VARIABLE, count)))


def run(
    choices: Choices,
    *,
    steps: int = STEPS,
    worker: type[Worker] = NotedWorker,
    delivery: Delivery = Delivery.EXACTLY_ONCE,
    is_verbose: bool = False,
    is_signed: bool = False,
    is_sent: bool = False,
) -> Outcome:
    """Run once, whatever happens; nothing is logged."""
    logging.disable()
    world = World(
        choices, worker_type=worker, delivery=delivery, is_signed=is_signed, is_sent=is_sent
    )
    world.is_verbose = is_verbose
    failure = place = ""
    try:
        with (
            patch.object(entries, "RECENT_MS", world.remembers_ms),
            patch.object(ledger, "OP_WAIT_MS", OP_WAIT_MS),
            patch.object(worker_module, "STALLED_S", STALLED_S),
            patch.object(worker_module, "POLL_S", POLL_S),
            patch.object(at_least_once, "FIRST_KAFKA_TXNS", FIRST_KAFKA_TXNS),
            patch.object(producers, "SPARES_MAX", SPARES if world.profile.refuses else 0),
            patch.object(worker_module, "STALL_S", AWAY_S if world.profile.refuses else NEVER_S),
            patch.object(asking, "STALL_S", AWAY_S if world.profile.refuses else QUESTION_S),
            patch.object(
                asking, "REQUEST_MS_MAX", asking.REQUEST_MS_MAX if world.rate else NEVER_MS
            ),
            patch.object(
                deferred, "AWAY_MS_MIN", AWAY_MS_MIN if world.profile.refuses else NEVER_MS
            ),
            patch.object(routes, "BLAMED_MS", BLAMED_MS),
            patch.object(topic_watch, "FRESH_S", FRESH_S),
            # Transactions that share a partition meet fewer orders of events.
            patch.object(shared, "KEYLESS_STICKY_S", shared.KEYLESS_STICKY_S if is_sent else 0.0),
            patch.object(collector, "BACKGROUND_RECORDS", world.profile.background_records),
        ):
            world.run(steps)
    except Exception as error:  # noqa: BLE001 (a crash of the code under test is a finding too)
        failure = f"{type(error).__name__}: {error}"
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno}"
    finally:
        world.close()
        logging.disable(logging.NOTSET)
    digest = blake2b(repr(world.trace).encode(), digest_size=16).hexdigest()
    return Outcome(failure, place, world.steps, digest, world)


def report(
    seed: int,
    *,
    worker: type[Worker] = NotedWorker,
    delivery: Delivery = Delivery.EXACTLY_ONCE,
    is_signed: bool = False,
    is_sent: bool = False,
) -> str:
    """Return what a failing seed shows, in a run as simple as can be; empty when it is fine."""
    first = Choices(seed)
    how: dict[str, Any] = {
        "worker": worker,
        "delivery": delivery,
        "is_signed": is_signed,
        "is_sent": is_sent,
    }
    outcome = run(first, **how)
    if not outcome.failure:
        return ""

    def fails(script: Sequence[int]) -> bool:
        # The same promise: else a smaller run shows another defect than the one it was found by.
        smaller = run(Choices(seed, script), **how)
        return smaller.place == outcome.place

    script = shrink(first.made, fails)
    small = run(Choices(seed, script), is_verbose=True, **how)
    lines = [
        f"seed {seed}: {outcome.failure}",
        f"replay: {SEED_VARIABLE}={seed} .venv/bin/pytest tests/simulation/test_simulation.py",
        f"mode: {delivery.value}",
        f"choices that are not 0: {_faults(first.made)}, and {_faults(script)} when made smaller",
        "step, ms, what happened:",
        *(" ".join(map(str, happened)) for happened in small.world.trace),
        small.failure,
    ]
    return "\n".join(lines)


class Ran(NamedTuple):
    """What is kept of a run: its world would hold all records."""

    failure: str
    steps: int
    digest: str
    repeats: int


# `delivery` has no default: `cache` takes a call that leaves an argument out for another one.
@cache
def ran(seed: int, delivery: Delivery) -> Ran:
    """Run a seed once for all tests that ask what came of it; not for planted defects."""
    outcome = run(Choices(seed), delivery=delivery)
    return Ran(outcome.failure, outcome.steps, outcome.digest, outcome.world.judge.repeats)


def failing(
    numbers: Sequence[int], delivery: Delivery = Delivery.EXACTLY_ONCE
) -> tuple[list[int], int]:
    """Return which seeds fail, and how many steps all of them took."""
    outcomes = {seed: ran(seed, delivery) for seed in numbers}
    failed = [seed for seed, each in outcomes.items() if each.failure]
    return failed, sum(each.steps for each in outcomes.values())


def failing_in_parallel(
    numbers: range, delivery: Delivery = Delivery.EXACTLY_ONCE
) -> tuple[list[int], int]:
    """Return the same, from one process for each core."""
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(partial(failing, delivery=delivery), chunks))
    return list(chain.from_iterable(failed for failed, _ in parts)), sum(n for _, n in parts)


def happened(numbers: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """Yield all that happened in these seeds, plans in words."""
    for seed in numbers:
        for what in run(Choices(seed), is_verbose=True).world.trace:
            yield what[2:]


def _faults(script: Sequence[int]) -> int:
    return sum(map(bool, script))

"""Thousands of runs of the whole protocol, each from one seed; a failing one prints how to see it.

HALFBRIDGE_SIM_SEED runs one seed, HALFBRIDGE_SIM_SEEDS so many from 0 on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.serde.delivery import Delivery
from tests.simulation.choices import Choices, shrink
from tests.simulation.run import failing, failing_in_parallel, happened, ran, report, run, seeds
from tests.simulation.world import STEPS

ROOT = Path(__file__).resolve().parents[2]
# Of `make test` and of `make test-all`: 0.2 s a seed.
SEEDS_FAST = 30
SEEDS = 120
LONG_SEEDS = 10_000
# pytest reports a long run part by part, so that an interrupted run shows which parts passed. The
# time limit of a part guards against a seed that never ends: 1,000 seeds take about 90 s on two
# cores.
LONG_PARTS = 10
PART_S_MAX = 3_600
AT_LEAST_ONCE = Delivery.AT_LEAST_ONCE
SEEDS_AT_LEAST_ONCE = 40
SIGNED_SEEDS = 15
SENT_SEEDS = 15
# How many failing seeds are printed in full.
REPORTS_MAX = 2
# Seeds in which each kind of thing must happen at least once; the first nineteen have them all.
_FIRST = (391, 108, 20, 13, 346, 136, 327, 9, 2, 47, 55, 210, 6, 73, 19, 176, 183, 239, 1770)
VARIED = (*_FIRST, *range(400))
# What a run must be able to come to, as words of its trace. A simulator that no longer meets one
# of these proves nothing about it.
HAPPENINGS = (
    ("deliver",),
    ("put back", "by answer"),
    ("put back", "by window"),
    ("write DISCARD", "AGE"),
    ("write DISCARD", "CHECK_TIMES"),
    ("dead ", "] AGE"),
    ("dead ", "] CHECK_TIMES"),
    ("dead ", "] OPERATOR"),
    ("dead ", "] INCOMPLETE"),
    ("dead ", "] EXTRA"),
    ("dead ", "] LATE"),
    ("dead ", "] NOT_ALLOWED"),
    ("dead junk half",),
    ("dead junk op",),
    ("timed out and never came end kafka_txn",),
    ("timed out and comes late end kafka_txn",),
    ("timed out but was done end kafka_txn",),
    ("timed out and comes late produce",),
    ("timed out but was done offsets",),
    ("came end kafka_txn",),
    ("came produce",),
    ("refused end kafka_txn PRODUCER_FENCED",),
    ("refused produce INVALID_PRODUCER_EPOCH",),
    ("failed", "ILLEGAL_GENERATION"),
    ("failed", "FENCED_INSTANCE_ID"),
    ("failed", "UNKNOWN_MEMBER_ID"),
    ("failed", "_FENCED"),
    ("failed", "_TIMED_OUT"),
    ("failed", "outcome stays unknown"),
    ("failed", "does not return"),
    ("failed", "MSG_SIZE_TOO_LARGE"),
    ("failed", "INVALID_TIMESTAMP"),
    ("no record was received",),
    ("lost the right to write",),
    ("is slow", "a worker leaves"),
    ("is repeated, and comes late",),
    ("its process dies end kafka_txn",),
    ("is not sent", "HalfNotStoredError"),
    ("decision in doubt",),
    ("torn",),
    ("its slot was taken",),
    ("rebalance",),
    ("clock jumped",),
    ("clock of",),
    ("deleted before",),
    ("client dies",),
    ("killed",),
    ("paused",),
    ("left",),
    ("deaf",),
    ("plans batch",),
    ("fails: CommitInDoubtError",),
    ("fails: AttemptGivenUpError",),
    ("another driver has committed",),
    ("another driver has planned",),
    ("task fails: SendError",),
    ("task fails: RowsError",),
    ("dies: executor",),
    ("dies: responder",),
)


def _tell(failed: list[int], delivery: Delivery = Delivery.EXACTLY_ONCE) -> str:
    texts = [report(seed, delivery=delivery) for seed in failed[:REPORTS_MAX]]
    return "\n\n".join([f"{len(failed)} seeds fail: {failed[:20]}", *texts])


def test_no_promise_is_broken() -> None:
    """Whatever fails, what comes out is what the op log says; once healed, all of it."""
    failed, steps = failing(seeds(SEEDS_FAST))
    assert not failed, _tell(failed)
    assert steps >= STEPS


@pytest.mark.more
def test_no_promise_is_broken_in_more_runs() -> None:
    """The same, with the seeds that `make test` leaves out."""
    failed, steps = failing(range(SEEDS_FAST, SEEDS))
    assert not failed, _tell(failed)
    assert steps >= STEPS


@pytest.mark.more
def test_no_promise_is_broken_at_least_once() -> None:
    """In the other mode messages may be repeated; all else is promised all the same."""
    failed, steps = failing(seeds(SEEDS_AT_LEAST_ONCE), AT_LEAST_ONCE)
    assert not failed, _tell(failed, AT_LEAST_ONCE)
    assert steps >= STEPS


@pytest.mark.long
@pytest.mark.timeout(PART_S_MAX)
def test_no_promise_is_broken_in_thousands_of_runs_at_least_once() -> None:
    """The same, with as many runs as a minute or two allow."""
    numbers = seeds(LONG_SEEDS // 4)
    failed, steps = failing_in_parallel(numbers, AT_LEAST_ONCE)
    assert not failed, _tell(failed, AT_LEAST_ONCE)
    assert steps >= STEPS * len(numbers)


@pytest.mark.more
def test_messages_are_repeated_at_least_once() -> None:
    """Within a few seeds: else the mode was not tried."""
    assert any(ran(seed, AT_LEAST_ONCE).repeats for seed in range(SEEDS_AT_LEAST_ONCE))


@pytest.mark.long
@pytest.mark.timeout(PART_S_MAX)
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_no_promise_is_broken_in_ten_thousand_runs(part: int) -> None:
    """The same, with as many runs as a few minutes allow."""
    every = seeds(LONG_SEEDS)
    begin, end = (len(every) * at // LONG_PARTS for at in (part, part + 1))
    numbers = every[begin:end]
    failed, steps = failing_in_parallel(numbers)
    assert not failed, _tell(failed)
    assert steps >= STEPS * len(numbers)


def test_an_attacker_has_no_effect() -> None:
    """Signatures are demanded: what is not signed is a dead letter, INVALID, whatever fails."""
    attacks, numbers = 0, seeds(SIGNED_SEEDS)
    for seed in numbers:
        outcome = run(Choices(seed), is_signed=True)
        assert not outcome.failure, report(seed, is_signed=True)
        attacks += len(outcome.world.forged)
    assert attacks > len(numbers)


def test_decisions_that_are_not_awaited() -> None:
    """Clients die and close between the return of a decision and its acknowledgement.

    The order of the calls, the bound of the queue and what `close` waits for are kept, and all
    other promises too.
    """
    words = ("decision sent", "decision failed", "client dies:", "client has closed:")
    missing = set(words)
    for seed in range(SENT_SEEDS):
        outcome = run(Choices(seed), is_sent=True)
        assert not outcome.failure, report(seed, is_sent=True)
        missing -= {word for what in outcome.world.trace for word in what[2:] if word in words}
    assert not missing


@pytest.mark.more
def test_decisions_that_are_not_awaited_in_more_runs() -> None:
    """The same, with the seeds that `make test-fast` leaves out."""
    for seed in range(SENT_SEEDS, SEEDS):
        assert not run(Choices(seed), is_sent=True).failure, report(seed, is_sent=True)


@pytest.mark.long
@pytest.mark.timeout(PART_S_MAX)
def test_decisions_that_are_not_awaited_in_thousands_of_runs() -> None:
    """The same, with as many runs as a few minutes allow."""
    for seed in seeds(LONG_SEEDS // 10):
        assert not run(Choices(seed), is_sent=True).failure, report(seed, is_sent=True)


@pytest.mark.more
def test_a_seed_says_all() -> None:
    """The same seed gives the same run, and the choices of a run give it once more."""
    for seed in range(20):
        first = ran(seed, Delivery.EXACTLY_ONCE).digest
        again = Choices(seed)
        assert run(again).digest == first
        replayed = Choices(seed, again.made)
        assert run(replayed).digest == first
        assert replayed.made == again.made
    assert len({ran(seed, Delivery.EXACTLY_ONCE).digest for seed in range(20)}) == 20


@pytest.mark.more
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_says_all_in_any_process(hash_seed: str) -> None:
    """Nothing depends on the order in which a process happens to keep its sets."""
    script = (
        "from tests.simulation.run import run; from tests.simulation.choices import Choices\n"
        "print(*(run(Choices(seed)).digest for seed in range(10)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.split() == [ran(seed, Delivery.EXACTLY_ONCE).digest for seed in range(10)]


@pytest.mark.more
def test_what_can_happen_does() -> None:
    """Each fault, each outcome and each guard is met within a few seeds."""
    missing = list(HAPPENINGS)
    for what in happened(VARIED):
        words = " ".join(map(str, what))
        missing = [one for one in missing if not all(each in words for each in one)]
        if not missing:
            break
    assert missing == []


def test_a_failing_run_is_made_smaller() -> None:
    """What does not matter becomes 0 or is cut off."""
    made = [3, 0, 7, 1, 5, 2, 9, 4] * 20
    assert shrink(made, lambda script: script[6:7] == [9]) == [0, 0, 0, 0, 0, 0, 9]
    assert shrink(made, lambda script: True) == []

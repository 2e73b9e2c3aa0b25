"""The assignment of a worker: its partition pairs share the limits of the worker."""

from dataclasses import replace
from typing import Any, cast

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import JunkRead
from halfbridge.checker.core.memory import ALARM_PERCENT, HALVES_PERCENT
from halfbridge.checker.core.plan import Plan
from halfbridge.checker.core.rebuild import BeyondEndError
from halfbridge.checker.loop.assignment import (
    ASK_AGAIN_S_MAX,
    BEYOND_END_S,
    STEADY_S,
    TAKE_AGAIN_S_MAX,
    UNHEALTHY_S,
    Assignment,
    EndsInDoubt,
    WaitingPairs,
    known_limits,
)
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.publish import Publisher, Sizes
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.status import Status
from halfbridge.kafka.stalls import POLL_S, STALLED_S
from halfbridge.serde.progress import START
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS, UNLIMITED
from tests.playbook import Playbook, half, nothing, rollback

NAMES = TopicNames()
SIZES = Sizes(lambda _topic: None)


class Paused:
    """An input that records which topics are paused."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def pause(self, topic: str, partition: int) -> None:
        """Record the topic; it must not be paused already."""
        assert (topic, partition) not in {(each, 0) for each in self.topics}
        self.topics.add(topic)

    def resume(self, topic: str, _partition: int) -> None:
        self.topics.remove(topic)


@pytest.fixture
def intake() -> Paused:
    return Paused()


@pytest.fixture
def served(intake: Paused) -> Assignment:
    """An assignment of one pair, rebuilt."""
    nobody: Any = None
    given = Assignment(
        CheckerConfig(batch_records_max=10, batch_bytes_max=1024),
        SETTINGS,
        intake=cast("Any", intake),
        questions=nobody,
        new_publisher=nobody,
        guard=nobody,
        status=nobody,
        clock=nobody,
    )
    given.pairs[0] = Pair(0, SETTINGS, START, Publisher(NAMES, 0, Routes(0), SIZES), began=0.0)
    plan(given)
    return given


def plan(served: Assignment, records_max: int = UNLIMITED) -> int:
    """Take and commit a plan of the pair, and return its number of records."""
    ledger = served.pairs[0].ledger
    records = ledger.plan(0, records_max=records_max, size_bytes_max=UNLIMITED).records
    ledger.committed(ledger.progress())
    return records


def read_junk(served: Assignment, count: int, *, size_bytes: int = 1, is_op: bool = False) -> None:
    """Give the pair records that cannot be decoded."""
    ledger = served.pairs[0].ledger
    take = ledger.junk_op if is_op else ledger.junk_half
    for offset in range(count):
        take(JunkRead(offset, 1, "broken", size_bytes, None))


def test_the_pairs_of_a_worker_share_its_memory() -> None:
    """Each of four pairs has a quarter of the worker's memory."""
    settings = replace(SETTINGS, ledger_bytes_max=1000, entries_bytes_max=2000)
    quarter = replace(SETTINGS, ledger_bytes_max=250, entries_bytes_max=500)
    assert settings.shared_by(4) == quarter
    assert settings.shared_by(1) == settings


def test_letters_stop_the_reading_until_none_is_left(served: Assignment, intake: Paused) -> None:
    """The half topic stays paused until no letter waits, so that ops do not wait behind junk."""
    read_junk(served, 10)
    served.pause_or_resume()
    assert not intake.topics
    read_junk(served, 1)
    for records_max, is_left in ((8, True), (2, True), (1, False)):
        served.pause_or_resume()
        assert intake.topics == {NAMES.half}
        assert plan(served, records_max) == records_max
        assert bool(served.pairs[0].ledger.letters_waiting) is is_left
    served.pause_or_resume()
    assert not intake.topics


@pytest.mark.parametrize(
    ("records", "size_bytes", "is_op"), [(20, 1, False), (20, 1, True), (2, 1024, True)]
)
def test_what_is_read_ahead_of_a_commit_is_bounded(
    served: Assignment, records: int, size_bytes: int, *, is_op: bool
) -> None:
    """The pair is far ahead after two batches of records or bytes."""
    read_junk(served, records - 1, size_bytes=size_bytes, is_op=is_op)
    assert not served.is_far_ahead
    read_junk(served, 1, size_bytes=size_bytes, is_op=is_op)
    assert served.is_far_ahead


def test_what_a_pair_may_hold_is_kept_by_reading_no_more(
    served: Assignment, intake: Paused
) -> None:
    """The worker warns first, then pauses the half topic until there is room again."""
    settings = replace(SETTINGS, entries_bytes_max=100_000)
    book = Playbook(entries_bytes_max=100_000) << nothing
    pair = Pair(0, settings, START, Publisher(NAMES, 0, lambda _: "", SIZES), began=0.0)
    pair.ledger = book.ledger
    served.pairs[0] = pair
    count = 0
    for percent, topics in ((ALARM_PERCENT, set()), (HALVES_PERCENT, {NAMES.half})):
        assert bool(served.memory_trouble()) is (percent > ALARM_PERCENT)
        while pair.fill_percent < percent:
            book >> half(f"T{count}")
            count += 1
        served.pause_or_resume()
        assert intake.topics == topics
    assert f"{count} held" in served.memory_trouble()
    for number in range(count // 2):
        book >> rollback(f"T{number}")
    book << nothing
    served.pause_or_resume()
    assert not intake.topics
    pair.held = Plan(metadata_bytes=100_000)  # names of the maximum length
    served.pause_or_resume(pair)
    assert intake.topics == {NAMES.half}


# --- progress beyond a log's end, possibly from a deposed leader, is accepted after a while -


def test_an_end_is_believed_when_brokers_have_named_it_for_a_while() -> None:
    """Each pair waits for BEYOND_END_S, and waits again once its progress was in the log."""
    doubts, beyond = EndsInDoubt(), BeyondEndError("beyond the end")
    for now in (0.0, BEYOND_END_S / 2):
        with pytest.raises(InputLostError, match="partition 1: beyond the end"):
            doubts.check({0: START, 1: beyond}, now)
    doubts.check({0: START, 1: beyond}, BEYOND_END_S)
    doubts.check({0: START, 1: START}, BEYOND_END_S)
    with pytest.raises(InputLostError):
        doubts.check({0: START, 1: beyond}, 2 * BEYOND_END_S)


# --- known size limits of topics before the first write ------------------------------------


@pytest.mark.parametrize(
    ("kafka", "known"),
    [
        ({}, 100),
        ({"compression.type": "none"}, 100),
        ({"compression.type": "zstd"}, None),
        ({"compression.codec": "lz4"}, None),
    ],
)
def test_sizes_are_tried_where_the_daemon_compresses(
    kafka: dict[str, str], known: int | None
) -> None:
    """With compression no limit is known: a record of 3 MB may fit into a topic of 1 MB."""
    limits = known_limits(CheckerConfig(kafka=kafka), lambda _topic: 100)
    assert limits("orders") == known


# --- pairs that are left out: retried at intervals, shown in health, forgotten when revoked -

WHY = "log end of op[1] cannot be read: no leader"


@pytest.fixture
def status() -> Status:
    """The status of the worker."""
    return Status()


@pytest.fixture
def waits(status: Status) -> WaitingPairs:
    return WaitingPairs(status)


def _waiting(status: Status) -> float | None:
    return status.metrics.registry.get_sample_value("halfbridge_partitions_waiting")


def _asked_at(waits: WaitingPairs, number: int, now: float, *, until: float) -> list[float]:
    """Return the times of the questions about a pair that are not answered."""
    times = []
    while now < until:
        if number in waits.due(now):
            times.append(now)
            waits.leave_out(number, WHY, now)
        now += 1.0
    return times


def _pause_s(waits: WaitingPairs, now: float) -> float:
    """Return the number of whole seconds until pair 1 is due."""
    pause_s = 0.0
    while 1 not in waits.due(now + pause_s):
        pause_s += 1.0
    return pause_s


def test_a_pair_is_asked_about_less_and_less_often_up_to_a_limit(waits: WaitingPairs) -> None:
    """The pause doubles up to ASK_AGAIN_S_MAX."""
    waits.leave_out(1, WHY, 0.0)
    times = _asked_at(waits, 1, 0.0, until=100.0)
    assert times[:5] == [1.0, 3.0, 7.0, 15.0, 23.0]
    assert times[-1] - times[-2] == ASK_AGAIN_S_MAX


def test_a_pair_that_is_answered_for_waits_until_it_is_served(
    waits: WaitingPairs, status: Status
) -> None:
    """An answered pair is not asked about again, but counts as waiting until it is served."""
    waits.leave_out(1, WHY, 0.0)
    waits.answered(1)
    assert (waits.numbers, waits.due(9.0), _waiting(status)) == (frozenset(), frozenset(), 1.0)
    waits.end(1)
    assert _waiting(status) == 0.0


def test_health_is_red_once_a_pair_has_waited_for_long(waits: WaitingPairs, status: Status) -> None:
    """A pair is shown after it has waited for UNHEALTHY_S since it was first left out."""
    waits.leave_out(1, WHY, 0.0)
    waits.show_in_health(UNHEALTHY_S - 1)
    assert status.snapshot().all_well
    waits.leave_out(1, WHY, UNHEALTHY_S - 1)
    waits.show_in_health(UNHEALTHY_S)
    assert status.snapshot().partition_errors == {1: f"waits, and is asked again: {WHY}"}


def test_a_pair_that_was_taken_away_waits_no_longer(waits: WaitingPairs, status: Status) -> None:
    """A revoked pair is not asked about, and an answer about it is ignored."""
    waits.leave_out(1, WHY, 0.0)
    waits.leave_out(2, WHY, 0.0)
    waits.keep([2, 3])
    assert (waits.numbers, _waiting(status)) == ({2}, 1.0)
    waits.answered(1)
    assert waits.numbers == {2}


def test_a_pair_that_cannot_be_read_once_is_not_left_out(waits: WaitingPairs) -> None:
    """One failure, or two with a steady time between, does not leave a pair out."""
    waits.lost(1, WHY, 100.0, well_s=1.0)
    assert waits.numbers == frozenset()
    waits.lost(1, WHY, 100.0 + STEADY_S + 1, well_s=STEADY_S + 1)
    assert waits.numbers == frozenset()


def test_a_pair_that_takes_long_to_fail_again_is_left_out(waits: WaitingPairs) -> None:
    """A second failure leaves the pair out if it was not read well in between."""
    for now in (100.0, 100.0 + STEADY_S + 1):
        waits.lost(1, WHY, now, well_s=0.0)
    assert waits.numbers == {1}


def test_a_pair_that_stalls_again_is_left_out_for_longer_and_longer(waits: WaitingPairs) -> None:
    """The pauses of a pair that stalls after each restart grow to TAKE_AGAIN_S_MAX."""
    now, pauses = 0.0, []
    waits.lost(1, WHY, now, well_s=0.0)
    for _ in range(12):
        now += STALLED_S + POLL_S + 5
        waits.lost(1, WHY, now, well_s=5.0)
        pauses.append(_pause_s(waits, now))
        now += pauses[-1]
        waits.end(1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == TAKE_AGAIN_S_MAX


def test_the_last_pair_is_tried_as_often_as_a_silent_one(waits: WaitingPairs) -> None:
    """If all pairs fail, a pair is retried after ASK_AGAIN_S_MAX."""
    now = 0.0
    for _ in range(12):
        waits.lost(1, WHY, now, well_s=0.0, are_all=True)
    assert not waits.may_be_tried(1, ASK_AGAIN_S_MAX - 1)
    assert waits.may_be_tried(1, ASK_AGAIN_S_MAX)
    assert WHY in waits.why()


def test_silent_pairs_are_asked_again_where_there_are_no_others(waits: WaitingPairs) -> None:
    """A pair that was left out may be tried at once."""
    waits.leave_out(1, WHY, 0.0)
    assert waits.may_be_tried(1, 0.0)


def test_a_pair_that_can_never_be_read_is_taken_in_less_and_less_often(
    waits: WaitingPairs, status: Status
) -> None:
    """The pauses of a pair that is answered but cannot be read double to TAKE_AGAIN_S_MAX."""
    now, pauses = 0.0, []
    waits.lost(1, WHY, now, well_s=0.0)
    for _ in range(12):
        waits.lost(1, WHY, now, well_s=0.0)
        pauses.append(_pause_s(waits, now))
        now += pauses[-1]
        waits.answered(1)
        waits.show_in_health(now)
        waits.end(1)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-2:] == [TAKE_AGAIN_S_MAX] * 2
    assert set(status.snapshot().partition_errors) == {1}

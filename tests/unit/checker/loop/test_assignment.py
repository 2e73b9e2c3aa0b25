"""What a worker serves: limits of the worker are shared by its partition pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import JunkRead
from halfbridge.checker.core.memory import ALARM_PERCENT, HALVES_PERCENT
from halfbridge.checker.core.plan import Plan
from halfbridge.checker.loop.assignment import Assignment
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.publish import Publisher, Sizes
from halfbridge.checker.loop.routes import Routes
from halfbridge.serde.progress import START
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS, UNLIMITED
from tests.playbook import Playbook, half, nothing, rollback

NAMES = TopicNames()
SIZES = Sizes(lambda _topic: None)


class Paused:
    """An input of which only pauses are asked, and what they did."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def pause(self, topic: str, partition: int) -> None:
        """Take note; who pauses twice has lost count."""
        assert (topic, partition) not in {(each, 0) for each in self.topics}
        self.topics.add(topic)

    def resume(self, topic: str, _partition: int) -> None:
        """Take note."""
        self.topics.remove(topic)


@pytest.fixture
def intake() -> Paused:
    """The input."""
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
    """Take and commit a plan of the pair, and return how much it writes."""
    ledger = served.pairs[0].ledger
    records = ledger.plan(0, records_max=records_max, size_bytes_max=UNLIMITED).records
    ledger.committed(ledger.progress())
    return records


def read_junk(served: Assignment, count: int, *, size_bytes: int = 1, is_op: bool = False) -> None:
    """Have the pair read records that cannot be read."""
    ledger = served.pairs[0].ledger
    take = ledger.junk_op if is_op else ledger.junk_half
    for offset in range(count):
        take(JunkRead(offset, 1, "broken", size_bytes, None))


def test_the_pairs_of_a_worker_share_its_memory() -> None:
    """Four ledgers held four times what the setting allows."""
    settings = replace(SETTINGS, ledger_bytes_max=1000, entries_bytes_max=2000)
    quarter = replace(SETTINGS, ledger_bytes_max=250, entries_bytes_max=500)
    assert settings.shared_by(4) == quarter
    assert settings.shared_by(1) == settings


def test_letters_stop_the_reading_until_none_is_left(served: Assignment, intake: Paused) -> None:
    """Were it to go on below a batch, ops would wait for letters as long as junk comes."""
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
    """Two batches are enough, by records or by bytes."""
    read_junk(served, records - 1, size_bytes=size_bytes, is_op=is_op)
    assert not served.is_far_ahead
    read_junk(served, 1, size_bytes=size_bytes, is_op=is_op)
    assert served.is_far_ahead


def test_what_a_pair_may_hold_is_kept_by_reading_no_more(
    served: Assignment, intake: Paused
) -> None:
    """Of halves first, of ops last; and an operator is told before."""
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
    assert f"{count} undecided" in served.memory_trouble()
    for number in range(count // 2):
        book >> rollback(f"T{number}")
    book << nothing
    served.pause_or_resume()
    assert not intake.topics
    pair.held = Plan(metadata_bytes=100_000)  # of names as long as they may be
    served.pause_or_resume(pair)
    assert intake.topics == {NAMES.half}

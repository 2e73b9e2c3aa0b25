"""What a worker serves: limits of the worker are shared by its partition pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from checker import assignment
from checker.assignment import Assignment
from checker.config import CheckerConfig
from checker.core.events import JunkRead
from checker.core.progress import START
from checker.pair import Pair
from checker.publish import Publisher
from serde.topics import TopicNames
from tests.ledger_log import SETTINGS, UNLIMITED

NAMES = TopicNames()


class Paused:
    """An input of which only pauses are asked, and what they did."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.dozes = 0

    def pause(self, topic: str, partition: int) -> None:
        """Take note; who pauses twice has lost count."""
        assert (topic, partition) not in {(each, 0) for each in self.topics}
        self.topics.add(topic)

    def resume(self, topic: str, _partition: int) -> None:
        """Take note."""
        self.topics.remove(topic)

    def doze(self, _offsets: object) -> None:
        """Count it."""
        self.dozes += 1


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
        routes=nobody,
        status=nobody,
    )
    given.pairs[0] = Pair(0, SETTINGS, START, Publisher(NAMES, 0, lambda _: ""), began=0.0)
    plan(given)
    return given


def plan(served: Assignment, records_max: int = UNLIMITED) -> int:
    """Take a plan of the pair, and return how much it writes."""
    ledger = served.pairs[0].ledger
    return ledger.plan(0, records_max=records_max, size_bytes_max=UNLIMITED).records


def read_junk(served: Assignment, count: int, *, size_bytes: int = 1, is_op: bool = False) -> None:
    """Have the pair read records that cannot be read."""
    ledger = served.pairs[0].ledger
    take = ledger.junk_op if is_op else ledger.junk_half
    for offset in range(count):
        take(JunkRead(offset, 1, "broken", size_bytes, None))


def test_the_pairs_of_a_worker_share_its_memory() -> None:
    """Four ledgers held four times what the setting allows."""
    settings = replace(SETTINGS, ledger_bytes_max=1000)
    assert settings.shared_by(4) == replace(SETTINGS, ledger_bytes_max=250)
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


def test_unreadable_ops_are_bounded_by_their_bytes(
    served: Assignment, intake: Paused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 of them may be of a megabyte each."""
    monkeypatch.setattr(assignment, "JUNK_OP_BYTES_MAX", 1_000)
    read_junk(served, 2, size_bytes=501, is_op=True)
    served.pause_or_resume()
    assert intake.topics == {NAMES.op}
    assert plan(served) == 2
    served.pause_or_resume()
    assert not intake.topics


def test_nobody_dozes_while_letters_wait(served: Assignment, intake: Paused) -> None:
    """The next plan is due, whether records come or not."""
    read_junk(served, 2)
    plan(served, 1)
    served.doze()
    assert intake.dozes == 0
    plan(served)
    served.doze()
    assert intake.dozes == 1


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

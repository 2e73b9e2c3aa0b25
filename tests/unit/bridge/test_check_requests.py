"""When a member that reads checks is taken to read no more, and whom it asks."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.bridge.check_requests import PATIENCE_S_MAX, RequestWatch
from halfbridge.kafka.errors import Code, KafkaFailure, RetriableError
from halfbridge.kafka.stalls import LOOK_S, STALLED_S, UNREAD_S

PLACE = ("check", 0)
STEP_S = UNREAD_S / 2


class Brokers:
    """Brokers who answer at once, and say what a test sets.

    Attributes:
        ends: Place -> end; of the others nobody answers.
        error: Raised instead, when it is set.
        asked: For each question, whether a new client asked it.
    """

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.error: Exception | None = None
        self.asked: list[bool] = []

    def __call__(self, places: Iterable[tuple[str, int]], *, new_client: bool) -> Any:
        """Answer a question."""
        self.asked.append(new_client)
        if self.error is not None:
            raise self.error
        found = {place: self.ends[place] for place in places if place in self.ends}
        return SimpleNamespace(is_over=True, answers=lambda: found)


class Member:
    """A member that looks every so often, and its time."""

    def __init__(self, brokers: Brokers, *assigned: tuple[str, int]) -> None:
        self.now = 100.0
        self.watch = RequestWatch(brokers)
        self.watch.begin(self.now)
        self._assigned = list(assigned)

    def look_for(self, seconds: float) -> None:
        """Look again and again for so long."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            self.watch.check(lambda: self._assigned, self.now)

    def take(self, offset: int, code: int | None = None) -> bool:
        """Read a record, or an error of the partition, of the end perhaps."""
        error = None if code is None else KafkaFailure(code)
        told = {"error": error, "topic": PLACE[0], "partition": PLACE[1], "offset": offset}
        record: Any = SimpleNamespace(**{name: lambda it=it: it for name, it in told.items()})
        return self.watch.take(record)


@pytest.fixture
def brokers() -> Brokers:
    """Return brokers who say nothing yet."""
    return Brokers()


@pytest.fixture
def member(brokers: Brokers) -> Member:
    return Member(brokers, PLACE)


def _stalls(member: Member, within_s: float) -> float:
    """Return after how many seconds the member finds that it stalls."""
    began = member.now
    with pytest.raises(RetriableError, match=r"check\[0\]"):
        member.look_for(within_s)
    return member.now - began


@pytest.mark.parametrize("read", [None, 4], ids=["nothing", "something"])
def test_it_stalls_when_more_is_there_and_nothing_comes(
    brokers: Brokers, member: Member, read: int | None
) -> None:
    """Also where it has read nothing at all: it is told of the end of an empty partition."""
    if read is not None:
        member.take(read)
    brokers.ends[PLACE] = 9
    assert STALLED_S < _stalls(member, 2 * STALLED_S) <= STALLED_S + 2 * LOOK_S


def test_who_is_at_the_end_does_not_stall(brokers: Brokers, member: Member) -> None:
    """A record is followed by what comes after it, an end is where it says."""
    brokers.ends[PLACE] = 5
    assert not member.take(4)
    member.look_for(5 * STALLED_S)
    brokers.ends[PLACE] = 7
    assert member.take(7, Code.PARTITION_EOF)
    member.look_for(5 * STALLED_S)


def test_an_error_is_handed_on_and_is_no_place(brokers: Brokers, member: Member) -> None:
    """What it stands at is not what was read."""
    brokers.ends[PLACE] = 5
    assert not member.take(5, Code.TRANSPORT)
    _stalls(member, 2 * STALLED_S)


def test_time_in_which_nobody_read_does_not_count(brokers: Brokers, member: Member) -> None:
    """A stopped process, or a laptop that slept, would replace a consumer that is well."""
    brokers.ends[PLACE] = 9
    member.look_for(LOOK_S + 2 * STEP_S)
    member.now += 100 * STALLED_S
    assert _stalls(member, 2 * STALLED_S) > STALLED_S


def test_the_group_is_disturbed_ever_less_where_new_consumers_read_no_better(
    brokers: Brokers, member: Member
) -> None:
    """Until something is read: then it was worth while."""
    brokers.ends[PLACE] = 9
    found = []
    for _ in range(7):
        found.append(_stalls(member, 2 * PATIENCE_S_MAX))
        member.watch.begin(member.now)
    assert found == sorted(found)
    assert PATIENCE_S_MAX < found[-1] <= PATIENCE_S_MAX + 3 * LOOK_S
    member.take(4)
    assert _stalls(member, 2 * STALLED_S) <= STALLED_S + 2 * LOOK_S


def test_another_client_asks_when_one_was_not_answered(brokers: Brokers, member: Member) -> None:
    """It remembers for minutes who led a partition; stalls come after leaders have moved."""
    member.look_for(2 * LOOK_S)
    brokers.ends[PLACE] = 0
    member.take(0, Code.PARTITION_EOF)
    member.look_for(2 * LOOK_S)
    assert brokers.asked[:4] == [False, True, True, False]


def test_a_question_that_cannot_be_asked_is_asked_again(brokers: Brokers, member: Member) -> None:
    """The consumer is well, as far as anybody knows."""
    brokers.error = RuntimeError("no more threads")
    member.look_for(2 * LOOK_S)
    brokers.error = None
    brokers.ends[PLACE] = 9
    _stalls(member, 3 * STALLED_S)


def test_who_has_nothing_asks_nothing(brokers: Brokers) -> None:
    """A client of its own would be made for it, in every process."""
    Member(brokers).look_for(5 * LOOK_S)
    assert brokers.asked == []

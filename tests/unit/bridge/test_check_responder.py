"""What an answer to a check says, and what counts."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.bridge.check_pool import Outcome
from halfbridge.bridge.check_requests import PATIENCE_S_MAX, RequestWatch
from halfbridge.bridge.check_responder import (
    LOGGED_AGAIN_S,
    TOPICS_MAX,
    SharedGroup,
    answer_to,
    covered,
)
from halfbridge.bridge.message import Answer, Resolution
from halfbridge.kafka.errors import Code, KafkaFailure, RetriableError
from halfbridge.kafka.stalls import POLL_S, STALLED_S, UNREAD_S
from halfbridge.serde.records import COUNT_UNKNOWN, CheckRequest, Op, OpKind, OpSource
from tests.fake_ports import Clock
from tests.kit.records import A_REQUEST

REQUEST = CheckRequest(
    transaction_id="0" * 32,
    sent_timestamp=6,
    half_offset=7,
    half_partition=1,
    resume_count=4,
    message_index=0,
    producer_group="g",
    real_topic="orders",
    real_partition=-1,
    check_number=3,
    attempt=2,
    born_timestamp=5,
    last_half_offset=9,
)


def _answer(outcome: Outcome[None]) -> Op:
    return answer_to(REQUEST, outcome, half_offset=11, now_ms=13, actor="me", timeout_ms=500)


@pytest.mark.parametrize("resolution", Resolution)
def test_an_explicit_answer_counts(resolution: Resolution) -> None:
    """UNKNOWN too; it names the check that it answers."""
    op = _answer(Outcome(None, resolution))
    assert (op.kind, op.check_number) == (OpKind[resolution.value], 3)
    assert (op.half_offset, op.resume_count, op.timestamp) == (11, 4, 13)
    assert (op.source, op.actor, op.reason) == (OpSource.CHECK, "me", "")
    assert op.message_count == COUNT_UNKNOWN


def test_an_answer_may_name_the_number_of_messages() -> None:
    """The answer has the number of messages, where the local transaction knows it."""
    assert _answer(Outcome(None, Answer(Resolution.COMMIT, message_count=2))).message_count == 2


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(None, is_overdue=True), "still runs after 500 ms"),
        (Outcome(None, error=ValueError("down")), "raised ValueError"),
        (Outcome(None, None), "returned None"),
        (Outcome(None, "x" * 10_000), "returned 'xxx"),
    ],
)
def test_all_else_is_recorded_and_does_not_count(outcome: Outcome[None], reason: str) -> None:
    """A database that is down must not discard; the reason is bounded."""
    op = _answer(outcome)
    assert (op.kind, op.check_number) == (OpKind.UNKNOWN, 0)
    assert reason in op.reason
    assert len(op.reason) <= 500


def test_what_a_checker_raised_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where its caller chose it; the line alone does not say where it was raised."""
    try:
        {}["row"]
    except KeyError as error:
        raised = Outcome(None, error=error)
    for traceback in (raised.error, None):
        answer_to(
            *(REQUEST, raised),
            half_offset=11,
            now_ms=13,
            actor="me",
            timeout_ms=500,
            traceback=traceback,
        )
    first, second = caplog.records
    assert "check of 000" in first.message
    assert first.exc_info is not None
    assert first.exc_info[0] is KeyError
    assert '{}["row"]' in caplog.text
    assert not second.exc_info


def test_an_answer_covers_every_message_that_was_reported() -> None:
    """Copies may be before or after the last message."""
    assert covered(REQUEST) == 9
    assert covered(REQUEST._replace(last_half_offset=-1, half_offset=-1)) == 0


# --- two services that use one producer group are reported ---------------------------------
ONE_REQUEST = A_REQUEST._replace(producer_group="shop", real_topic="orders")


def test_each_topic_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """The line names transaction, topic and group, and what to do."""
    clock = Clock()
    group = SharedGroup("shop", clock)
    for _ in range(3):
        group.note(ONE_REQUEST)
    (line,) = caplog.messages
    for text in (ONE_REQUEST.transaction_id, "orders", "shop", "a producer group of its own"):
        assert text in line
    clock.now += LOGGED_AGAIN_S
    group.note(ONE_REQUEST)
    assert len(caplog.messages) == 2


def test_requests_of_other_groups_and_invented_topics_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any writer of check requests can name any topic in them."""
    group = SharedGroup("shop", Clock())
    group.note(ONE_REQUEST._replace(producer_group="other"))
    assert caplog.messages == []
    for number in range(TOPICS_MAX + 5):
        group.note(ONE_REQUEST._replace(real_topic=f"topic-{number}"))
    assert len(caplog.messages) == TOPICS_MAX


# --- when a member that reads checks is taken to read no more, and whom it asks ------------

PLACE = ("check", 0)
STEP_S = UNREAD_S / 2


class Brokers:
    """Brokers who answer at once, and say what a test sets.

    Attributes:
        ends: TopicPartition -> end; of the others nobody answers.
        error: Raised instead, when it is set.
        asked: For each question, whether a new client asked it.
    """

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.error: Exception | None = None
        self.asked: list[bool] = []

    def ask(self, places: Iterable[tuple[str, int]], *, new_client: bool) -> Any:
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

    def search_for(self, seconds: float) -> None:
        """Look again and again for so long."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            self.watch.check(lambda: self._assigned, self.now)

    def take(self, offset: int, code: int | None = None) -> bool:
        """Read a record, or an error of the partition, of the end perhaps."""
        error = None if code is None else KafkaFailure(code)
        reported = {"error": error, "topic": PLACE[0], "partition": PLACE[1], "offset": offset}
        record: Any = SimpleNamespace(**{name: lambda it=it: it for name, it in reported.items()})
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
        member.search_for(within_s)
    return member.now - began


@pytest.mark.parametrize("read", [None, 4], ids=["nothing", "something"])
def test_it_stalls_when_more_is_there_and_nothing_comes(
    brokers: Brokers, member: Member, read: int | None
) -> None:
    """Also where it has read nothing at all: it is given the end of an empty partition."""
    if read is not None:
        member.take(read)
    brokers.ends[PLACE] = 9
    assert STALLED_S < _stalls(member, 2 * STALLED_S) <= STALLED_S + 2 * POLL_S


def test_who_is_at_the_end_does_not_stall(brokers: Brokers, member: Member) -> None:
    """A record is followed by what comes after it, an end is where it says."""
    brokers.ends[PLACE] = 5
    assert not member.take(4)
    member.search_for(5 * STALLED_S)
    brokers.ends[PLACE] = 7
    assert member.take(7, Code.PARTITION_EOF)
    member.search_for(5 * STALLED_S)


def test_an_error_is_handed_on_and_is_no_place(brokers: Brokers, member: Member) -> None:
    """What it stands at is not what was read."""
    brokers.ends[PLACE] = 5
    assert not member.take(5, Code.TRANSPORT)
    _stalls(member, 2 * STALLED_S)


def test_time_in_which_nobody_read_does_not_count(brokers: Brokers, member: Member) -> None:
    """A stopped process, or a laptop that slept, would replace a consumer that is well."""
    brokers.ends[PLACE] = 9
    member.search_for(POLL_S + 2 * STEP_S)
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
    assert PATIENCE_S_MAX < found[-1] <= PATIENCE_S_MAX + 3 * POLL_S
    member.take(4)
    assert _stalls(member, 2 * STALLED_S) <= STALLED_S + 2 * POLL_S


def test_another_client_asks_when_one_was_not_answered(brokers: Brokers, member: Member) -> None:
    """It remembers for minutes who led a partition; stalls come after leaders have moved."""
    member.search_for(2 * POLL_S)
    brokers.ends[PLACE] = 0
    member.take(0, Code.PARTITION_EOF)
    member.search_for(2 * POLL_S)
    assert brokers.asked[:4] == [False, True, True, False]


def test_a_question_that_cannot_be_asked_is_asked_again(brokers: Brokers, member: Member) -> None:
    """The consumer is well, as far as anybody knows."""
    brokers.error = RuntimeError("no more threads")
    member.search_for(2 * POLL_S)
    brokers.error = None
    brokers.ends[PLACE] = 9
    _stalls(member, 3 * STALLED_S)


def test_who_has_nothing_asks_nothing(brokers: Brokers) -> None:
    """A client of its own would be made for it, in every process."""
    Member(brokers).search_for(5 * POLL_S)
    assert brokers.asked == []

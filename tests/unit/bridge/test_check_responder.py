"""What an answer to a check says, and what counts."""

import pytest

from halfbridge.bridge.check_pool import Outcome
from halfbridge.bridge.check_responder import TOLD_S, TOPICS_MAX, SharedGroup, answer_to, covered
from halfbridge.bridge.message import Answer, Resolution
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
    """Who knows how many the local transaction knew of says so."""
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


def test_an_answer_covers_every_message_that_was_told() -> None:
    """Copies may stand before or behind the last message."""
    assert covered(REQUEST) == 9
    assert covered(REQUEST._replace(last_half_offset=-1, half_offset=-1)) == 0


# --- who is told that two services use one producer group ----------------------------------

ONE_REQUEST = A_REQUEST._replace(producer_group="shop", real_topic="orders")


def test_each_topic_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """The line names transaction, topic and group, and what to do."""
    clock = Clock()
    group = SharedGroup("shop", clock)
    for _ in range(3):
        group.note(ONE_REQUEST)
    (line,) = caplog.messages
    for text in (
        ONE_REQUEST.transaction_id,
        "orders",
        "shop",
        "a producer group of its own",
    ):
        assert text in line
    clock.now += TOLD_S
    group.note(ONE_REQUEST)
    assert len(caplog.messages) == 2


def test_requests_of_other_groups_and_invented_topics_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever may write check requests writes any name into them."""
    group = SharedGroup("shop", Clock())
    group.note(ONE_REQUEST._replace(producer_group="other"))
    assert caplog.messages == []
    for number in range(TOPICS_MAX + 5):
        group.note(ONE_REQUEST._replace(real_topic=f"topic-{number}"))
    assert len(caplog.messages) == TOPICS_MAX

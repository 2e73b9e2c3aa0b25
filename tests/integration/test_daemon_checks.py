"""When a producer group is asked, and what its answers do (DESIGN.md, The walk)."""

import pytest

from halfbridge.bridge import Message, MessageView, Resolution
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_CROWD = 60
QUICK = {"transaction_timeout_ms": 200, "check_interval_ms": 100, "check_backoff_ms_max": 100}


def _make(installation: Installation) -> str:
    """Make topics with a check topic whose times are the broker's; return the real topic."""
    installation.make()
    installation.create(installation.names.check(GROUP), message_timestamp_type="LogAppendTime")
    return installation.topic("orders")


def test_one_pair_does_not_keep_another_from_asking(installation: Installation) -> None:
    """However many transactions wait for a group that is gone, and however slow the pace."""
    installation.make(partitions=2)
    installation.create(installation.names.check(GROUP))
    orders = installation.topic("orders")
    for _ in range(_CROWD):
        installation.half(orders, partition=0)
    lonely = installation.half(orders, partition=1)
    installation.start(**QUICK, check_rate_max=10)

    asked = [each.check.transaction_id for each in installation.checks(_CROWD // 2)]

    assert lonely.transaction_id in asked


@pytest.mark.feature
def test_repeated_checks_reach_every_partition(installation: Installation) -> None:
    """A member that does not answer is not the only one that is ever asked."""
    installation.make()
    installation.create(installation.names.check(GROUP), partitions=3)
    installation.half(installation.topic("orders"), key=b"one key")
    installation.start(**QUICK)

    requests = installation.checks(3)

    assert {each.partition for each in requests} == {0, 1, 2}


@pytest.mark.feature
def test_an_answer_decides(installation: Installation) -> None:
    """COMMIT delivers, ROLLBACK does not, UNKNOWN is counted and asked again."""
    orders = _make(installation)
    daemon = installation.start(**QUICK)
    seen: list[tuple[bytes | None, int]] = []

    def check(view: MessageView) -> Resolution:
        seen.append((view.value, view.check_number))
        if view.value == b"unknown":
            return Resolution.COMMIT if view.check_number == 3 else Resolution.UNKNOWN
        return Resolution[(view.value or b"").decode().upper()]

    with installation.producer(check, topics=[orders]) as producer:
        for value in (b"commit", b"rollback", b"unknown"):
            producer.begin().send(Message(orders, value=value))
        delivered = installation.tail(orders).until(2)

    installation.fence()
    assert {each.value for each in delivered} == {b"commit", b"unknown"}
    assert len(installation.delivered(orders)) == 2
    assert {number for value, number in seen if value == b"unknown"} == {1, 2, 3}
    daemon.counts("rocketmq_rollback_messages_total", 1, topic=orders)
    # A machine that is short of time asks once more before it reads the answer.
    answers = "halfbridge_checks_answered_total"
    until("both COMMITs counted", lambda: daemon.metric(answers, resolution="COMMIT") >= 2)
    daemon.counts("halfbridge_put_backs_total", 2, rule="answer")


def test_a_missing_check_topic_fails_nothing(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Other transactions go on; it is said what to do; once the topic is made, the group is asked.

    It is said once, and counted each time.
    """
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start(**QUICK)
    lonely = installation.half(orders)
    until(
        "some requests found no topic",
        lambda: daemon.metric("halfbridge_checks_expired_total") >= 3,
    )
    assert daemon.metric("halfbridge_checks_sent_total") == 0
    assert daemon.metric("halfbridge_checks_without_topic_total", group=GROUP) >= 3
    assert caplog.text.count(f"topics create --producer-group {GROUP}") == 1
    installation.pass_through(orders)
    installation.fence()

    installation.create(installation.names.check(GROUP))

    request = installation.checks(1)[0].check
    assert request.transaction_id == lonely.transaction_id
    assert request.check_number == 1
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0
    assert daemon.healthz()[0] == 200


def test_a_daemon_that_was_away_asks_only_about_the_undecided(installation: Installation) -> None:
    """Decisions that passed while it was away are read before anything is asked."""
    orders = _make(installation)
    installation.start(**QUICK).stop()
    halves = [installation.half(orders) for _ in range(200)]
    open_one = installation.half(orders)
    for half in halves:
        installation.commit(half)
    until(
        "all timeouts are past by the broker's clock",
        lambda: installation.half(orders).append_ms >= halves[-1].append_ms + 400,
    )
    installation.start(**QUICK)

    asked = {each.check.transaction_id for each in installation.asked()}
    assert open_one.transaction_id in asked
    assert not asked & {each.transaction_id for each in halves}
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [each.transaction_id for each in halves]


def test_a_group_is_asked_about_its_own_only(installation: Installation) -> None:
    """Each group has a topic; requests carry that group's transactions."""
    orders = _make(installation)
    other = "billing"
    installation.create(installation.names.check(other))
    installation.start(**QUICK)
    mine = installation.half(orders)
    theirs = installation.half(orders, producer_group=other)

    assert {each.check.transaction_id for each in installation.checks(2)} == {mine.transaction_id}
    asked = {each.check.transaction_id for each in installation.checks(2, other)}
    assert asked == {theirs.transaction_id}

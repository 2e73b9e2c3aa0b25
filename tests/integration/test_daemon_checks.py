"""When a producer group is asked, and what its answers do (DESIGN.md, The walk)."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from halfbridge.bridge import Message, MessageView, Resolution
from halfbridge.serde.headers import CHECK
from halfbridge.serde.records import OpKind, OpSource
from tests.integration.installation import GROUP
from tests.kit.waiting import until

if TYPE_CHECKING:
    from tests.integration.installation import Installation
    from tests.integration.tail import Record

pytestmark = pytest.mark.broker

# A bound on lateness that only a broken schedule exceeds, whatever else the machine does.
LATE_MS = 10_000
_CROWD = 60
QUICK = {"transaction_timeout_ms": 200, "check_interval_ms": 100, "check_backoff_ms_max": 100}


def _make(installation: Installation) -> str:
    """Make topics with a check topic whose times are the broker's; return the real topic."""
    installation.make()
    installation.create(installation.names.check(GROUP), message_timestamp_type="LogAppendTime")
    return installation.topic("orders")


def _first_asked(records: list[Record]) -> dict[str, int]:
    asked: dict[str, int] = {}
    for each in records:
        asked.setdefault(each.check.transaction_id, each.timestamp_ms)
    return asked


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


def test_the_first_check_comes_at_the_timeout(installation: Installation) -> None:
    """Counted from the broker's append time; the request holds the half message byte-exact."""
    orders = _make(installation)
    installation.start(transaction_timeout_ms=700)
    headers = [("h", b"1"), ("h", None), ("\N{SNOWMAN}", b"")]
    half = installation.half(orders, key=b"", value=b"\x00\xff", headers=headers, real_partition=0)

    record = installation.checks(1)[0]

    assert half.append_ms + 700 <= record.timestamp_ms <= half.append_ms + 700 + LATE_MS
    assert (record.key, record.value) == (b"", b"\x00\xff")
    assert [each for each in record.headers if each[0] not in (CHECK, "RMQ_HALF")] == headers
    request = record.check
    assert request.transaction_id == half.transaction_id
    assert (request.half_partition, request.half_offset) == (half.partition, half.offset)
    assert request.last_half_offset == half.offset
    assert (request.check_number, request.attempt) == (1, 1)
    assert (request.real_topic, request.real_partition) == (orders, 0)
    assert request.born_timestamp == 1_700_000_000_000


def test_immunity_delays_only_its_own_transaction(installation: Installation) -> None:
    """A half with long immunity is asked about later, and holds no other one up."""
    orders = _make(installation)
    installation.start(transaction_timeout_ms=200)
    immune = installation.half(orders, immunity_ms=3000)
    short = installation.half(orders, immunity_ms=10)
    plain = installation.half(orders)

    asked = _first_asked(installation.checks(3))

    assert asked[plain.transaction_id] < immune.append_ms + 3000 <= asked[immune.transaction_id]
    assert short.append_ms + 200 <= asked[short.transaction_id] < immune.append_ms + 3000


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


def test_a_checker_that_raises_never_counts(installation: Installation) -> None:
    """A database that is down for twenty checks discards nothing that it committed."""
    orders = _make(installation)
    daemon = installation.start(check_count_max=2, **QUICK)
    is_down, calls = threading.Event(), []
    is_down.set()

    def check(view: MessageView) -> Resolution:
        calls.append(view.check_number)
        if is_down.is_set():
            raise ConnectionError("the database is down")
        return Resolution.COMMIT

    with installation.producer(check, topics=[orders]) as producer:
        producer.begin().send(Message(orders, value=b"paid"))
        until("the checker raised 20 times", lambda: len(calls) >= 20)
        is_down.clear()
        (record,) = installation.tail(orders).until(1)

    assert record.value == b"paid"
    assert set(calls) == {1}
    answers = "halfbridge_checks_answered_total"
    assert daemon.metric(answers, resolution="FAILED") >= 19
    assert daemon.metric(answers, resolution="UNKNOWN") == 0
    assert installation.dead_letters() == []
    assert installation.copies() == []


def test_nobody_alive_means_waiting(installation: Installation) -> None:
    """Unanswered checks are repeated, counted as expired, and give nothing up."""
    orders = _make(installation)
    daemon = installation.start(check_count_max=1, **QUICK)
    half = installation.half(orders)

    attempts = [each.check for each in installation.checks(8)]
    assert [each.attempt for each in attempts[:8]] == list(range(1, 9))
    assert {each.check_number for each in attempts} == {1}
    assert daemon.metric("halfbridge_checks_expired_total") >= 7

    installation.commit(half)
    assert len(installation.tail(orders).until(1)) == 1
    assert installation.dead_letters() == []


def test_unanswered_checks_are_spaced_further_and_further(installation: Installation) -> None:
    """The interval doubles up to check_backoff_ms_max."""
    orders = _make(installation)
    installation.start(transaction_timeout_ms=100, check_interval_ms=200, check_backoff_ms_max=800)
    installation.half(orders)

    times = [each.timestamp_ms for each in installation.checks(5)]

    # What comes late is not made up for; batching and clocks of whole ms cost a few.
    gaps = [after - before for before, after in pairwise(times)]
    for gap, least in zip(gaps, (200, 400, 800, 800), strict=False):
        assert least - 20 <= gap <= least + LATE_MS


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


def test_checks_are_paced(installation: Installation) -> None:
    """check_rate_max bounds how many requests go out a second."""
    orders = _make(installation)
    halves = [installation.half(orders) for _ in range(40)]
    installation.start(transaction_timeout_ms=1, check_rate_max=20)

    asked = _first_asked(installation.checks(40))

    assert set(asked) == {each.transaction_id for each in halves}
    # Two at once are allowed: 38 more at 20 a second take 1.9 s.
    assert max(asked.values()) - min(asked.values()) >= 1800


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


def test_a_decision_that_comes_first_is_not_asked_about(installation: Installation) -> None:
    """After a decision no check goes out, however late the record that would fall due."""
    orders = _make(installation)
    daemon = installation.start(**QUICK)
    decided = [installation.pass_through(orders) for _ in range(20)]
    open_one = installation.half(orders)

    installation.checks(3)
    asked = {each.check.transaction_id for each in installation.asked()}

    assert asked == {open_one.transaction_id}
    assert not asked & {each.transaction_id for each in decided}
    assert daemon.metric("halfbridge_checks_answered_total", resolution="COMMIT") == 0


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


def test_an_answer_of_another_group_does_not_count(installation: Installation) -> None:
    """Only the half's own group answers: not with COMMIT, nor with an UNKNOWN that would count."""
    orders = _make(installation)
    daemon = installation.start(check_count_max=1, **QUICK)
    half = installation.half(orders)
    answer = {"check_number": 1, "source": OpSource.CHECK}
    installation.op(OpKind.UNKNOWN, half, producer_group="somebody-else", **answer)
    installation.op(OpKind.COMMIT, half, producer_group="somebody-else", **answer)

    assert installation.delivered(orders) == []
    assert installation.dead_letters() == []
    daemon.counts("halfbridge_invalid_ops_total", 2)
    installation.commit(half)
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [half.transaction_id]

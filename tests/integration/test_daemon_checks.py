"""When a producer group is asked, and what its answers do (DESIGN.md, The walk)."""

import pytest

from halfbridge.bridge import Message, MessageView, Resolution
from halfbridge.serde.headers import DEAD, HALF, RESERVED, real_identity
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Record
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

    installation.await_marker()
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
    """Other transactions continue; a line says what to do; once the topic exists, checks are sent.

    It is logged once, and counted each time.
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
    installation.await_marker()

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


# --- put back (DESIGN.md): undecided half messages, with counted answers and by the window -

WINDOW = 100
HALF_AS_SENT = {
    "born_timestamp": 1_700_000_000_000,
    "resume_count": 0,
    "message_index": 0,
    "producer_group": GROUP,
    "real_partition": -1,
}


@pytest.mark.feature
def test_a_counted_unknown_puts_back(installation: Installation) -> None:
    """The copy is byte-exact and carries check_times, first append time and origin."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start()
    headers = [("h", b"1"), ("h", None)]
    half = installation.half(orders, key=None, value=b"\x00", headers=headers, immunity_ms=77)

    installation.answer_unknown(half, 1)
    installation.await_marker()
    installation.answer_unknown(half, 2)
    installation.await_marker()

    copies = installation.copies()
    assert [each.half.check_times for each in copies] == [1, 2]
    for copy in copies:
        assert (copy.key, copy.value) == (None, b"\x00")
        assert [each for each in copy.headers if each[0] != HALF] == headers
        original = HALF_AS_SENT | {
            "transaction_id": half.transaction_id,
            "real_topic": orders,
            "check_times": copy.half.check_times,
            "immunity_ms": 77,
            "first_append_timestamp": half.append_ms,
            "origin_offset": half.offset,
        }
        assert copy.half._asdict() == original
    daemon.counts("halfbridge_put_backs_total", 2, rule="answer")


def test_counted_answers_survive_a_restart(installation: Installation) -> None:
    """The number of the next check continues from the old one."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start()
    half = installation.half(orders)
    installation.answer_unknown(half, 1)
    installation.answer_unknown(half, 2)
    installation.await_marker()
    daemon.stop()

    installation.start(transaction_timeout_ms=100, check_interval_ms=100, check_backoff_ms_max=100)

    assert {each.check.check_number for each in installation.checks(2)} == {3}


def test_the_window_stays_bounded(installation: Installation) -> None:
    """After an old undecided half the window is kept small by copies, at most a third of all."""
    installation.make()
    orders = installation.topic("orders")
    settings = {"republish_window_records": WINDOW, "batch_records_max": 20}
    daemon = installation.start(**settings)
    old = installation.half(orders, key=b"old", value=b"\x00old", headers=[("h", None)])
    last = installation.half(orders, old.transaction_id, value=b"2", message_index=1)
    passed = 4 * WINDOW
    for _ in range(passed):
        installation.pass_through(orders, key=b"young")

    installation.tail(orders).until(passed)
    copies = until("the old one is put back", installation.copies)

    assert len(copies) % 2 == 0
    assert len(copies) <= passed / 3
    assert {each.half.transaction_id for each in copies} == {old.transaction_id}
    assert {each.half.check_times for each in copies} == {0}
    until("H follows", lambda: installation.progress().half > last.offset)
    assert daemon.metric("halfbridge_put_backs_total", rule="window") == len(installation.copies())

    daemon.stop()
    daemon = installation.start(**settings)
    installation.op(OpKind.COMMIT, last, message_count=2)
    delivered = installation.tail(orders).until(passed + 2)[-2:]
    theirs = [[given for given in each.headers if given[0] not in RESERVED] for each in delivered]
    assert [(each.key, each.value) for each in delivered] == [(b"old", b"\x00old"), (b"key", b"2")]
    assert theirs == [[("h", None)], []]
    assert [real_identity(each.headers) for each in delivered] == [
        (old.transaction_id, 0),
        (old.transaction_id, 1),
    ]
    progress = installation.progress()
    assert progress.position - progress.half <= 2 * WINDOW


# --- giving transactions up: decided in the op log, kept as dead letters (DESIGN.md, The walk)

AGE_MS = 1500
AGING = {
    "transaction_age_ms_max": AGE_MS,
    "transaction_timeout_ms": 100,
    "check_interval_ms": 100,
    "check_backoff_ms_max": 100,
}


def _discards(installation: Installation) -> list[Record]:
    records = installation.tail(installation.names.op).to_end()
    return [each for each in records if each.op.kind is OpKind.DISCARD]


@pytest.mark.feature
def test_the_last_counted_unknown_discards(installation: Installation) -> None:
    """A DISCARD in the op log, and dead letters that hold the half messages byte-exact."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start(check_count_max=2, slot="east-1")
    headers = [("h", b"1"), ("h", None)]
    half = installation.half(orders, key=None, value=b"\x00", headers=headers)
    second = installation.half(orders, half.transaction_id, value=None, message_index=1)
    installation.answer_unknown(second, 1)
    installation.answer_unknown(second, 2)

    letters = installation.dead(2)
    installation.await_marker()

    (discard,) = _discards(installation)
    op = discard.op
    assert (op.transaction_id, op.source) == (half.transaction_id, OpSource.CHECKER)
    assert (op.reason, op.check_number, op.producer_group) == ("CHECK_TIMES", 2, GROUP)
    assert "east-1" in op.actor
    assert [(each.key, each.value) for each in letters] == [(None, b"\x00"), (b"key", None)]
    assert letters[0].headers[:2] == headers
    assert [name for name, _ in letters[0].headers].count(DEAD) == 1
    for index, letter in enumerate(letters):
        assert letter.half.message_index == index
        assert letter.dead.reason is DeadReason.CHECK_TIMES
        assert (letter.dead.check_times, letter.dead.op_offset) == (2, discard.offset)
        assert letter.dead.decided_timestamp == discard.timestamp_ms
    assert installation.delivered(orders) == []
    daemon.counts("halfbridge_discards_total", 1, reason="CHECK_TIMES")
    daemon.counts("halfbridge_dead_letters_total", 2, reason="CHECK_TIMES")


@pytest.mark.feature
def test_age_discards_what_nobody_answers(installation: Installation) -> None:
    """After the maximum age and three unanswered requests, proven by the op's own append time."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start(readiness_before_discard_ms=0, **AGING)
    half = installation.half(orders, value=b"forgotten")

    (letter,) = installation.dead(1)

    assert (letter.value, letter.dead.reason) == (b"forgotten", DeadReason.AGE)
    effective = [each for each in _discards(installation) if each.offset == letter.dead.op_offset]
    assert effective[0].timestamp_ms - half.append_ms >= AGE_MS
    assert (effective[0].op.reason, effective[0].op.age_ms) == ("AGE", AGE_MS)
    assert installation.delivered(orders) == []
    daemon.counts("halfbridge_dead_letters_total", 1, reason="AGE")

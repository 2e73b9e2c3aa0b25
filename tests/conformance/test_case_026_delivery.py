"""Conformance cases 26 to 42, 73, 79, 103, 123, 124, 126: client and daemon on a real broker."""

import threading
from collections import Counter
from typing import Any

import pytest

from halfbridge.bridge import InvalidMessageError, Message, MessageView, Resolution
from halfbridge.checker.loop import worker
from halfbridge.checker.loop.intake import Input
from halfbridge.kafka.ports import Record
from halfbridge.serde.headers import RESERVED
from halfbridge.serde.records import DeadReason
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = [pytest.mark.feature, pytest.mark.broker]

NEVER_S = 600.0
SILENCE_S = 2.0  # a client may sleep for a second where nothing is fetched
QUICK: dict[str, Any] = {
    "transaction_timeout_ms": 500,
    "check_interval_ms": 300,
    "check_backoff_ms_max": 1_000,
    "check_count_max": 3,
}


def commit_all(_view: MessageView) -> Resolution:
    """Answer COMMIT."""
    return Resolution.COMMIT


def test_case_026_to_029_and_039_one_message_from_half_to_delivery(
    installation: Installation,
) -> None:
    """Invisible, then delivered once: topic, partition, key, body, headers and birth are kept."""
    orders = installation.real("orders")
    daemon = installation.start()
    headers = [("trace", b"1"), ("empty", b""), ("null", None), ("trace", b"2")]
    with installation.producer(commit_all) as producer:
        tx = producer.begin()
        tx.send(Message(orders, key=b"k", value=b"\x00body", headers=headers, partition=1))
        (half,) = installation.tail(installation.names.half).to_end()
        assert installation.delivered(orders) == []
        tx.commit()
    (real,) = installation.delivered(orders)
    assert (real.partition, real.key, real.value) == (1, b"k", b"\x00body")
    assert [each for each in real.headers if each[0] not in RESERVED] == headers
    added = {name: value for name, value in real.headers if name in RESERVED}
    assert added == {
        "__transactionId__": tx.id.encode(),
        "__bornTimestamp__": str(half.half.born_timestamp).encode(),
    }
    wanted = 1 + installation.markers(orders)
    daemon.counts("rocketmq_commit_messages_total", wanted, topic=orders)


def test_case_034_a_delivered_message_sent_on_is_no_new_half(installation: Installation) -> None:
    """With all its headers: plain in a real topic, refused by the client, junk as a half."""
    orders, again = installation.real("orders"), installation.topic("again")
    daemon = installation.start(**QUICK)
    installation.pass_through(orders)
    (real,) = installation.tail(orders).until(1)
    with pytest.raises(InvalidMessageError, match="reserved"):
        Message(again, value=real.value, headers=real.headers)
    for topic in (again, installation.names.half):
        installation.write(topic, real.value, key=real.key, headers=real.headers)
    (letter,) = installation.dead_letters()
    assert (letter.dead.reason, letter.value) == (DeadReason.INVALID, real.value)
    assert letter.headers[:-1] == real.headers
    (resent,) = installation.delivered(again)
    assert (resent.key, resent.value, resent.headers) == (real.key, real.value, real.headers)
    assert [each.offset for each in installation.delivered(orders)] == [real.offset]
    assert installation.asked() == []
    until("none is held", lambda: not daemon.metric("rocketmq_half_messages"))


def test_case_036_compressed_bodies_survive_copies_and_checks(installation: Installation) -> None:
    """Above 4 KiB, compressed by the client, put back: intact for checker and consumer."""
    orders = installation.real("orders")
    body = b"shirt " * 2_000
    seen: list[bytes | None] = []

    def checker(view: MessageView) -> Resolution:
        seen.append(view.value)
        return Resolution.UNKNOWN if len(seen) == 1 else Resolution.COMMIT

    installation.start(**QUICK)
    with installation.producer(checker, compression="gzip") as producer:
        producer.begin().send(Message(orders, value=body))
        installation.tail(orders).until(1)
    (real,) = installation.delivered(orders)
    assert (seen, real.value) == ([body, body], body)
    assert len(installation.copies()) == 1


def test_case_040_to_042_what_a_checker_answers(installation: Installation) -> None:
    """COMMIT delivers, ROLLBACK does not, UNKNOWN is asked again with the next number."""
    orders = installation.real("orders")
    numbers: set[int] = set()  # a machine that is short of time asks twice before it reads

    def checker(view: MessageView) -> Resolution:
        if view.value == b"later":
            numbers.add(view.check_number)
            return Resolution.COMMIT if view.check_number == 2 else Resolution.UNKNOWN
        return Resolution.COMMIT if view.value == b"yes" else Resolution.ROLLBACK

    daemon = installation.start(**QUICK)
    with installation.producer(checker) as producer:
        for value in (b"yes", b"no", b"later"):
            producer.begin().send(Message(orders, value=value))
        installation.tail(orders).until(2)
        daemon.counts("rocketmq_rollback_messages_total", 1, topic=orders)
    delivered = installation.delivered(orders)
    assert sorted(each.value or b"" for each in delivered) == [b"later", b"yes"]
    assert numbers == {1, 2}


def test_case_073_after_a_long_silence_the_first_decision_is_applied_at_once(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is buffered that only the next one would flush; not even by an idle worker."""
    monkeypatch.setattr(worker, "POLL_S", NEVER_S)  # nor found by a look at the log's end
    orders = installation.real("orders")
    waited_s: list[float] = []  # since the last record
    fetch = Input.fetch

    def watched(self: Input, wait_s: float) -> list[Record]:
        records = fetch(self, wait_s)
        if records:
            waited_s.clear()
        else:
            waited_s.append(wait_s)
        return records

    monkeypatch.setattr(Input, "fetch", watched)
    installation.start()
    half = installation.half(orders)
    waited_s.clear()
    until("nothing has come for long", lambda: sum(waited_s) >= SILENCE_S)
    installation.commit(half)
    installation.tail(orders).until(1)


def test_case_079_a_deleted_real_topic_stops_nobody(installation: Installation) -> None:
    """Its messages become dead letters; op and half progress go on."""
    orders, gone = installation.real("orders"), installation.topic("gone")
    half = installation.half(gone)
    installation.delete(gone)
    daemon = installation.start(topic_gone_ms=100)
    op = installation.commit(half)
    passed = installation.pass_through(orders)
    (real,) = installation.delivered(orders)
    assert real.transaction_id == passed.transaction_id
    until("the other one is given up", installation.dead_now)
    (dead,) = installation.dead_letters()
    assert dead.dead.reason is DeadReason.UNDELIVERABLE
    daemon.stop()
    progress = installation.progress()
    assert progress.half > half.offset
    assert progress.op > op.offset


def test_case_103_a_check_names_what_it_is_about(installation: Installation) -> None:
    """Real topic, transaction id, the half's present place, and its body."""
    orders = installation.real("orders")
    installation.start(**QUICK)
    half = installation.half(orders, value=b"body", partition=1)
    request = installation.checks(1)[0]
    reported = request.check
    assert (reported.real_topic, reported.transaction_id) == (orders, half.transaction_id)
    assert (reported.half_partition, reported.half_offset) == (1, half.offset)
    assert (reported.check_number, reported.attempt, request.value) == (1, 1, b"body")


def test_case_123_a_mix_of_all_ends(installation: Installation) -> None:
    """120 messages: the 48 that are committed arrive, each once, and none else."""
    orders = installation.real("orders")
    answers = {2: Resolution.COMMIT, 3: Resolution.ROLLBACK, 4: Resolution.UNKNOWN}

    def checker(view: MessageView) -> Resolution:
        return answers[int(view.value or b"") % 5]

    daemon = installation.start(**QUICK)
    with installation.producer(checker) as producer:
        for number in range(120):
            tx = producer.begin()
            tx.send(Message(orders, value=b"%d" % number))
            if number % 5 == 0:
                tx.commit()
            elif number % 5 == 1:
                tx.rollback()
        installation.dead(24)
        daemon.counts("rocketmq_rollback_messages_total", 48, topic=orders)
        installation.tail(orders).until(48)
    dead, delivered = installation.dead_letters(), installation.delivered(orders)
    arrived = Counter(int(each.value or b"") for each in delivered)
    assert arrived == Counter(n for n in range(120) if n % 5 in (0, 2))
    dead_lettered = Counter(int(each.value or b"") for each in dead)
    assert dead_lettered == Counter(n for n in range(120) if n % 5 == 4)
    assert {each.dead.reason for each in dead} == {DeadReason.CHECK_TIMES}
    until("the gauge is 0", lambda: not daemon.metric("rocketmq_half_messages", topic=orders))


def test_case_124_sixteen_commits_arrive(installation: Installation) -> None:
    """Each once."""
    orders = installation.real("orders")
    installation.start()
    with installation.producer(commit_all) as producer:
        for number in range(16):
            with producer.begin() as tx:
                tx.send(Message(orders, value=b"%d" % number))
    values = [each.value for each in installation.delivered(orders)]
    assert sorted(values) == sorted(b"%d" % number for number in range(16))


def test_case_126_a_successor_delivers_what_was_open(installation: Installation) -> None:
    """16 undecided, both workers go, a third asks: all arrive once, also when the two are back."""
    orders = installation.real("orders")
    sent = [b"%d" % number for number in range(16)]
    may_commit = threading.Event()
    settings = {**QUICK, "check_count_max": 1_000, "leave": True}

    def checker(_view: MessageView) -> Resolution:
        return Resolution.COMMIT if may_commit.is_set() else Resolution.UNKNOWN

    owners = [installation.launch(slot=slot, **settings) for slot in ("w-0", "w-1")]
    with installation.producer(checker) as producer:
        for value in sent:
            producer.begin().send(Message(orders, value=value))
        until("all were asked", lambda: len(installation.copies()) >= len(sent))
        for each in owners:
            each.stop()
        assert installation.tail(orders).to_end() == []
        may_commit.set()
        successor = installation.start(slot="w-2", **settings)
        installation.tail(orders).until(len(sent))
    assert sorted(each.value or b"" for each in installation.delivered(orders)) == sorted(sent)
    for slot in ("w-0", "w-1"):
        installation.launch(slot=slot, **settings)
    successor.stop()
    assert sorted(each.value or b"" for each in installation.delivered(orders)) == sorted(sent)

"""A refused kafka_txn is blamed on the transaction that is alone in it.

The last test runs the shipped worker, on brokers in memory.
"""

from typing import Any, cast

import pytest

from halfbridge import Message, Resolution
from halfbridge.checker.core.plan import Delivery, Plan
from halfbridge.checker.loop.blame import DOUBTFUL_MAX, Blame, SendSize
from halfbridge.checker.loop.failures import (
    FAILURES_RED,
    FIRST_S,
    FailureCount,
    KafkaTxnFailedError,
)
from halfbridge.checker.loop.publish import Outgoing, Sizes
from halfbridge.checker.loop.routes import REFUSED_TOPIC_MS, Routes
from halfbridge.checker.status import Status
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.delivery import Delivery as DeliveryMode
from halfbridge.serde.record_size import bytes_alone
from halfbridge.serde.records import DeadReason
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.broker import Rights
from tests.playbook import UNLIMITED, Playbook, Step, commit, half, junk_half, restart, unread

NAMES = TopicNames()
LIMIT_MAX = 1_000
ROUNDS = 50
SOON_S = 10.0
INVALID = KafkaTxnFailedError("invalid", KafkaFailure(Code.INVALID_RECORD))
UNTIMELY = KafkaTxnFailedError("untimely", KafkaFailure(Code.INVALID_TIMESTAMP))
VAGUE = KafkaTxnFailedError("invalid", KafkaFailure(Code.INVALID_RECORD), is_vague=True)


def _blame(routes: Routes, sizes: Sizes | None = None) -> Blame:
    sizes = sizes or Sizes(lambda _topic: None)
    return Blame(NAMES, routes, sizes, cast("Any", None), limit_max=LIMIT_MAX)


def _rounds_until_blamed(beside: list[Step]) -> int:
    """Refuse A without naming it, with B and `beside` in each round; return the blaming round."""
    routes = Routes(0)
    routes.update({"real": SeenTopic(1, 1)}, 0)
    blame = _blame(routes)
    book = Playbook() >> unread(half("A"), commit("A"))
    for number in range(ROUNDS):
        book >> unread(half(f"B{number}"), commit(f"B{number}"), *beside)
        book.reader.read()
        while True:
            limit = blame.limit(0)
            plan = book.ledger.plan(book.now_ms, records_max=limit, size_bytes_max=UNLIMITED)
            if not plan.records:
                break
            (refused,) = [one for one in plan.deliveries if one.transaction_id == "A"] or [None]
            if refused is not None:
                blame.failed(INVALID, {0: plan}, 0)
                if routes.refusal(refused):
                    return number
                restart(book)
                break
            book.plan = plan
            book.commit()
            blame.succeeded({0: plan})
    return ROUNDS


@pytest.mark.parametrize("junk", [0, 1, 30])
def test_dead_letters_do_not_hide_a_refused_transaction(junk: int) -> None:
    """Dead letters do not raise the batch limit: A is blamed within 10 rounds."""
    assert _rounds_until_blamed([junk_half()] * junk) < 10


def test_deliveries_make_the_batches_larger_again() -> None:
    """Each batch with deliveries doubles the limit, up to the maximum."""
    blame = _blame(Routes(0))
    book = Playbook() >> half("A") >> half("B") >> commit("A") >> commit("B")
    book.take_plan()
    blame.failed(INVALID, {0: book.plan}, 0)
    limits = [blame.limit(0)]
    while limits[-1] < LIMIT_MAX:
        blame.succeeded({0: book.plan})
        limits.append(blame.limit(0))
    assert limits == [125, 250, 500, 1000]


def _vaguely(blame: Blame, routes: Routes) -> Delivery:
    """Refuse A, alone in its kafka_txn, with a vague error of the client."""
    routes.update({"real": SeenTopic(1, 1)}, 0)
    book = Playbook() >> half("A") >> commit("A")
    book.take_plan()
    blame.failed(VAGUE, {0: book.plan}, 0)
    assert blame.send_size is SendSize.ONE_RECORD
    (delivery,) = book.plan.deliveries
    assert not routes.refusal(delivery)
    return delivery


def test_of_an_unknown_reason_nobody_is_blamed_before_records_went_alone() -> None:
    """After a vague refusal records are sent alone; only the next refusal is blamed on one."""
    routes = Routes(0)
    blame = _blame(routes)
    delivery = _vaguely(blame, routes)
    blame.failed(VAGUE, {0: Plan(deliveries=[delivery])}, 0)
    assert routes.refusal(delivery)
    assert blame.send_size is SendSize.USUAL


def test_a_timestamp_that_was_the_reason_is_blamed_on_nobody() -> None:
    """If the reason is a timestamp, no transaction is refused, and records are sent as usual."""
    routes = Routes(0)
    blame = _blame(routes)
    delivery = _vaguely(blame, routes)
    blame.failed(UNTIMELY, {0: Plan(deliveries=[delivery])}, 0)
    assert blame.send_size is SendSize.USUAL
    assert not routes.refusal(delivery)


def test_records_do_not_go_alone_for_good() -> None:
    """Records are sent as usual again after DOUBTFUL_MAX successes of other pairs."""
    routes = Routes(0)
    blame = _blame(routes)
    _vaguely(blame, routes)
    successes = 0
    while blame.send_size is SendSize.ONE_RECORD:
        blame.succeeded({1: Plan()})
        successes += 1
    assert successes == DOUBTFUL_MAX


def _too_large(topic: str) -> KafkaTxnFailedError:
    return KafkaTxnFailedError("too large", KafkaFailure(Code.MSG_SIZE_TOO_LARGE), topic=topic)


def _refused(blame: Blame, topic: str, *sizes_bytes: int) -> list[SendSize]:
    """Refuse a batch three times as too large for `topic`; return the send size of each try."""
    records = [Outgoing(topic, 0, None, b"v" * each, [], 0) for each in sizes_bytes]
    seen = []
    for _ in range(3):
        seen.append(blame.send_size)
        blame.watch(records)
        blame.failed(_too_large(topic), {0: Plan()}, 0)
    return seen


@pytest.mark.parametrize("topic", ["real", NAMES.half])
def test_the_largest_record_alone_tells_what_a_topic_takes(topic: str) -> None:
    """If a record sent alone is refused, the limit is one byte less than the largest record."""
    sizes = Sizes(lambda _topic: None)
    blame = _blame(Routes(0), sizes)
    refused = _refused(blame, topic, 10, 900, 30)
    assert refused == [SendSize.USUAL, SendSize.SMALL, SendSize.ONE_RECORD]
    assert blame.send_size is SendSize.USUAL
    assert sizes.limit(topic) == bytes_alone(None, b"v" * 900, []) - 1


def test_of_dead_letters_half_the_size_is_tried_next() -> None:
    """After a refused dead letter the limit is half its size, since a stub can replace it."""
    sizes = Sizes(lambda _topic: None)
    _refused(_blame(Routes(0), sizes), NAMES.dead, 100_000)
    assert sizes.limit(NAMES.dead) == bytes_alone(None, b"v" * 100_000, []) // 2


def test_where_nothing_goes_alone_nothing_is_measured() -> None:
    """Without a failure, watch does not consume the records."""
    records = iter([Outgoing("real", 0, None, b"v", [], 0)])
    _blame(Routes(0)).watch(records)
    assert len([*records]) == 1


@pytest.mark.parametrize("mode", [each.value for each in DeliveryMode])
def test_a_right_that_is_lost_stops_nobody(mode: str) -> None:
    """If a broker refuses a record, its topic's transactions wait, and others are delivered.

    They become dead letters after `topic_gone_ms`. Once the right is back, the worker delivers the
    transactions that still wait.
    """
    with MemoryStack(delivery=mode) as stack:
        orders, bills = stack.create_topic("orders"), stack.create_topic("bills")
        (worker,) = stack.daemon._workers
        with stack.producer("shop", checker=lambda _: Resolution.COMMIT) as producer:

            def send(topic: str) -> None:
                with producer.begin() as tx:
                    tx.send(Message(topic, key=b"k", value=b"v"))

            send(bills)  # so that its rights were queried
            stack.wait_until_decided()
            stack.machine.broker.rights[worker.process.name] = Rights(unwritten={bills})
            for _ in range(3):
                send(bills)
                send(orders)
            assert len(stack.read_committed(orders, count=3, timeout_s=SOON_S)) == 3
            assert not stack.dead_letters()
            stack.advance(worker._config.topic_gone_ms / 1000 + REFUSED_TOPIC_MS / 1000)
            stack.wait_until_decided()
            reasons = [each.letter.reason for each in stack.dead_letters()]
            assert reasons == [DeadReason.UNDELIVERABLE] * 3
            send(bills)
            send(orders)
            assert len(stack.read_committed(orders, count=4, timeout_s=SOON_S)) == 4
            stack.machine.broker.rights.clear()
            assert len(stack.read_committed(bills, count=2)) == 2
        assert not worker.has_ended


# --- failures in a row: longer and longer delays, shown in health, ended by a success ------


@pytest.fixture
def status() -> Status:
    """The health of a worker that is ready."""
    made = Status()
    made.set_ready(ready=True)
    return made


def _fail(count: FailureCount) -> list[float]:
    return [count.failed("refused") for _ in range(FAILURES_RED)]


def test_failures_in_a_row_turn_health_red_until_a_commit(status: Status) -> None:
    """Health fails after FAILURES_RED failures with growing delays; a commit resets both."""
    count = FailureCount(status)
    count.failed("refused")
    assert status.snapshot().healthy
    delays = _fail(count)
    assert delays == sorted(delays)
    assert not status.snapshot().healthy
    assert status.snapshot().reason == "refused"
    count.committed()
    assert status.snapshot().healthy
    assert count.failed("refused") == FIRST_S


def test_a_rebuild_ends_no_failure_to_write(status: Status) -> None:
    """Health stays bad over rebuilds of the pair whose kafka_txn failed."""
    count = FailureCount(status)
    count.kafka_txn_failed([3])
    _fail(count)
    count.rebuilt({3, 4})
    assert not status.snapshot().healthy
    count.rebuilt({4})  # another worker has the pair
    assert status.snapshot().healthy


def test_a_rebuild_ends_a_failure_to_read(status: Status) -> None:
    """If no kafka_txn failed, a rebuild clears the failure."""
    count = FailureCount(status)
    _fail(count)
    count.rebuilt({0})
    assert status.snapshot().healthy

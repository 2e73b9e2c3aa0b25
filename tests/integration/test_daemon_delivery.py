"""What a decision does: delivered exactly once, byte-exact, or not at all (rule 4)."""

import resource
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from halfbridge.bridge import Message, Resolution
from halfbridge.checker.loop.worker import Worker
from halfbridge.checker.policy import Policy
from halfbridge.checker.process.slots import slot_ids
from halfbridge.checker.status import Status
from halfbridge.kafka.adapter import system_ports
from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID, real_identity
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _unknown(_: object) -> Resolution:
    return Resolution.UNKNOWN


@pytest.mark.feature
def test_commit_delivers_exactly_once_and_byte_exact(installation: Installation) -> None:
    """Key, value and headers arrive as given; id and birth are added, and nothing internal."""
    installation.make()
    orders = installation.topic("orders")
    bodies = [
        (b"key", b"value", [("h", b"1"), ("h", None), ("", b""), ("ü", b"\x00\xff")]),
        (None, b"", []),
        (b"", None, [("a", b"")]),
        (b"\x00\xff", b"\xc3\x01" * 5, []),
    ]
    halves = []
    for key, value, headers in bodies:
        half = installation.half(orders, key=key, value=value, headers=headers)
        halves.append(half)
        installation.commit(half)
    daemon = installation.start()

    records = installation.delivered(orders)

    assert [(each.key, each.value, each.headers[:-2]) for each in records] == bodies
    for half, record in zip(halves, records, strict=True):
        assert record.headers[-2:] == [
            (TRANSACTION_ID, half.transaction_id.encode()),
            (BORN_TIMESTAMP, b"1700000000000"),
        ]
    wanted = len(bodies) + installation.markers(orders)
    daemon.counts("rocketmq_commit_messages_total", wanted, topic=orders)
    assert installation.dead_letters() == []


def test_the_record_time_is_the_time_of_publishing(installation: Installation) -> None:
    """A late commit carries its own time, not its half's: reading by time range misses nothing."""
    installation.make()
    orders = installation.topic("orders")
    half = installation.half(orders)
    until(
        "the broker's clock moves on",
        lambda: installation.half(orders).append_ms >= half.append_ms + 50,
    )
    op = installation.commit(half)
    installation.start()

    (record,) = installation.tail(orders).until(1)

    assert not record.is_append_time
    assert record.timestamp_ms >= op.append_ms >= half.append_ms + 50


def test_partitions_are_kept_and_keys_placed_as_java_does(installation: Installation) -> None:
    """An explicit real partition is kept; else the key decides, as with a plain producer."""
    installation.make()
    orders = installation.topic("orders", partitions=7)
    plain = installation.topic("plain", partitions=7)
    keys = [f"key-{number}".encode() for number in range(20)]
    for key in keys:
        installation.write(plain, b"", key=key, partition=-1)
        installation.pass_through(orders, key=key)
    for number in range(7):
        installation.pass_through(orders, key=b"explicit", real_partition=number)
    installation.start()

    records = installation.tail(orders).until(27)

    placed = {each.key: each.partition for each in records if each.key != b"explicit"}
    expected = {each.key: each.partition for each in installation.tail(plain).until(20)}
    assert placed == expected
    explicit = sorted(each.partition for each in records if each.key == b"explicit")
    assert explicit == list(range(7))


def test_several_messages_become_visible_together(installation: Installation) -> None:
    """Messages of one transaction in two topics come out whole, in the order sent, numbered."""
    installation.make(partitions=2, groups=("orders-service",))
    orders = installation.topic("orders", partitions=3)
    stock = installation.topic("stock")
    installation.start()
    with (
        installation.producer(_unknown, topics=[orders, stock]) as producer,
        producer.begin() as transaction,
    ):
        for number in range(4):
            body = str(number).encode()
            transaction.send(Message(orders, key=b"o", value=body))
            receipt = transaction.send(Message(stock, key=b"s", value=body))
        transaction_id = receipt.transaction_id

    for first, topic in enumerate((orders, stock)):
        records = installation.tail(topic).until(4)
        assert [each.value for each in records] == [b"0", b"1", b"2", b"3"]
        assert [real_identity(each.headers) for each in records] == [
            (transaction_id, index) for index in range(first, 8, 2)
        ]


@pytest.mark.feature
@pytest.mark.parametrize("first", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_the_first_decision_wins(installation: Installation, first: OpKind) -> None:
    """A second decision that contradicts has no effect and is counted; one that agrees, too."""
    installation.make()
    orders = installation.topic("orders")
    second = OpKind.ROLLBACK if first is OpKind.COMMIT else OpKind.COMMIT
    half = installation.half(orders)
    installation.op(first, half)
    installation.op(second, half)
    installation.op(first, half)
    installation.op(second, half, source=OpSource.CHECK, message_count=-1)
    daemon = installation.start()

    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == ([half.transaction_id] if first is OpKind.COMMIT else [])
    daemon.counts("halfbridge_conflicts_total", 2)
    daemon.counts("halfbridge_duplicates_total", 1)


def test_messages_beyond_the_count_and_behind_the_decision_are_kept(
    installation: Installation,
) -> None:
    """EXTRA: more than the commit covers; LATE: stored after it. Neither is delivered or lost."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start()
    half = installation.half(orders, value=b"0")
    extra = installation.half(orders, half.transaction_id, value=b"1", message_index=1)
    installation.commit(extra, message_count=1)
    installation.tail(orders).until(1)
    installation.half(orders, half.transaction_id, value=b"2", message_index=2)

    installation.await_marker()
    letters = installation.dead(2)

    assert [each.value for each in installation.delivered(orders)] == [b"0"]
    assert [(each.value, each.dead.reason) for each in letters] == [
        (b"1", DeadReason.EXTRA),
        (b"2", DeadReason.LATE),
    ]
    for reason in ("EXTRA", "LATE"):
        daemon.counts("halfbridge_dead_letters_total", 1, reason=reason)


@pytest.mark.feature
def test_a_restart_delivers_nothing_twice(installation: Installation) -> None:
    """The work of a worker is kept; its successor continues where it stopped."""
    installation.make()
    orders = installation.topic("orders")
    done = installation.pass_through(orders)
    undecided = installation.half(orders)
    first = installation.start()
    installation.tail(orders).until(1)
    first.stop()
    installation.commit(undecided)

    second = installation.start()

    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [done.transaction_id, undecided.transaction_id]
    wanted = 1 + installation.markers(orders)
    second.counts("rocketmq_commit_messages_total", wanted, topic=orders)


@pytest.mark.feature
def test_keys_come_out_in_the_order_of_their_decisions(installation: Installation) -> None:
    """Transactions of one key, open together, are delivered as they were decided."""
    installation.make(partitions=2, groups=("orders-service",))
    orders = installation.topic("orders", partitions=3)
    installation.start()
    with installation.producer(_unknown, topics=[orders]) as producer:
        open_ones = []
        for number in range(10):
            transaction = producer.begin()
            transaction.send(Message(orders, key=b"same", value=str(number).encode()))
            open_ones.append(transaction)
        for transaction in reversed(open_ones):
            transaction.commit()

    records = installation.tail(orders).until(10)

    assert [each.value for each in records] == [str(n).encode() for n in reversed(range(10))]


# --- an idle daemon: it fetches nothing for nothing, and is awake at once ------------------

# Far above both what is usual (5 ms) and what a busy machine adds.
PROMPT_S = 5.0

# How long nothing comes before a worker is idle.
IDLE_S = 1.5


@pytest.fixture
def worker(installation: Installation, caplog: pytest.LogCaptureFixture) -> Iterator[Worker]:
    """A worker in a thread, on two partitions; it ends without a warning."""
    installation.make(partitions=2)
    config = installation.config()
    made = Worker(
        config,
        Policy(config.names),
        ids=slot_ids("w-0", topic_prefix=config.topic_prefix),
        status=Status(),
        ports=system_ports(),
    )
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,), daemon=True)
    thread.start()
    yield made
    caplog.clear()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == []


def _until_idle(worker: Worker) -> None:
    until("the worker is ready", lambda: worker._status.snapshot().ready)
    threading.Event().wait(IDLE_S)


def test_an_idle_worker_delivers_promptly(installation: Installation, worker: Worker) -> None:
    """After a pause each transaction still comes out at once."""
    orders = installation.topic("orders")
    tail = installation.tail(orders)
    for count in range(1, 4):
        _until_idle(worker)
        began = monotonic()
        installation.pass_through(orders, partition=count % 2)
        tail.until(count)
        assert monotonic() - began < PROMPT_S


def test_an_idle_worker_needs_next_to_no_cpu(installation: Installation, worker: Worker) -> None:
    """Far below what hundreds of empty fetches a second would take."""
    _until_idle(worker)
    woke = threading.Event()
    before = resource.getrusage(resource.RUSAGE_SELF)
    woke.wait(2)
    after = resource.getrusage(resource.RUSAGE_SELF)

    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s < 0.3

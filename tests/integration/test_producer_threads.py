"""The producer client on a real broker: many threads, many transactions at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from halfbridge.bridge import Message, ProducerClosedError, State
from halfbridge.serde import HALF_METADATA, OpKind
from tests.integration.producing import TIMEOUT_S, Cluster

pytestmark = [pytest.mark.feature, pytest.mark.broker]


# --- concurrency -------------------------------------------------------------------------------


def test_32_threads_share_one_producer(cluster: Cluster) -> None:
    """Each of 1,600 blocking transactions has its half, its op and its receipt."""
    receipts: list[tuple[str, Any, Any]] = []
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(50):
                tx = producer.begin()
                sent = tx.send(Message(cluster.orders, key=b"%d" % number, value=b"%d" % n))
                receipts.append((tx.id, sent, tx.commit() if n % 5 else tx.rollback()))
        except BaseException as error:  # noqa: BLE001 (the test asserts that there is none)
            errors.append(error)

    with cluster.producer() as producer:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    halves = {(r.partition(), r.offset()): r for r in cluster.read(cluster.names.half)}
    ops = {(r.partition(), r.offset()): op for r, op in cluster.ops()}
    assert len(halves) == len(ops) == len(receipts) == 1_600
    for transaction_id, sent, future in receipts:
        decided = future.result()
        op = ops[decided.op_partition, decided.op_offset]
        assert (op.transaction_id, op.kind.value) == (transaction_id, decided.resolution.value)
        half = halves[sent.half_partition, sent.half_offset]
        assert HALF_METADATA.decode(half.headers()[-1][1]).transaction_id == transaction_id
        assert op.half_offset == sent.half_offset


def test_threads_may_share_one_transaction(cluster: Cluster) -> None:
    """Eight threads send in one transaction: indexes have no gap and no double."""
    with cluster.producer() as producer:
        tx = producer.begin()
        with ThreadPoolExecutor(8) as threads:
            sent = threads.map(lambda _: tx.send(Message(cluster.orders)), range(200))
            indexes = [each.message_index for each in sent]
        tx.commit()
    assert sorted(indexes) == list(range(200))
    ((_, op),) = cluster.ops()
    assert op.message_count == 200


def test_pipelined_transactions_from_one_thread(cluster: Cluster) -> None:
    """2,000 transactions: the ack of a half message sends its commit; flush waits for all."""
    decided: list[Any] = []
    ids: set[str] = set()
    with cluster.producer() as producer:
        for number in range(2_000):
            tx = producer.begin()
            ids.add(tx.id)
            tx.send_async(Message(cluster.orders, value=b"%d" % number)).add_done_callback(
                lambda sent: sent.transaction.commit_async().add_done_callback(decided.append)
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert len(decided) == 2_000
        assert all(future.done() and future.exception() is None for future in decided)
        assert {future.result().transaction_id for future in decided} == ids
    assert {op.transaction_id for _, op in cluster.ops()} == ids


def test_the_in_flight_limit_holds(cluster: Cluster) -> None:
    """A pipelined caller waits for room rather than fill the queue."""
    with cluster.producer(in_flight_max=10, linger_ms=0) as producer:
        most = 0
        for _ in range(500):
            producer.begin().send_async(Message(cluster.orders))
            most = max(most, len(producer._shared.writer))
        assert producer.flush(TIMEOUT_S) == 0
    assert 0 < most <= 20  # len() counts a record twice while its report is served
    assert len(cluster.read(cluster.names.half)) == 500


@pytest.mark.parametrize("decide", ["commit_async", "rollback_async"])
def test_a_decision_that_waited_for_room_covers_the_half_message(
    cluster: Cluster, decide: str
) -> None:
    """The half message is acknowledged while its decision waits: its offset is known then."""
    with cluster.producer(in_flight_max=1, linger_ms=50) as producer:
        tx = producer.begin()
        tx.send_async(Message(cluster.orders))
        assert getattr(tx, decide)().result().op_offset == 0
    ((_, op),) = cluster.ops()
    assert (op.half_offset, op.message_count) == (0, 1)


def test_closing_waits_for_decisions_that_callbacks_send(cluster: Cluster) -> None:
    """A callback that was at work when `close` began decides yet; nothing new is begun or sent."""
    working, refused = threading.Event(), threading.Event()

    def commit(sent: Any) -> None:
        working.set()
        assert refused.wait(TIMEOUT_S)
        sent.transaction.commit_async()

    with cluster.producer() as producer:
        tx, other = producer.begin(), producer.begin()
        tx.send_async(Message(cluster.orders)).add_done_callback(commit)
        assert working.wait(TIMEOUT_S)
        closing = threading.Thread(target=producer.close)
        closing.start()
        deadline = monotonic() + TIMEOUT_S
        with pytest.raises(ProducerClosedError):
            while monotonic() < deadline:
                producer.begin()
        with pytest.raises(ProducerClosedError):
            other.send(Message(cluster.orders))
        refused.set()
        closing.join(TIMEOUT_S)
    assert tx.state is State.COMMITTED
    ((_, op),) = cluster.ops()
    assert (op.transaction_id, op.kind) == (tx.id, OpKind.COMMIT)


def test_futures_serve_callers_that_only_wait(cluster: Cluster) -> None:
    """result, callbacks before and after the end, and a callback that raises."""
    with cluster.producer() as producer:
        tx = producer.begin()
        future = tx.send_async(Message(cluster.orders))
        called = threading.Event()

        def raising(_: object) -> None:
            called.set()
            raise ValueError

        future.add_done_callback(raising)
        assert called.wait(TIMEOUT_S)  # nobody but the background thread serves it
        assert future.done()
        again: list[object] = []
        future.add_done_callback(again.append)
        assert again == [future]
        assert future.result().half_offset == 0
        # A callback may even block on another delivery.
        blocked = producer.begin().send_async(Message(cluster.orders))
        done = threading.Event()
        blocked.add_done_callback(lambda sent: (sent.transaction.commit(), done.set()))
        assert done.wait(TIMEOUT_S)

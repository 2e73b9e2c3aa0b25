"""The producer client on a real broker: what it writes, and what its failures leave."""

from collections import Counter
from typing import Any

import pytest

from halfbridge.bridge import (
    IllegalTransitionError,
    InvalidMessageError,
    Message,
    OutcomeUnknownError,
    Resolution,
    State,
    TopicSetupError,
)
from halfbridge.serde import HALF_METADATA, OpKind, OpSource
from halfbridge.serde.headers import CONTEXT, HALF
from halfbridge.serde.partitioner import partition_of
from tests.integration.producing import GROUP, PARTITIONS, Cluster

pytestmark = pytest.mark.broker


# --- what is written ---------------------------------------------------------------------------


@pytest.mark.feature
def test_half_message_is_stored_byte_exact_and_invisible(cluster: Cluster) -> None:
    """Conformance 26, 28: the real topic stays empty; null and empty stay different."""
    sent = [
        Message(cluster.orders, key=b"42", value=b"body", headers=[("a", b"1"), ("a", None)]),
        Message(cluster.orders, key=b"", value=b"", headers=[("e", b"")], partition=2),
        Message(cluster.orders, key=None, value=None, immunity_ms=60_000),
    ]
    with cluster.producer() as producer:
        tx = producer.begin()
        receipts = [tx.send(message) for message in sent]
    records = cluster.read(cluster.names.half, 3)
    half_partition = partition_of(b"42", PARTITIONS)
    assert [r.partition() for r in records] == [half_partition] * 3
    assert [r.half_offset for r in receipts] == [r.offset() for r in records] == [0, 1, 2]
    for index, (record, message) in enumerate(zip(records, sent, strict=True)):
        assert (record.key(), record.value()) == (message.key, message.value)
        *user, (name, raw) = record.headers()
        assert (tuple(user), name) == (tuple(message.headers), HALF)
        metadata = HALF_METADATA.decode(raw)
        assert (metadata.transaction_id, metadata.message_index) == (tx.id, index)
        assert (metadata.producer_group, metadata.real_topic) == (GROUP, cluster.orders)
        assert metadata.real_partition == message.real_partition
        assert metadata.immunity_ms == (-1 if message.immunity_ms is None else message.immunity_ms)
        assert (metadata.check_times, metadata.resume_count) == (0, 0)
        assert (metadata.first_append_timestamp, metadata.origin_offset) == (-1, -1)
    assert cluster.read(cluster.orders) == []
    assert cluster.read(cluster.names.op) == []


@pytest.mark.feature
@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_a_decision_is_one_op_record(cluster: Cluster, kind: OpKind) -> None:
    """Conformance 2, 3: one op in the half message's partition, with count and last offset."""
    with cluster.producer() as producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders, key=b"k", value=b"1"))
        last = tx.send(Message(cluster.orders, key=b"other", value=b"2"))
        decided = tx.commit() if kind is OpKind.COMMIT else tx.rollback()
        receipt = decided.result()
    ((record, op),) = cluster.ops()
    assert (receipt.op_partition, receipt.op_offset) == (record.partition(), record.offset())
    assert (receipt.transaction_id, receipt.resolution.value) == (tx.id, kind.value)
    assert not receipt.late
    assert record.partition() == last.half_partition
    assert record.key() == tx.id.encode()
    assert (op.transaction_id, op.kind, op.source) == (tx.id, kind, OpSource.PRODUCER)
    assert (op.half_offset, op.message_count) == (last.half_offset, 2)
    assert (op.producer_group, op.check_number, op.resume_count) == (GROUP, 0, 0)


def test_another_producer_repeats_a_commit(cluster: Cluster) -> None:
    """What it writes is what the sender would have, any number of times; nothing else is done."""
    with cluster.producer() as producer:
        tx = producer.begin()
        receipts = [tx.send(Message(cluster.orders, key=b"k", value=b"%d" % n)) for n in range(2)]
    place = {
        "half_partition": tx.half_partition,
        "half_offset": receipts[-1].half_offset,
        "message_count": tx.message_count,
    }
    with cluster.producer() as producer:
        assert producer.half_partitions == PARTITIONS
        for _ in range(2):
            receipt = producer.repeat_commit(tx.id, **place).result()
            assert (receipt.transaction_id, receipt.op_partition) == (tx.id, tx.half_partition)
        for wrong in ("half_partition", "half_offset", "message_count"):
            with pytest.raises(InvalidMessageError, match=wrong):
                producer.repeat_commit(tx.id, **{**place, wrong: -1})
        with pytest.raises(InvalidMessageError, match="half_partition"):
            producer.repeat_commit(tx.id, **{**place, "half_partition": PARTITIONS})
    ops = [op for _, op in cluster.ops()]
    assert [(op.kind, op.source, op.transaction_id) for op in ops] == [
        (OpKind.COMMIT, OpSource.PRODUCER, tx.id)
    ] * 2
    assert {(op.half_offset, op.message_count) for op in ops} == {(place["half_offset"], 2)}


def test_transactions_share_a_half_partition_by_a_key_of_their_own(cluster: Cluster) -> None:
    """The placement key chooses the half partition, and the messages' keys do not."""
    with cluster.producer() as producer:
        transactions = [producer.begin(placement_key=b"relay-1") for _ in range(4)]
        for number, tx in enumerate(transactions):
            for key in (b"%d" % number, None):
                tx.send(Message(cluster.orders, key=key, value=b"v"))
            tx.commit()
    assert {tx.half_partition for tx in transactions} == {partition_of(b"relay-1", PARTITIONS)}


def test_a_decision_later_than_the_first_check_says_so(cluster: Cluster) -> None:
    """`late` follows the brokers' append times and the message's own immunity."""
    with cluster.producer(transaction_timeout_ms=1) as producer:
        soon = producer.begin()
        soon.send(Message(cluster.orders, immunity_ms=60_000))
        late = producer.begin()
        first = late.send(Message(cluster.orders))
        while True:  # until the broker's clock has moved on
            probe = producer.begin().send_async(Message(cluster.orders))
            probe.result()
            if probe.timestamp > late._first_timestamp + 1:
                break
        assert late.commit().result().late
        assert not soon.commit().result().late
        assert first.transaction_id == late.id


def test_a_transactions_context_and_immunity_stand_in_its_half_records(cluster: Cluster) -> None:
    """RMQ_CONTEXT in the first one only; a message's own immunity wins over the transaction's."""
    with cluster.producer() as producer:
        tx = producer.begin(immunity_ms=7_000, context=b"\x00c")
        tx.send(Message(cluster.orders, key=b"k", headers=[("h", b"1")]))
        tx.send(Message(cluster.orders, key=b"k", immunity_ms=9_000))
        assert tx.message_count == 2
        tx.rollback()
        with pytest.raises(InvalidMessageError, match="4096") as caught:
            producer.begin(context=b"x" * 4097)
        assert caught.value.field == "context"
        for wrong in (-1, 10**12):
            with pytest.raises(InvalidMessageError, match="immunity_ms"):
                producer.begin(immunity_ms=wrong)
    first, second = (record.headers() for record in cluster.read(cluster.names.half))
    assert [name for name, _ in first] == ["h", CONTEXT, HALF]
    assert dict(first)[CONTEXT] == b"\x00c"
    assert [name for name, _ in second] == [HALF]
    metadata = [HALF_METADATA.decode(dict(each)[HALF]) for each in (first, second)]
    assert [each.immunity_ms for each in metadata] == [7_000, 9_000]


def test_a_sealed_transaction_takes_no_more_messages(cluster: Cluster) -> None:
    """Sealed once all sends are acknowledged; what was sealed is decided as ever."""
    with cluster.producer() as producer:
        tx = producer.begin()
        with pytest.raises(IllegalTransitionError, match="nothing was sent"):
            tx.seal()
        tx.send(Message(cluster.orders))
        tx.seal()
        tx.seal()
        with pytest.raises(IllegalTransitionError, match="local transaction has begun"):
            tx.send(Message(cluster.orders))
        assert (tx.state, tx.message_count) == (State.SEALED, 1)
        tx.commit()
        with pytest.raises(IllegalTransitionError, match="a commit was sent"):
            tx.seal()
        with producer.begin() as block:
            block.send(Message(cluster.orders))
            block.seal()
        assert block.decision is not None
        assert block.decision.result().resolution is Resolution.COMMIT
        assert block.state is State.COMMITTED


@pytest.mark.feature
def test_leaving_the_block_commits_once(cluster: Cluster) -> None:
    """Commit at the end of the block, and none where the user decided or sent nothing."""
    with cluster.producer() as producer:
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
        assert tx.commit().result() == tx.commit(wait=True).result()
        assert tx.state is State.COMMITTED
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
            tx.rollback()
            tx.rollback()
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
            tx.commit()
        with producer.begin() as tx:
            pass
        assert tx.state is State.INIT
        with producer.begin() as tx:
            tx.send_async(Message(cluster.orders)).result()
            tx.commit_async()
    kinds = Counter(op.kind for _, op in cluster.ops())
    assert kinds == {OpKind.COMMIT: 3, OpKind.ROLLBACK: 1}


@pytest.mark.feature
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_decides_nothing(cluster: Cluster, error: type[BaseException]) -> None:
    """The database may have committed although its call raised; only rollback() rolls back."""
    with cluster.producer() as producer:
        tx = producer.begin()
        with pytest.raises(error), tx:
            tx.send(Message(cluster.orders))
            raise error
        assert tx.state is State.HALF_SENT
        rolled_back = producer.begin()
        with pytest.raises(error), rolled_back:
            rolled_back.send(Message(cluster.orders))
            rolled_back.rollback()
            raise error
    ((_, op),) = cluster.ops()
    assert (op.transaction_id, op.kind) == (rolled_back.id, OpKind.ROLLBACK)


# --- send_in_transaction -----------------------------------------------------------------------


def test_what_a_local_transaction_returns_by_mistake_is_an_error(cluster: Cluster) -> None:
    """Nothing is decided: the local transaction has run, and the check finds out how it ended."""

    def wrong(_message: Message, _arg: object) -> Any:
        return True

    says = pytest.raises(TypeError, match="returned True, and must return a Resolution")
    with cluster.producer() as producer, says:
        producer.send_in_transaction(Message(cluster.orders), wrong)
    assert len(cluster.read(cluster.names.half)) == 1
    assert cluster.ops() == []


# --- failures ----------------------------------------------------------------------------------


def test_what_the_client_remembers_of_a_topic_does_not_outlive_the_truth(cluster: Cluster) -> None:
    """Librdkafka answers from cached metadata for minutes; a half partition is looked up again.

    A client that learned of too few partitions (from a broker that was just starting)
    could answer no check of the others: their transactions stayed undecided.
    """
    with cluster.producer() as producer:
        shared = producer.begin().shared
        assert shared.ends.half_end(0) == -1
        with pytest.raises(TopicSetupError):
            shared.ends.half_end(PARTITIONS)
        cluster.grow(cluster.names.half, PARTITIONS + 1)
        assert shared.ends.half_end(PARTITIONS) == -1


def test_an_end_is_reported_whatever_a_user_sets_for_consumers(cluster: Cluster) -> None:
    """Asking where a partition ends is no consumer's work: no consumer's property forbids it."""
    with cluster.producer(kafka={"max.poll.interval.ms": "30000"}) as producer:
        tx = producer.begin()
        stored = tx.send(Message(cluster.orders, key=b"k"))
        assert tx.shared.ends.half_end(stored.half_partition) == stored.half_offset


def test_a_decision_without_ack_is_in_doubt_and_may_be_repeated(cluster: Cluster) -> None:
    """After a COMMIT of unknown outcome only COMMIT is allowed; it is then stored."""
    with cluster.producer(send_timeout_ms=2_000, decision_timeout_ms=2_000) as producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders))
        op_topic = producer._shared.op_topic
        producer._shared.op_topic = cluster.names.prefix + "gone"
        with pytest.raises(OutcomeUnknownError) as caught:
            tx.commit(timeout=0.5)
        producer._shared.op_topic = op_topic
        assert caught.value.transaction_id == tx.id
        assert tx.state is State.COMMIT_IN_DOUBT
        with pytest.raises(IllegalTransitionError, match="only commit"):
            tx.rollback()
        assert tx.commit(wait=True).result().op_offset == 0
        assert tx.state is State.COMMITTED
    assert [op.kind for _, op in cluster.ops()] == [OpKind.COMMIT]

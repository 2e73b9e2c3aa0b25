"""Conformance cases 1 to 37 of the client, and 63, 68, 104, 106, 114, 115."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.bridge import (
    ConfigError,
    IllegalTransitionError,
    InvalidMessageError,
    Message,
    MessageView,
    Resolution,
    TransactionProducer,
)
from halfbridge.bridge.check_pool import CheckPool
from halfbridge.kafka.adapter import system_ports
from halfbridge.serde.avro import CHECK_REQUEST
from halfbridge.serde.headers import CHECK
from halfbridge.serde.records import CheckRequest, Op, OpKind, OpSource
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

LATER_S = 20.0


def unasked(view: MessageView) -> Resolution:
    """Fail: these tests have no daemon that asks."""
    raise AssertionError(view)


@pytest.fixture
def producer(installation: Installation) -> Iterator[TransactionProducer]:
    """Yield a started client whose checker is never asked."""
    with installation.producer(unasked) as started:
        yield started


def ops(installation: Installation) -> list[Op]:
    """Return the records of the op topic."""
    return [each.op for each in installation.tail(installation.names.op).to_end()]


def all_ops(installation: Installation, producer: TransactionProducer) -> list[Op]:
    """Close a client, so that it writes nothing more, and return the records of the op topic."""
    producer.close()
    return ops(installation)


def ask(installation: Installation, number: int, **given: Any) -> None:
    """Write a check request as the daemon does, about a stored half record."""
    half = installation.write(installation.names.half, b"v", partition=1)
    values: dict[str, Any] = {
        "transaction_id": f"{number:032x}",
        "sent_timestamp": 1,
        "half_offset": half.offset,
        "half_partition": 1,
        "resume_count": 0,
        "message_index": 0,
        "producer_group": GROUP,
        "real_topic": installation.real("orders"),
        "real_partition": -1,
        "check_number": 3,
        "attempt": 1,
        "born_timestamp": 77,
        **given,
    }
    header = (CHECK, CHECK_REQUEST.encode(CheckRequest(**values)))
    installation.write(installation.names.check(GROUP), b"v", headers=[header])


def op_about(installation: Installation, number: int) -> Op:
    """Return the answer about a transaction once it is stored."""
    wanted = f"{number:032x}"
    found: list[Op] = until(
        f"answer about {number}",
        lambda: [each for each in ops(installation) if each.transaction_id == wanted],
    )
    return found[0]


def test_case_001_no_checker_is_a_typed_error() -> None:
    """Before anything is connected to."""
    nothing_given: Any = None
    with pytest.raises(ConfigError, match="checker"):
        TransactionProducer(
            bootstrap_servers="nowhere:1", producer_group=GROUP, checker=nothing_given
        )


@pytest.mark.feature
@pytest.mark.broker
def test_case_002_and_003_a_local_answer_is_one_op(
    installation: Installation, producer: TransactionProducer
) -> None:
    """Its kind, its group, its id, by the producer itself; only COMMIT delivers."""
    orders = installation.real("orders")
    sent = []
    for answer in (Resolution.COMMIT, Resolution.ROLLBACK):
        result = producer.send_in_transaction(
            Message(orders, key=b"1"), lambda _message, _arg, answer=answer: answer
        )
        assert result.resolution is answer
        sent.append((answer.value, OpSource.PRODUCER, GROUP, result.receipt.transaction_id))
    written = all_ops(installation, producer)
    assert [
        (op.kind.value, op.source, op.producer_group, op.transaction_id) for op in written
    ] == sent
    installation.start()
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [written[0].transaction_id]


@pytest.mark.feature
@pytest.mark.broker
def test_case_004_unknown_leaves_it_open_until_the_timeout(
    installation: Installation, producer: TransactionProducer
) -> None:
    """UNKNOWN, or nothing: no op; asked about when the timeout is over, by the broker's clock."""
    answers: list[Any] = [Resolution.UNKNOWN, None]
    ids = set()
    for answer in answers:
        result = producer.send_in_transaction(
            Message(installation.real("orders")), lambda _message, _arg, answer=answer: answer
        )
        assert result.resolution is Resolution.UNKNOWN
        ids.add(result.receipt.transaction_id)
    assert all_ops(installation, producer) == []
    halves = installation.tail(installation.names.half).to_end()
    stored_ms = {each.half.transaction_id: each.timestamp_ms for each in halves}
    assert stored_ms.keys() == ids
    installation.start(transaction_timeout_ms=1_500)
    requests = installation.checks(2)
    assert {each.check.transaction_id for each in requests} == ids
    for each in requests:
        assert each.timestamp_ms - stored_ms[each.check.transaction_id] >= 1_500


@pytest.mark.broker
def test_case_005_a_local_transaction_that_raises_is_unknown(
    installation: Installation, producer: TransactionProducer
) -> None:
    """The call returns; the exception is in the result; nothing is decided."""
    raised = OSError("database down")

    def local(_message: Message, _arg: object) -> Resolution:
        raise raised

    result = producer.send_in_transaction(Message(installation.real("orders")), local)
    assert (result.resolution, result.error) == (Resolution.UNKNOWN, raised)
    assert "database down" in result.remark
    assert all_ops(installation, producer) == []
    assert len(installation.tail(installation.names.half).to_end()) == 1


@pytest.mark.parametrize("option", ["delay_ms", "deliver_at", "message_group", "priority"])
def test_case_009_and_016_there_is_no_delay_and_no_other_order(option: str) -> None:
    """A message has no such property: giving one is an error where it is written."""
    extra: dict[str, Any] = {option: 1}
    with pytest.raises(TypeError, match=option):
        Message("orders", **extra)


@pytest.mark.feature
@pytest.mark.broker
def test_case_011_several_messages_are_one_transaction(
    installation: Installation, producer: TransactionProducer
) -> None:
    """D-004: RocketMQ refuses the second one; here all share partition and decision."""
    orders = installation.real("orders")
    with producer.begin() as tx:
        receipts = [tx.send(Message(orders, key=key)) for key in (b"a", b"b", b"c")]
    assert [each.message_index for each in receipts] == [0, 1, 2]
    assert len({each.half_partition for each in receipts}) == 1
    (op,) = all_ops(installation, producer)
    assert (op.message_count, op.half_offset) == (3, receipts[-1].half_offset)


@pytest.mark.broker
def test_case_013_no_decision_before_a_send(
    installation: Installation, producer: TransactionProducer
) -> None:
    """A typed error, and no op; the transaction stays as it was and can be used."""
    for name in ("commit", "rollback"):
        tx = producer.begin()
        with pytest.raises(IllegalTransitionError, match="nothing was sent"):
            getattr(tx, name)()
        tx.send(Message(installation.real("orders"), key=b"1"))
        getattr(tx, name)()
    kinds = [op.kind for op in all_ops(installation, producer)]
    assert kinds == [OpKind.COMMIT, OpKind.ROLLBACK]


@pytest.mark.broker
def test_case_014_and_063_a_decision_is_written_to_the_op_topic_of_its_half(
    installation: Installation, producer: TransactionProducer
) -> None:
    """Partition and offset of the receipt are those of the op; the call returns its place."""
    tx = producer.begin()
    sent = tx.send(Message(installation.real("orders"), key=b"k"))
    decided = tx.commit().result()
    producer.close()
    (record,) = installation.tail(installation.names.op).to_end()
    assert (record.partition, record.offset) == (decided.op_partition, decided.op_offset)
    assert (record.partition, record.op.half_offset) == (sent.half_partition, sent.half_offset)
    assert record.key == tx.id.encode()


@pytest.mark.broker
def test_case_015_a_repeated_commit_is_one_op(
    installation: Installation, producer: TransactionProducer
) -> None:
    """It returns the same place; RocketMQ sends again."""
    tx = producer.begin()
    tx.send(Message(installation.real("orders")))
    assert tx.commit().result() == tx.commit().result()
    assert len(all_ops(installation, producer)) == 1


@pytest.mark.feature
@pytest.mark.broker
def test_case_017_and_068_a_check_is_answered_from_another_thread(
    installation: Installation,
) -> None:
    """The checker runs in the pool; its answer says CHECK and echoes ids and number."""
    threads: list[str] = []

    def checker(_view: MessageView) -> Resolution:
        threads.append(threading.current_thread().name)
        return Resolution.COMMIT

    with installation.producer(checker):
        ask(installation, 1)
        op = op_about(installation, 1)
    assert threads[0].startswith("halfbridge-checker")
    assert (op.kind, op.source, op.check_number) == (OpKind.COMMIT, OpSource.CHECK, 3)


@pytest.mark.broker
def test_case_018_and_019_what_is_not_for_us_is_skipped(installation: Installation) -> None:
    """Another group's request, and one that cannot be read: counted, and the next is answered."""
    with installation.producer(lambda _view: Resolution.ROLLBACK) as producer:
        installation.write(installation.names.check(GROUP), b"", headers=[(CHECK, b"junk")])
        ask(installation, 1, producer_group="strangers")
        ask(installation, 2)
        assert op_about(installation, 2).kind is OpKind.ROLLBACK
        until("all are read", lambda: producer.check_counts().received == 3)
        counts = producer.check_counts()
    assert (counts.undecodable, counts.foreign, counts.answered) == (1, 1, 1)
    assert [op.transaction_id for op in ops(installation)] == [f"{2:032x}"]


@pytest.mark.broker
def test_case_020_and_021_a_checker_that_fails_is_recorded(installation: Installation) -> None:
    """D-016: raised, or None: UNKNOWN with the reason, not counted; the responder continues."""

    def checker(view: MessageView) -> Any:
        if view.transaction_id == f"{20:032x}":
            raise ConnectionError("no database")
        return None if view.transaction_id == f"{21:032x}" else Resolution.COMMIT

    with installation.producer(checker, check_threads=1):
        for number, reason in ((20, "no database"), (21, "None")):
            ask(installation, number)
            failed = op_about(installation, number)
            assert (failed.kind, failed.check_number) == (OpKind.UNKNOWN, 0)
            assert reason in failed.reason
        ask(installation, 1)
        assert op_about(installation, 1).kind is OpKind.COMMIT
    assert len(ops(installation)) == 3


def test_case_024_and_104_a_full_pool_refuses_and_a_stopped_one_runs_nothing() -> None:
    """Visible, instead of RocketMQ's silent drop; what was accepted runs."""
    release, ran = threading.Event(), []

    def work(task: int) -> int:
        assert release.wait(LATER_S)
        ran.append(task)
        return task

    pool: CheckPool[int] = CheckPool(
        work, system_ports(), threads=1, hung_max=0, queue_max=5, timeout_s=LATER_S
    )
    accepted = [task for task in range(10) if pool.submit(task)]
    assert accepted == [0, 1, 2, 3, 4]
    release.set()
    pool.start()
    until("the accepted run", lambda: ran == accepted)
    assert pool_threads()
    pool.stop(LATER_S)
    pool.submit(99)
    until("nobody is left who could run it", lambda: not pool_threads())
    assert ran == accepted


def pool_threads() -> list[threading.Thread]:
    """Return the threads of check pools."""
    return [each for each in threading.enumerate() if each.name.startswith("halfbridge-checker")]


@pytest.mark.broker
def test_case_114_only_who_declares_the_topic_answers(installation: Installation) -> None:
    """A member of the group with other topics leaves the request to those that know it."""
    other = installation.topic("others")
    with installation.producer(lambda _view: Resolution.ROLLBACK, topics=[other]) as stranger:
        ask(installation, 1)
        until("it was seen", lambda: stranger.check_counts().foreign == 1)
        ask(installation, 2, real_topic=other)
        assert op_about(installation, 2).kind is OpKind.ROLLBACK
    assert [op.transaction_id for op in ops(installation)] == [f"{2:032x}"]
    orders = installation.real("orders")
    with installation.producer(lambda _view: Resolution.COMMIT, topics=[orders]):
        ask(installation, 1)
        assert op_about(installation, 1).kind is OpKind.COMMIT


@pytest.mark.broker
def test_case_106_and_115_a_member_that_has_sent_nothing_is_asked(
    installation: Installation,
) -> None:
    """Also about what was asked before it came to life."""
    ask(installation, 1)
    with installation.producer(lambda _view: Resolution.COMMIT):
        assert op_about(installation, 1).kind is OpKind.COMMIT
    assert len(installation.tail(installation.names.half).to_end()) == 1


@pytest.mark.broker
def test_case_032_and_033_immunity_is_bounded(
    installation: Installation, producer: TransactionProducer
) -> None:
    """Half of the maximum age is accepted, a millisecond more is not."""
    limit_ms = producer.config.immunity_ms_max
    orders = installation.real("orders")
    tx = producer.begin()
    with pytest.raises(InvalidMessageError, match="immunity"):
        tx.send(Message(orders, immunity_ms=limit_ms + 1))
    tx.send(Message(orders, immunity_ms=limit_ms))
    (half,) = installation.tail(installation.names.half).to_end()
    assert half.half.immunity_ms == limit_ms


@pytest.mark.broker
def test_case_037_too_large_is_refused_before_it_is_sent(
    installation: Installation, producer: TransactionProducer
) -> None:
    """An error that names the field; the local transaction does not run."""
    ran: list[object] = []
    with pytest.raises(InvalidMessageError):
        producer.send_in_transaction(
            Message(installation.real("orders"), value=bytes(1_048_588)),
            lambda message, _arg: ran.append(message),
        )
    assert ran == []
    producer.close()
    assert installation.tail(installation.names.half).to_end() == []


@pytest.mark.parametrize("name", ["RMQ_HALF", "RMQ_DEAD", "__transactionId__", "__messageIndex__"])
def test_case_035_reserved_headers_are_refused(name: str) -> None:
    """Nobody forges internal ones through the client."""
    with pytest.raises(InvalidMessageError, match="reserved"):
        Message("orders", headers=[(name, b"")])

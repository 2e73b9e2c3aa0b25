"""The output of `tx show` for one transaction, in each state and with each decision that lost."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.dead.letters import Remedy
from halfbridge.checker.admin.transactions.explain import explain
from halfbridge.checker.admin.transactions.life import Kind, Life, Verdict
from halfbridge.checker.admin.transactions.logs import Span
from halfbridge.checker.admin.transactions.look_up import FoundRecords, RecordFinder
from halfbridge.checker.admin.transactions.waits import DeliveryWait, Wait
from halfbridge.checker.errors import AdminRequestError
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.testkit.memory import MemoryStack
from tests.kit import dead_letters
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def kinds(life: Life) -> list[str]:
    """Return the kinds of a life's events, in order."""
    return [each.kind.value for each in life.events]


def verdicts(life: Life) -> list[Verdict | None]:
    """Return the verdicts on a life's ops, in order."""
    return [each.verdict for each in life.events if each.op and each.kind is not Kind.DEAD_LETTER]


def test_a_committed_transaction_is_shown_with_its_delivery(stack: MemoryStack) -> None:
    """The events are halves, decision, and one delivery per message with partition and offset."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        sent(producer, b"another").commit()
        tx = sent(producer, b"one", b"two")
        tx.commit()
        (records) = stack.read_committed(TOPIC, count=3)
        life = operator.shown(tx.id)
    assert (life.state, life.is_applied) == ("COMMITTED", True)
    assert kinds(life) == ["half", "half", "decision", "delivery", "delivery"]
    assert life.decided_by is not None
    assert (life.decided_by.op, life.decided_by.source) == ("COMMIT", "PRODUCER")
    places = {
        (each.topic, each.partition, each.offset) for each in records if each.value != b"another"
    }
    assert places == {
        (each.topic, each.partition, each.offset)
        for each in life.events
        if each.kind is Kind.DELIVERY
    }
    assert [each.message_index for each in life.events if each.kind is Kind.DELIVERY] == [0, 1]


def test_a_delivery_has_as_many_bytes_as_its_half_record(stack: MemoryStack) -> None:
    """The size is that of key, value and the user's headers, without the daemon's headers."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        with producer.begin() as tx:
            tx.send(Message(TOPIC, key=b"k", value=b"v", headers=[("name", b"text")]))
            tx.send(Message(TOPIC, key=b"k", value=b"value"))
        stack.advance(seconds=1)
        life = operator.shown(tx.id)
    assert [each.bytes for each in life.events if each.kind is Kind.HALF] == [10, 6]
    assert [each.bytes for each in life.events if each.kind is Kind.DELIVERY] == [10, 6]


def test_a_rolled_back_transaction_has_no_end(stack: MemoryStack) -> None:
    """The events of a rolled back transaction are its half and its decision."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        tx.rollback()
        stack.advance(seconds=1)
        life = operator.shown(tx.id)
    assert (life.state, kinds(life)) == ("ROLLED_BACK", ["half", "decision"])
    assert life.decided_by is not None
    assert (life.decided_by.op, life.decided_by.verdict) == ("ROLLBACK", Verdict.WON)


def test_an_undecided_transaction_says_why_it_waits(stack: MemoryStack) -> None:
    """The events have checks, answers and copies in order of time."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=10)
        life = operator.shown(tx.id)
        listed = operator.listed().transactions
    assert life.state == "PREPARED"
    assert kinds(life) == ["half", "check", "answer", "copy"]
    assert verdicts(life) == [Verdict.COUNTED]
    assert life.undecided is not None
    assert life.undecided.wait is Wait.ANSWERED_UNKNOWN
    (same,) = listed
    assert (same.id, same.checks_asked, same.wait, same.next_check_at_ms) == (
        life.id,
        life.undecided.checks_asked,
        life.undecided.wait,
        same.next_check_at_ms,
    )


def test_a_discarded_transaction_is_shown_with_its_dead_letter(stack: MemoryStack) -> None:
    """After fifteen counted UNKNOWN answers the daemon's DISCARD decides."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=600)
        life = operator.shown(tx.id)
    assert life.state == "DISCARDED"
    assert life.decided_by is not None
    assert (life.decided_by.source, life.decided_by.op) == ("CHECKER", "DISCARD")
    assert kinds(life).count("answer") == 15
    assert kinds(life)[-1] == "dead_letter"
    assert life.events[-1].reason == "CHECK_TIMES"


@pytest.mark.parametrize(
    ("kind", "source", "verdict"),
    [
        (OpKind.COMMIT, OpSource.CHECK, Verdict.DUPLICATE),
        (OpKind.ROLLBACK, OpSource.OPERATOR, Verdict.CONFLICT),
        (OpKind.UNKNOWN, OpSource.CHECK, Verdict.TOO_LATE),
        (OpKind.DISCARD, OpSource.CHECKER, Verdict.TOO_LATE),
        (OpKind.DISCARD, OpSource.OPERATOR, Verdict.CONFLICT),
        (OpKind.DISCARD, OpSource.PRODUCER, Verdict.INVALID),
    ],
)
def test_a_decision_that_lost_is_named(
    stack: MemoryStack, kind: OpKind, source: OpSource, verdict: Verdict
) -> None:
    """The first decision in op order wins; a later op has the verdict of the ledger."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        tx.commit()
        stack.read_committed(TOPIC, count=1)
        pair = operator.shown(tx.id).partition
        assert pair is not None
        operator.write_op(kind, tx.id, pair, source=source, actor="somebody")
        stack.advance(seconds=1)
        life = operator.shown(tx.id)
    assert life.state == "COMMITTED"
    assert verdicts(life) == [Verdict.WON, verdict]
    late = [each for each in life.events if each.verdict is verdict]
    assert (late[0].actor, bool(late[0].why)) == ("somebody", True)


def test_another_groups_decision_and_an_unproven_discard_are_invalid(stack: MemoryStack) -> None:
    """A wrong group (rule 6), and an age that the append time does not prove, make ops INVALID."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        pair = operator.shown(tx.id).partition
        assert pair is not None
        operator.write_op(OpKind.COMMIT, tx.id, pair, producer_group="strangers")
        aged = {"source": OpSource.CHECKER, "reason": "AGE", "age_ms": 3_600_000}
        operator.write_op(OpKind.DISCARD, tx.id, pair, **aged)
        stack.advance(seconds=1)
        life = operator.shown(tx.id)
    assert life.state == "PREPARED"
    assert verdicts(life) == [Verdict.INVALID, Verdict.INVALID]


def test_an_incomplete_commit_is_committed_and_dead(stack: MemoryStack) -> None:
    """With a missing message, the state is COMMITTED and the last event a dead letter."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        pair = operator.shown(tx.id).partition
        assert pair is not None
        operator.write_op(OpKind.COMMIT, tx.id, pair, message_count=2, source=OpSource.OPERATOR)
        stack.advance(seconds=1)
        life = operator.shown(tx.id)
    assert life.state == "COMMITTED"
    assert (life.events[-1].kind, life.events[-1].reason) == (Kind.DEAD_LETTER, "INCOMPLETE")


def test_a_decision_that_is_not_applied_yet_is_shown(stack: MemoryStack) -> None:
    """Without a daemon the state is COMMITTED, with a note that nothing is delivered yet."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=1)
        stack.daemon.kill()
        tx.commit(wait=True)
        stack.advance(seconds=60)
        life = operator.shown(tx.id)
    assert (life.state, life.is_applied, kinds(life)) == ("COMMITTED", False, ["half", "decision"])
    assert "not delivered yet" in life.notes[0]
    assert life.delivery_wait is DeliveryWait.NO_DAEMON
    text = " ".join(explain(life))
    assert "No worker of the daemon runs" in text
    assert "halfbridge checker run" in text


def test_a_decision_that_waits_for_its_half_offset_is_shown(stack: MemoryStack) -> None:
    """A COMMIT whose half offset is beyond the end of the partition is shown as DECISION_WAITS."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=1)
        pair = operator.shown(tx.id).partition or 0
        stack.daemon.kill()
        operator.write_op(OpKind.COMMIT, tx.id, pair, half_offset=1_000)
        life = operator.shown(tx.id)  # the group does not know yet that the worker is dead
    assert life.delivery_wait is DeliveryWait.DECISION_WAITS
    assert "(DECISION_WAITS)" in " ".join(explain(life))


def test_a_decision_behind_others_is_shown(stack: MemoryStack) -> None:
    """A decision behind ops that are not applied yet refers to /healthz of the workers."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=1)
        stack.daemon.kill()
        tx.commit(wait=True)
        life = operator.shown(tx.id)  # the group does not know yet that the worker is dead
    assert life.delivery_wait is DeliveryWait.OPS_BEFORE
    assert "/healthz of the workers" in " ".join(explain(life))


def test_a_stopped_pair_is_named_and_nothing_is_called_expired(stack: MemoryStack) -> None:
    """A pair whose committed offsets the log contradicts is shown as stopped."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        stack.advance(seconds=1)
        pair = operator.shown(tx.id).partition or 0
        stack.daemon.kill()
        names = operator.names
        operator.write_op(OpKind.ROLLBACK, "another", pair)
        tx.commit(wait=True)
        stack.machine.broker.delete_records((names.op, pair), 1)
        life = operator.shown(tx.id)  # the group does not know yet that the worker is dead
    assert life.delivery_wait is DeliveryWait.STOPPED
    assert "Its pair is stopped" in " ".join(explain(life))


def test_a_transaction_that_settled_late_is_found(stack: MemoryStack) -> None:
    """A decision and delivery an hour after the half message are found."""
    answers = [Resolution.COMMIT]

    def slow(_: MessageView) -> Resolution:
        if stack.machine.broker.now_ms - began_ms < 3_600_000:
            raise RuntimeError("later")
        return answers[0]

    operator = Operator(stack)
    with stack.producer(GROUP, checker=slow) as producer:
        began_ms = stack.machine.broker.now_ms
        tx = sent(producer, b"one")
        stack.advance(seconds=5_000)
        life = operator.shown(tx.id)
        until = operator.shown(tx.id, until_ms=began_ms + 1_000)
    assert (life.state, kinds(life)[-1]) == ("COMMITTED", "delivery")
    assert life.decided_by is not None
    assert life.decided_by.source == "CHECK"
    assert until.state == "PREPARED"


def test_an_id_of_nobody_is_not_found(stack: MemoryStack) -> None:
    """An unknown id gives NOT_FOUND; an id that contains no time needs --from."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        wrong = tx.id[:-1] + ("0" if tx.id[-1] != "0" else "1")
        assert operator.shown(wrong).state == "NOT_FOUND"
    with pytest.raises(AdminRequestError, match="--from") as refused:
        operator.shown("no id")
    assert refused.value.transaction_id == "no id"
    assert operator.shown("no id", from_ms=0).state == "NOT_FOUND"


def test_payloads_are_shown_on_demand_only(stack: MemoryStack) -> None:
    """Payloads of halves and delivered records are shown only with `with_payload`."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"secret")
        tx.commit()
        stack.read_committed(TOPIC, count=1)
        plain, whole = operator.shown(tx.id), operator.shown(tx.id, with_payload=True)
    assert all(each.payload is None for each in plain.events)
    bodies = [each.payload.value for each in whole.events if each.payload is not None]
    assert bodies == [b"secret", b"secret"]


def test_a_strangers_half_in_another_pair_does_not_hide_it(stack: MemoryStack) -> None:
    """A transaction belongs to the pair with the record that was appended first."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        pair = operator.shown(tx.id).partition
        assert pair is not None
        stack.advance(seconds=1)
        operator.write_half(tx.id, 1 - pair, producer_group="strangers")
        tx.commit()
        stack.read_committed(TOPIC, count=1)
        life = operator.shown(tx.id)
    assert (life.partition, life.producer_group, life.state) == (pair, GROUP, "COMMITTED")


def test_a_life_that_an_operator_began_hours_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark of the dead letter gives the time; the state is that of the last life.

    The first read of the pair ends after the first life, as if thousands of records were between
    the two lives.
    """
    whole, calls = RecordFinder.pieces, count()

    def cut(self: RecordFinder, half: Span, op: Span, *rest: Any) -> FoundRecords:
        if not next(calls):
            half, op = half._replace(end=half.start + 1), op._replace(end=op.start + 1)
        return whole(self, half, op, *rest)

    with MemoryStack(partitions=1) as stack:
        stack.create_topic(dead_letters.TOPIC)
        scene, operator = dead_letters.Scene(stack), Operator(stack)
        scene.undeliverable(1)
        scene.settle()
        before = operator.shown(dead_letters.txn(1), from_ms=0)
        monkeypatch.setattr(RecordFinder, "pieces", cut)
        stack.advance(seconds=7_200)
        stack.create_topic("absent")
        scene.redo(Remedy.REDELIVER, 1)
        scene.settle()
        life = operator.shown(dead_letters.txn(1), from_ms=0)
    assert (before.state, before.resume_count, kinds(before)[-1]) == ("COMMITTED", 0, "dead_letter")
    assert (life.state, life.resume_count, life.is_applied) == ("COMMITTED", 1, True)
    assert kinds(life) == ["half", "decision", "dead_letter", "half", "decision", "delivery"]
    assert life.decided_by is not None
    assert life.decided_by.source == "OPERATOR"
    assert life.notes == ()

"""An operator's decisions with a running daemon: whole installations in memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.bridge import Message, MessageView, Resolution, Transaction
from halfbridge.checker.admin.appending import Appender, appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.decisions import (
    Candidates,
    Decided,
    Decider,
    DecisionRequest,
    FencePort,
    First,
    before_text,
    decision_text,
    effect_text,
    find_candidate,
    find_candidates,
    first_text,
    refusal_of,
)
from halfbridge.checker.admin.operator_log import ActionFilter, OperatorLog, read
from halfbridge.checker.admin.transactions.life import Event, Kind, Life
from halfbridge.checker.admin.transactions.look_up import Wanted
from halfbridge.checker.admin.transactions.undecided import Filter
from halfbridge.checker.admin.transactions.waits import Undecided, Wait
from halfbridge.checker.errors import AdminRequestError, AdminSetupError, InDoubtError
from halfbridge.serde.avro import OP
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, ActionOutcome, DeadReason, OpKind, OpSource
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.kit.records import AN_OP
from tests.kit.undecided import AN_UNDECIDED

COMMIT = DecisionRequest(kind=OpKind.COMMIT, reason="the row is there")
ROLLBACK = DecisionRequest(kind=OpKind.ROLLBACK, reason="there is no row")


def _unknown(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as made:
        made.create_topic("orders")
        yield made


@pytest.fixture
def producer(stack: MemoryStack) -> Iterator[MemoryProducer]:
    """A producer whose checker returns UNKNOWN."""
    with stack.producer("g", checker=_unknown) as made:
        yield made


def _cluster(stack: MemoryStack) -> Cluster:
    return Cluster("memory", ports=stack.machine.ports(stack.machine.process("operator")))


def _begun(producer: MemoryProducer, *values: bytes) -> Transaction:
    transaction = producer.begin()
    for value in values or (b"1",):
        transaction.send(Message("orders", key=b"k", value=value))
    return transaction


def _one(stack: MemoryStack, transaction: Transaction) -> Candidates:
    return find_candidate(_cluster(stack), stack.config.names, Wanted(id=transaction.id))


def _decide(
    stack: MemoryStack,
    considered: Candidates,
    requested: DecisionRequest,
    *,
    fence: FencePort | None = None,
    kind: type[Appender] = Appender,
) -> list[Decided]:
    cluster, names = _cluster(stack), stack.config.names
    with appending(cluster) as appender:
        log = OperatorLog(cluster, names, appender, who="ada@h")
        ops = kind(cluster, cluster.writer({"acks": "all"}))
        decider = Decider(cluster, names, log, ops, requested=requested, fence=fence)
        return decider.decide(considered.transactions, considered.ends)


def _actions(stack: MemoryStack) -> list[tuple[str, ActionOutcome, str]]:
    found = read(_cluster(stack), stack.config.names, ActionFilter(limit=99))
    return [(e.action.action, e.action.outcome, e.action.after) for e in found if e.action]


def _values(stack: MemoryStack, count: int = 0) -> list[bytes | None]:
    return [each.value for each in stack.read_committed("orders", count=count)]


def test_a_commit_delivers_and_says_that_it_won(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """All messages are delivered; the op has the operator's name, the audit topic both records."""
    transaction = _begun(producer, b"1", b"2")
    (decided,) = _decide(stack, _one(stack, transaction), COMMIT)

    assert decided.outcome is ActionOutcome.DONE
    assert decided.first is not None
    assert (decided.first.offset, decided.first.op.source) == (decided.offset, OpSource.OPERATOR)
    assert (decided.first.op.actor, decided.first.op.reason) == ("ada@h", "the row is there")
    assert _values(stack, 2) == [b"1", b"2"]
    reported = f"COMMIT by OPERATOR ada@h at op offset {decided.offset}: the row is there"
    assert _actions(stack) == [
        ("tx commit", ActionOutcome.INTENDED, "COMMITTED"),
        ("tx commit", ActionOutcome.DONE, reported),
    ]


def test_a_rollback_delivers_nothing(stack: MemoryStack, producer: MemoryProducer) -> None:
    """A rolled back message is neither delivered nor dead; the producer's COMMIT has no effect."""
    transaction = _begun(producer)
    (decided,) = _decide(stack, _one(stack, transaction), ROLLBACK)
    assert decided.outcome is ActionOutcome.DONE
    transaction.commit()
    stack.wait_until_decided()
    assert _values(stack) == []
    assert stack.dead_letters() == []


def test_a_decision_that_came_before_holds(stack: MemoryStack, producer: MemoryProducer) -> None:
    """If the producer commits before the operator's op, the op is OVERRULED by that COMMIT."""
    transaction = _begun(producer)
    considered = _one(stack, transaction)
    receipt = transaction.commit().result()
    (decided,) = _decide(stack, considered, ROLLBACK)

    assert decided.outcome is ActionOutcome.OVERRULED
    assert decided.first is not None
    assert (decided.first.offset, decided.first.op.source) == (receipt.op_offset, OpSource.PRODUCER)
    assert decided.offset is not None
    assert decided.offset > receipt.op_offset
    assert _values(stack, 1) == [b"1"]
    assert _actions(stack)[-1][1] is ActionOutcome.OVERRULED


def test_ops_without_an_effect_win_nothing(stack: MemoryStack, producer: MemoryProducer) -> None:
    """Ops of another group or life, and ops that do not decide, do not overrule the operator."""
    transaction = _begun(producer)
    considered = _one(stack, transaction)
    undecided = considered.transactions[0]
    op = AN_OP._replace(
        transaction_id=transaction.id, producer_group="g", half_offset=undecided.last_offset
    )
    place = (stack.config.names.op, undecided.partition)
    with appending(_cluster(stack)) as appender:
        for each in (
            op._replace(producer_group="other"),
            op._replace(resume_count=1),
            op._replace(kind=OpKind.UNKNOWN),
            op._replace(kind=OpKind.DISCARD),  # source PRODUCER, which may not write it
        ):
            appender.append(place, OP.encode(each), transaction.id.encode())
        appender.append(place, b"nonsense", b"k")
    (decided,) = _decide(stack, considered, ROLLBACK)
    assert decided.outcome is ActionOutcome.DONE
    stack.advance(60)
    assert _values(stack) == []


def test_an_op_beyond_the_half_partition_wins(stack: MemoryStack, producer: MemoryProducer) -> None:
    """An earlier COMMIT with a half offset beyond the partition's end overrules the operator."""
    transaction = _begun(producer)
    considered = _one(stack, transaction)
    op = AN_OP._replace(transaction_id=transaction.id, producer_group="g", half_offset=1_000_000)
    with appending(_cluster(stack)) as appender:
        place = (stack.config.names.op, considered.transactions[0].partition)
        appender.append(place, OP.encode(op), transaction.id.encode())
    (decided,) = _decide(stack, considered, ROLLBACK)
    assert decided.outcome is ActionOutcome.OVERRULED
    assert _values(stack, 1) == [b"1"]


def test_what_is_decided_is_refused(stack: MemoryStack, producer: MemoryProducer) -> None:
    """A decided transaction is rejected with actor and reason, an unknown id as not found."""
    transaction = _begun(producer)
    _decide(stack, _one(stack, transaction), COMMIT)
    wanted = r"is COMMITTED already: COMMIT by OPERATOR ada@h at op offset \d+ \(the row is there\)"
    with pytest.raises(AdminRequestError, match=wanted) as refused:
        _one(stack, transaction)
    assert refused.value.transaction_id == transaction.id
    with pytest.raises(AdminRequestError, match=r"no transaction .* was found"):
        find_candidate(_cluster(stack), stack.config.names, Wanted(id=producer.begin().id))


def test_what_is_younger_than_its_first_check_is_refused(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """A transaction younger than its first check needs --force."""
    transaction = _begun(producer)
    (young,) = _one(stack, transaction).transactions
    assert "give --force" in refusal_of(young, ROLLBACK, force=False)
    assert refusal_of(young, ROLLBACK, force=True) == ""
    stack.advance(10)
    (older,) = _one(stack, transaction).transactions
    assert refusal_of(older, ROLLBACK, force=False) == ""


def test_a_commit_of_too_many_messages_makes_dead_letters(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """A COMMIT of too many messages needs --force; with it they become INCOMPLETE dead letters."""
    transaction = _begun(producer)
    stack.advance(10)
    three = DecisionRequest(kind=OpKind.COMMIT, reason="r", message_count=3)
    considered = _one(stack, transaction)
    assert "of 3 messages 1 are there" in refusal_of(considered.transactions[0], three, force=False)
    _decide(stack, considered, three)
    stack.wait_until_decided()
    assert [each.letter.reason for each in stack.dead_letters()] == [DeadReason.INCOMPLETE]


def test_many_are_decided_at_once(stack: MemoryStack, producer: MemoryProducer) -> None:
    """The oldest of all pairs are decided; one that its producer decides first is OVERRULED."""
    transactions = [producer.begin() for _ in range(9)]
    for number, transaction in enumerate(transactions):
        transaction.send(Message("orders", value=b"%d" % number))
        stack.advance(0.01)
    stack.advance(10)
    wanted = Filter(group="g", older_than_ms=5_000, limit=8)
    considered = find_candidates(_cluster(stack), stack.config.names, wanted)
    assert (len(considered.transactions), considered.matching) == (8, 9)
    assert len({each.partition for each in considered.transactions}) == 2
    transactions[3].commit()
    outcomes = {each.undecided.id: each.outcome for each in _decide(stack, considered, ROLLBACK)}
    assert [outcomes.get(each.id) for each in transactions] == [
        *([ActionOutcome.DONE] * 3),
        ActionOutcome.OVERRULED,
        *([ActionOutcome.DONE] * 4),
        None,
    ]
    assert _values(stack, 1) == [b"3"]


class KilledError(Exception):
    """The command crashes here."""


class _Dies(Appender):
    """Crashes before the op is stored."""

    def append(self, *_: Any) -> tuple[int, int]:
        raise KilledError


class _DiesAfter(Appender):
    """Crashes after the op is stored."""

    def append(self, *arguments: Any) -> tuple[int, int]:
        super().append(*arguments)
        raise KilledError


class _Silent(Appender):
    """Stores the op and loses the acknowledgement."""

    def append(self, *arguments: Any) -> tuple[int, int]:
        super().append(*arguments)
        raise InDoubtError("lost")


class _Lost(Appender):
    """Stores nothing and raises InDoubtError."""

    def append(self, *_: Any) -> tuple[int, int]:
        raise InDoubtError("lost")


def test_killed_between_the_audit_record_and_the_op(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """Only the intention is stored; the repeated command decides."""
    transaction = _begun(producer)
    with pytest.raises(KilledError):
        _decide(stack, _one(stack, transaction), COMMIT, kind=_Dies)
    (again,) = _decide(stack, _one(stack, transaction), COMMIT)
    assert again.outcome is ActionOutcome.DONE
    assert _values(stack, 1) == [b"1"]
    assert [outcome for _, outcome, _ in _actions(stack)] == [
        ActionOutcome.INTENDED,
        ActionOutcome.INTENDED,
        ActionOutcome.DONE,
    ]


def test_killed_between_the_op_and_the_read_back(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """The op is stored; the repeated command is rejected, and the message is delivered once."""
    transaction = _begun(producer)
    with pytest.raises(KilledError):
        _decide(stack, _one(stack, transaction), COMMIT, kind=_DiesAfter)
    with pytest.raises(AdminRequestError, match="is COMMITTED already: COMMIT by OPERATOR ada@h"):
        _one(stack, transaction)
    stack.wait_until_decided()
    assert _values(stack, 1) == [b"1"]


def test_killed_and_repeated_without_a_search(stack: MemoryStack, producer: MemoryProducer) -> None:
    """Of two operators' ops the second is OVERRULED, and the message is delivered once."""
    transaction = _begun(producer)
    considered = _one(stack, transaction)
    (first,) = _decide(stack, considered, COMMIT)
    (second,) = _decide(stack, considered, COMMIT)
    assert (first.outcome, second.outcome) == (ActionOutcome.DONE, ActionOutcome.OVERRULED)
    assert second.first == first.first
    stack.advance(10)
    assert _values(stack, 1) == [b"1"]


@pytest.mark.parametrize(
    ("kind", "wanted"), [(_Silent, ActionOutcome.DONE), (_Lost, ActionOutcome.IN_DOUBT)]
)
def test_without_an_acknowledgement_the_log_is_asked(
    stack: MemoryStack, producer: MemoryProducer, kind: type[Appender], wanted: ActionOutcome
) -> None:
    """A stored op gives DONE; an op that is not found gives IN_DOUBT."""
    transaction = _begun(producer)
    (decided,) = _decide(stack, _one(stack, transaction), COMMIT, kind=kind)
    assert decided.outcome is wanted
    assert _actions(stack)[-1][1] is wanted
    assert len(_values(stack, int(wanted is ActionOutcome.DONE))) == int(
        wanted is ActionOutcome.DONE
    )


def test_without_an_audit_topic_nothing_is_decided(
    stack: MemoryStack, producer: MemoryProducer
) -> None:
    """Without an audit topic, the command fails and the transaction stays undecided."""
    transaction = _begun(producer)
    considered = _one(stack, transaction)
    stack.machine.broker.delete_topic(stack.config.names.audit)
    with pytest.raises(AdminSetupError, match="run: halfbridge topics create"):
        _decide(stack, considered, COMMIT)
    assert stack.undecided() == [transaction.id]


# --- texts about an operator's request, and its refusals -----------------------------------

A_ROLLBACK = DecisionRequest(kind=OpKind.ROLLBACK, reason="r")
FOUND = AN_UNDECIDED._replace(
    id="t1",
    producer_group="g",
    age_ms=12_000,
    checks_asked=1,
    messages=2,
    bytes=10,
    offset=7,
    last_offset=8,
    wait=Wait.ASKED,
    why="check 1 was asked",
)


def _commit(count: int) -> DecisionRequest:
    return DecisionRequest(kind=OpKind.COMMIT, reason="r", message_count=count)


def _found(**changes: Any) -> Undecided:
    return FOUND._replace(**changes)


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        (A_ROLLBACK, "ROLLBACK delivers nothing of its 2 messages"),
        (_commit(2), "COMMIT delivers the existing 2 messages"),
        (
            _commit(COUNT_UNKNOWN),
            "COMMIT delivers the existing 2 messages, whether these are all or not",
        ),
        (_commit(1), "COMMIT delivers 1 message; the others become 1 dead letter (EXTRA)"),
        (
            _commit(3),
            "COMMIT of 3 messages: the existing ones, 2, become dead letters (INCOMPLETE)",
        ),
    ],
)
def test_a_dry_run_says_what_would_happen(requested: DecisionRequest, wanted: str) -> None:
    """The effect depends on the stored messages and the message count of the request."""
    assert effect_text(FOUND, requested) == wanted


def test_refusals() -> None:
    """Force overrides every refusal except an op that is already appended."""
    waits = _found(wait=Wait.DECISION_WAITS, why="a COMMIT is appended")
    young = _found(wait=Wait.NOT_DUE, why="its producer may be at work")
    assert refusal_of(FOUND, A_ROLLBACK, force=False) == ""
    assert refusal_of(FOUND, _commit(2), force=False) == ""
    for force in (True, False):
        assert "decided without you" in refusal_of(waits, A_ROLLBACK, force=force)
    assert "--force" in refusal_of(young, A_ROLLBACK, force=False)
    assert "INCOMPLETE" in refusal_of(FOUND, _commit(3), force=False)
    for each, requested in ((young, A_ROLLBACK), (FOUND, _commit(3))):
        assert refusal_of(each, requested, force=True) == ""


def test_what_the_audit_topic_gets() -> None:
    """Before is state, age, group and pair; after is the first decision and its actor."""
    assert before_text(FOUND) == "PREPARED, 12s old, 2 messages of group g, pair 3, ASKED"
    assert "of unknown age" in before_text(_found(age_ms=None))
    first = First(9, 0, State.COMMITTED, AN_OP)
    assert first_text(first) == "COMMIT by PRODUCER someone at op offset 9"
    assert first_text(first._replace(op=AN_OP._replace(reason="why"))).endswith("9: why")


def test_who_decided_is_named() -> None:
    """The text names who decided, if known."""
    winner = Event(
        kind=Kind.DECISION,
        at_ms=1,
        topic="op",
        partition=3,
        offset=9,
        op="ROLLBACK",
        source="CHECK",
        actor="pod-7",
        reason="no row",
    )
    life = Life(id="t1", state="ROLLED_BACK", decided_by=winner)
    wanted = "t1 is ROLLED_BACK already: ROLLBACK by CHECK pod-7 at op offset 9 (no row)"
    assert decision_text(life) == wanted
    assert decision_text(Life(id="t1", state="DISCARDED")) == "t1 is DISCARDED already"

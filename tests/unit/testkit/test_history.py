"""The judge finds each planted fault under its right name, and nothing in a clean history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbridge.testkit.history import (
    Anomaly,
    Claim,
    ClientTransaction,
    Finding,
    Outcome,
    ReadOp,
    ReadRecord,
    SentMessage,
    Verdict,
    digest_of,
)
from halfbridge.testkit.judge import judge
from serde import headers as header_names
from serde.avro import DEAD_LETTER, HALF_METADATA
from serde.records import DeadLetter, DeadReason, HalfMetadata, Op, OpKind, OpSource

GROUP = "orders-service"
DEAD = "TRANS_CHECK_MAX_TIME_TOPIC"
USER_HEADERS = (("trace", b"\x00\x01"), ("empty", b""), ("null", None))

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class History:
    """A history under construction; `end` applies decisions as the daemon would."""

    clients: list[ClientTransaction] = field(default_factory=list)
    ops: list[ReadOp] = field(default_factory=list)
    real: list[ReadRecord] = field(default_factory=list)
    dead: list[ReadRecord] = field(default_factory=list)

    def add(self, end: str, *, key: bytes = b"k", messages: int = 1, told: bool = True) -> str:
        """Add one transaction that ends in COMMIT, ROLLBACK or DISCARD; return its id."""
        tid = f"{len(self.clients):032x}"
        sent = tuple(
            SentMessage(
                index=index,
                topic=f"orders-{index % 2}",
                key=key,
                digest=digest_of(value_of(tid, index)),
                headers=USER_HEADERS,
            )
            for index in range(messages)
        )
        kind = OpKind(end)
        at = self.log(tid, kind, messages)
        claims: tuple[Claim, ...] = (
            Claim(
                kind=kind,
                outcome=Outcome.OK if told else Outcome.UNKNOWN,
                position=at if told else None,
            ),
        )
        if kind is OpKind.DISCARD:
            claims = ()
        self.clients.append(
            ClientTransaction(
                transaction_id=tid, producer_group=GROUP, messages=sent, claims=claims
            )
        )
        for message in sent:
            if kind is OpKind.COMMIT:
                self.deliver(tid, message)
            elif kind is OpKind.DISCARD:
                self.bury(tid, message)
        return tid

    def log(self, tid: str, kind: OpKind, messages: int) -> tuple[int, int]:
        """Append one op and return where it stands."""
        source = OpSource.CHECKER if kind is OpKind.DISCARD else OpSource.PRODUCER
        op = Op(tid, 0, 0, 0, GROUP, kind, messages, 0, source, "", "")
        partition = int(tid, 16) % 2
        self.ops.append(ReadOp(partition=partition, offset=len(self.ops), op=op))
        return partition, len(self.ops) - 1

    def deliver(self, tid: str, message: SentMessage) -> None:
        """Append `message` to its real topic."""
        headers = header_names.real_headers(list(message.headers), tid, 7)
        self.real.append(
            ReadRecord(
                topic=message.topic,
                partition=0,
                offset=len(self.real),
                key=message.key,
                value=value_of(tid, message.index),
                headers=tuple(headers),
            )
        )

    def bury(
        self, tid: str, message: SentMessage, reason: DeadReason = DeadReason.CHECK_TIMES
    ) -> None:
        """Append `message` to the dead-letter topic."""
        half = HalfMetadata(tid, 7, 0, message.index, GROUP, message.topic, -1, 0, -1, -1, -1)
        letter = DeadLetter(reason, "", 15, 0, 0, "half", 0, 0)
        self.dead.append(
            ReadRecord(
                topic=DEAD,
                partition=0,
                offset=len(self.dead),
                key=message.key,
                value=value_of(tid, message.index),
                headers=(
                    *message.headers,
                    (header_names.HALF, HALF_METADATA.encode(half)),
                    (header_names.DEAD, DEAD_LETTER.encode(letter)),
                ),
            )
        )

    def client(self, tid: str) -> ClientTransaction:
        """Return what the client knows of `tid`."""
        return self.clients[int(tid, 16)]

    def records_of(self, tid: str) -> list[ReadRecord]:
        """Return what was delivered of `tid`."""
        return [r for r in self.real if (header_names.TRANSACTION_ID, tid.encode()) in r.headers]

    def swap(self, one: ReadRecord, other: ReadRecord) -> None:
        """Let two records change places."""
        where = (self.real.index(one), self.real.index(other))
        self.real[where[0]] = replace(other, offset=one.offset)
        self.real[where[1]] = replace(one, offset=other.offset)

    def verdict(self, **options: frozenset[DeadReason]) -> Verdict:
        """Return the judge's verdict."""
        return judge(self.clients, real=self.real, dead=self.dead, ops=self.ops, **options)

    def found(self) -> list[Anomaly]:
        """Return the names of what the judge finds, by the op log."""
        return [finding.anomaly for finding in self.verdict().findings]


def value_of(tid: str, index: int) -> bytes:
    """Return the unique value of one message."""
    return f"{tid}/{index}".encode()


@st.composite
def clean_histories(draw: st.DrawFn) -> History:
    """Build any history in which the daemon did right; the first four are always there."""
    history = History()
    history.add("COMMIT", key=b"a")
    history.add("ROLLBACK", key=b"a")
    history.add("COMMIT", key=b"b", messages=3)
    history.add("DISCARD", key=b"c", messages=2)
    ends = st.tuples(
        st.sampled_from(["COMMIT", "ROLLBACK", "DISCARD"]),
        st.sampled_from([b"a", b"b"]),
        st.integers(1, 4),
        st.booleans(),
    )
    for end, key, messages, told in draw(st.lists(ends, max_size=8)):
        history.add(end, key=key, messages=messages, told=told)
    history.add("COMMIT", key=b"a")
    return history


def drop_whole(history: History) -> Anomaly:
    """A committed message never arrives."""
    history.real.remove(history.records_of(history.clients[0].transaction_id)[0])
    return Anomaly.LOST


def drop_part(history: History) -> Anomaly:
    """One of three committed messages never arrives."""
    history.real.remove(history.records_of(history.clients[2].transaction_id)[1])
    return Anomaly.TORN


def drop_dead_part(history: History) -> Anomaly:
    """One of two discarded messages is not in the dead-letter topic."""
    history.dead.pop(0)
    return Anomaly.TORN


def drop_dead_whole(history: History) -> Anomaly:
    """A discarded transaction is nowhere."""
    history.dead.clear()
    return Anomaly.LOST


def repeat(history: History) -> Anomaly:
    """A committed message arrives once more."""
    tx = history.clients[0]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.DUPLICATED


def deliver_the_dead(history: History) -> Anomaly:
    """A dead-lettered message is delivered although it was discarded."""
    tx = history.clients[3]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.PHANTOM


def deliver_rolled_back(history: History) -> Anomaly:
    """A rolled-back message arrives."""
    tx = history.clients[1]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.PHANTOM


def deliver_stranger(history: History) -> Anomaly:
    """A message arrives that nobody sent."""
    message = replace(history.clients[0].messages[0], digest="")
    history.deliver("f" * 32, message)
    return Anomaly.PHANTOM


def swap_own(history: History) -> Anomaly:
    """Two messages of one transaction to one real partition change places."""
    records = history.records_of(history.clients[2].transaction_id)
    history.swap(records[0], records[2])
    return Anomaly.REORDERED


def spoil_value(history: History) -> Anomaly:
    """A value arrives with other bytes."""
    history.real[0] = replace(history.real[0], value=b"?")
    return Anomaly.CORRUPTED


def spoil_key(history: History) -> Anomaly:
    """A key arrives as null."""
    history.real[0] = replace(history.real[0], key=None)
    return Anomaly.CORRUPTED


def spoil_header(history: History) -> Anomaly:
    """An empty header arrives as null."""
    headers = tuple((n, v or None) for n, v in history.real[0].headers)
    history.real[0] = replace(history.real[0], headers=headers)
    return Anomaly.CORRUPTED


def spoil_transaction_id(history: History) -> Anomaly:
    """A record arrives under the id of no transaction."""
    headers = tuple(
        (n, b"x" if n == header_names.TRANSACTION_ID else v) for n, v in history.real[0].headers
    )
    history.real[0] = replace(history.real[0], headers=headers)
    return Anomaly.CORRUPTED


def spoil_dead(history: History) -> Anomaly:
    """A dead letter's value has other bytes."""
    history.dead[0] = replace(history.dead[0], value=None)
    return Anomaly.CORRUPTED


def forget_decision(history: History) -> Anomaly:
    """Nothing ever decides a transaction."""
    tx = history.clients[1]
    history.clients[1] = replace(tx, claims=())
    history.ops = [op for op in history.ops if op.op.transaction_id != tx.transaction_id]
    return Anomaly.UNDECIDED


def lose_decision(history: History) -> Anomaly:
    """An acknowledged decision is not in the op log."""
    tx = history.clients[1]
    history.ops = [op for op in history.ops if op.op.transaction_id != tx.transaction_id]
    return Anomaly.LOST


def invent_decision(history: History) -> Anomaly:
    """The op log holds a COMMIT that no client made and no checker answered."""
    tid = "1" + history.clients[0].transaction_id[1:]
    client = replace(history.clients[1], transaction_id=tid, claims=())
    history.clients.append(client)
    history.log(tid, OpKind.ROLLBACK, 1)
    return Anomaly.PHANTOM


FAULTS = (
    drop_whole,
    drop_part,
    drop_dead_part,
    drop_dead_whole,
    repeat,
    deliver_the_dead,
    deliver_rolled_back,
    deliver_stranger,
    swap_own,
    spoil_value,
    spoil_key,
    spoil_header,
    spoil_transaction_id,
    spoil_dead,
    forget_decision,
    lose_decision,
    invent_decision,
)


@given(clean_histories())
def test_clean(history: History) -> None:
    """Nothing is found in a clean history, with the op log and without it."""
    by_claims = judge(history.clients, real=history.real, dead=history.dead)

    assert history.verdict().findings == ()
    assert by_claims.findings == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@given(history=clean_histories())
def test_planted_fault(fault: Callable[[History], Anomaly], history: History) -> None:
    """One planted fault is found, under its own name and no other."""
    expected = fault(history)
    found = set(history.found())

    if fault is deliver_the_dead:
        found.discard(Anomaly.DUPLICATED)  # it is both, and both are said
    assert found == {expected}


def test_key_order() -> None:
    """Two transactions with one key and one op partition must come in op order."""
    history = History()
    first = history.add("COMMIT", key=b"a")
    history.add("COMMIT", key=b"a")  # the other op partition
    third = history.add("COMMIT", key=b"a")
    history.swap(history.records_of(first)[0], history.records_of(third)[0])

    assert history.found() == [Anomaly.REORDERED]


def test_key_order_across_op_partitions_is_free() -> None:
    """Nothing is promised between transactions of different op partitions."""
    history = History()
    first = history.add("COMMIT", key=b"a")
    second = history.add("COMMIT", key=b"a")
    history.swap(history.records_of(first)[0], history.records_of(second)[0])

    assert history.found() == []


def test_first_decision_wins() -> None:
    """A COMMIT behind a ROLLBACK delivers nothing, though the client was told that it stands."""
    history = History()
    tid = history.add("ROLLBACK")
    at = history.log(tid, OpKind.COMMIT, 1)
    late = Claim(kind=OpKind.COMMIT, outcome=Outcome.OK, position=at)
    history.clients[0] = replace(history.clients[0], claims=(*history.clients[0].claims, late))

    assert history.found() == []
    history.deliver(tid, history.clients[0].messages[0])
    assert history.found() == [Anomaly.PHANTOM]


def test_strangers_op_has_no_effect() -> None:
    """A decision under another producer group decides nothing."""
    history = History()
    tid = history.add("COMMIT")
    history.ops = [
        replace(one, op=one.op._replace(producer_group="thieves")) for one in history.ops
    ]

    assert history.found() == [Anomaly.LOST, Anomaly.PHANTOM]
    assert history.verdict().findings[0] == Finding(
        Anomaly.LOST, tid, "COMMIT acknowledged at (0, 0), not in the op log"
    )


def test_in_doubt_commit_may_end_either_way() -> None:
    """A commit without an answer may be delivered or lost to a rollback; the op log says which."""
    history = History()
    tid = history.add("ROLLBACK", told=False)
    doubt = Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN)
    history.clients[0] = replace(history.clients[0], claims=(*history.clients[0].claims, doubt))
    assert history.found() == []

    history.deliver(tid, history.clients[0].messages[0])
    assert judge(history.clients, real=history.real).ok
    assert history.found() == [Anomaly.PHANTOM]


def test_early_discard_does_not_bind() -> None:
    """After a daemon's DISCARD (too early, perhaps) the next decision may rule, and only whole."""
    history = History()
    tid = history.add("DISCARD", messages=2)
    commit = Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN)
    history.log(tid, OpKind.COMMIT, 2)
    history.clients[0] = replace(history.clients[0], claims=(commit,))
    assert history.found() == []

    history.dead.clear()
    for message in history.clients[0].messages:
        history.deliver(tid, message)
    assert history.found() == []

    history.real.pop()
    assert history.found() == [Anomaly.TORN]


def test_in_doubt_send_is_optional() -> None:
    """A message whose send was never acknowledged may be missing from a commit."""
    history = History()
    tid = history.add("COMMIT", messages=2)
    first, second = history.clients[0].messages
    doubtful = replace(second, outcome=Outcome.UNKNOWN)
    history.clients[0] = replace(history.clients[0], messages=(first, doubtful))
    assert history.found() == []

    history.real.remove(history.records_of(tid)[1])
    assert history.found() == []


def test_failed_send_must_not_arrive() -> None:
    """A message whose send failed for certain is a phantom."""
    history = History()
    history.add("COMMIT")
    failed = replace(history.clients[0].messages[0], outcome=Outcome.FAILED)
    history.clients[0] = replace(history.clients[0], messages=(failed,))

    assert history.found() == [Anomaly.PHANTOM]


def test_undeliverable_is_lost_unless_accepted() -> None:
    """A committed transaction in the dead-letter topic is lost, unless its reason is accepted."""
    history = History()
    tid = history.add("COMMIT")
    history.real.clear()
    history.bury(tid, history.clients[0].messages[0], DeadReason.UNDELIVERABLE)

    assert history.found() == [Anomaly.LOST]
    assert history.verdict(accepted_dead=frozenset((DeadReason.UNDELIVERABLE,))).ok


def test_extra_messages_may_be_dead_lettered() -> None:
    """A commit of n messages may leave a later, unacknowledged one in the dead-letter topic."""
    history = History()
    tid = history.add("COMMIT")
    extra = replace(
        history.clients[0].messages[0],
        index=1,
        digest=digest_of(value_of(tid, 1)),
        outcome=Outcome.UNKNOWN,
    )
    history.clients[0] = replace(history.clients[0], messages=(*history.clients[0].messages, extra))
    history.bury(tid, extra, DeadReason.LATE)

    assert history.found() == []


def test_readers_that_disagree() -> None:
    """One offset with two contents is corruption; the same content twice is one record."""
    history = History()
    history.add("COMMIT")
    history.real.append(history.real[0])
    assert history.found() == []

    history.real.append(replace(history.real[0], value=b"?"))
    assert history.found() == [Anomaly.CORRUPTED]


def test_foreign_dead_letters_are_no_anomaly() -> None:
    """Junk in the dead-letter topic belongs to no transaction."""
    history = History()
    history.dead.append(
        ReadRecord(topic=DEAD, partition=0, offset=0, key=None, value=b"junk", headers=())
    )

    assert history.found() == []


def test_verdict_counts_and_describes() -> None:
    """A verdict counts findings and what came out, and gives examples of each anomaly."""
    history = History()
    multi = history.add("COMMIT", messages=3)
    discarded = history.add("DISCARD", messages=2)
    clean = history.verdict()
    drop_whole(history)
    verdict = history.verdict()

    assert (clean.ok, clean.describe()) == (True, "nothing is wrong")
    assert (clean.delivered, clean.dead_lettered) == ({multi: 3}, {discarded: 2})
    assert verdict.counts[Anomaly.TORN] == 1
    assert verdict.describe().startswith(f"torn: 1\n  torn: {multi}: delivered without")

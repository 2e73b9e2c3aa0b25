"""Histories under construction, for the judge's own tests."""

from dataclasses import dataclass, field, replace
from typing import Any

from halfbridge.serde import headers as header_names
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.records import DeadLetter, DeadReason, OpKind, OpSource, new_half, new_op
from halfbridge.testkit.history import (
    Anomaly,
    Claim,
    ClientTransaction,
    Outcome,
    ReadOp,
    ReadRecord,
    SentMessage,
    Verdict,
    digest_of,
)
from halfbridge.testkit.judge import judge
from tests.kit.examples import st

GROUP = "orders-service"
DEAD = "TRANS_CHECK_MAX_TIME_TOPIC"
USER_HEADERS = (("trace", b"\x00\x01"), ("empty", b""), ("null", None))


@dataclass
class History:
    """A history under construction; `end` applies decisions as the daemon would."""

    clients: list[ClientTransaction] = field(default_factory=list)
    ops: list[ReadOp] = field(default_factory=list)
    real: list[ReadRecord] = field(default_factory=list)
    dead: list[ReadRecord] = field(default_factory=list)

    def add(self, end: str, *, key: bytes = b"k", messages: int = 1, reported: bool = True) -> str:
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
                outcome=Outcome.OK if reported else Outcome.UNKNOWN,
                position=at if reported else None,
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
                self.dead_letter(tid, message)
        return tid

    def log(self, tid: str, kind: OpKind, messages: int) -> tuple[int, int]:
        """Append one op and return its place."""
        source = OpSource.CHECKER if kind is OpKind.DISCARD else OpSource.PRODUCER
        op = new_op(
            transaction_id=tid,
            timestamp=0,
            half_offset=0,
            producer_group=GROUP,
            kind=kind,
            message_count=messages,
            source=source,
            actor="",
            # The daemon's, for age, as all discards here: one that may have come too early.
            age_ms=1 if kind is OpKind.DISCARD else 0,
        )
        partition = int(tid, 16) % 2
        self.ops.append(ReadOp(partition=partition, offset=len(self.ops), op=op))
        return partition, len(self.ops) - 1

    def deliver(self, tid: str, message: SentMessage) -> None:
        """Append `message` to its real topic."""
        headers = header_names.real_headers(list(message.headers), tid, 7, message.index)
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

    def dead_letter(
        self, tid: str, message: SentMessage, reason: DeadReason = DeadReason.CHECK_TIMES
    ) -> None:
        """Append `message` to the dead-letter topic."""
        half = new_half(
            transaction_id=tid,
            born_timestamp=7,
            message_index=message.index,
            producer_group=GROUP,
            real_topic=message.topic,
        )
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
        return self.clients[int(tid, 16)]

    def records_of(self, tid: str) -> list[ReadRecord]:
        return [r for r in self.real if (header_names.TRANSACTION_ID, tid.encode()) in r.headers]

    def swap(self, one: ReadRecord, other: ReadRecord) -> None:
        """Let two records change places."""
        where = (self.real.index(one), self.real.index(other))
        self.real[where[0]] = replace(other, offset=one.offset)
        self.real[where[1]] = replace(one, offset=other.offset)

    def verdict(self, **options: Any) -> Verdict:
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
    for end, key, messages, reported in draw(st.lists(ends, max_size=8)):
        history.add(end, key=key, messages=messages, reported=reported)
    history.add("COMMIT", key=b"a")
    return history

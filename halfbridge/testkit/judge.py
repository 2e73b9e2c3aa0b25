"""The judge: compares the clients' actions with the records that were read, offline.

Each transaction is ruled by the op log, or by the decisions acknowledged to clients. The first
decision in the op log takes effect (DESIGN.md, rule 2); halfbridge.serde.protocol defines which ops
decide. A decision acknowledged to a client must be in the op log, and a decision in the op log must
be one that some client or checker intended.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.serde import headers as header_names
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.protocol import claimed_age_ms, decision_of
from halfbridge.serde.records import COUNT_UNKNOWN, PARTITION_BY_KEY, DeadReason, OpKind, OpSource
from halfbridge.testkit.history import Anomaly, Finding, Outcome, Position, Verdict, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.testkit.history import (
        ClientTransaction,
        Headers,
        ReadOp,
        ReadRecord,
        SentMessage,
    )

_PER_MESSAGE = frozenset((DeadReason.EXTRA, DeadReason.LATE))
_DISCARDED = frozenset((DeadReason.CHECK_TIMES, DeadReason.AGE, DeadReason.OPERATOR))
_OURS = frozenset(
    (header_names.TRANSACTION_ID, header_names.BORN_TIMESTAMP, header_names.MESSAGE_INDEX)
)
_FIELDS = ("value", "key", "headers", "topic", "partition", "message index")


def judge(
    clients: Iterable[ClientTransaction],
    *,
    real: Iterable[ReadRecord],
    dead: Iterable[ReadRecord] = (),
    ops: Iterable[ReadOp] | None = None,
    accepted_dead: frozenset[DeadReason] = frozenset(),
    delivery: Delivery = Delivery.EXACTLY_ONCE,
) -> Verdict:
    """Return the verdict on a history.

    Args:
        clients: Every transaction that any client began.
        real: Every record of the real topics, from offset zero; the same position may come
            more than once (several readers).
        dead: Every record of the dead-letter topic.
        ops: Every readable op of the op topic; None where it could not be read, and then only
            the decisions acknowledged to clients are binding.
        accepted_dead: Reasons for which a committed transaction may be dead-lettered whole.
        delivery: The installation's mode. With at-least-once delivery a message may be repeated in
            its real topic; its first record must be in order.
    """
    known = {tx.transaction_id: tx for tx in clients}
    trial = _Trial(known, accepted_dead, may_repeat=delivery is Delivery.AT_LEAST_ONCE)
    for record in _positions(real, trial):
        trial.deliver(record)
    for record in _positions(dead, trial):
        trial.dead_letter(record)
    if ops is None:
        rulings = rule_by_claims(known)
    else:
        rulings, found = rule_by_op_log(known, ops)
        trial.findings += found
    for transaction_id, tx in known.items():
        trial.rule(tx, rulings[transaction_id])
    trial.check_order_within()
    trial.check_order_by_key(rulings)
    return Verdict(
        tuple(trial.findings),
        {tid: len(found) for tid, found in trial.landed.items()},
        {tid: len(found) for tid, found in trial.dead_letters.items()},
        trial.repeats,
    )


class _Trial:
    """Collects the delivered and dead-lettered records by transaction, then the findings."""

    def __init__(
        self,
        known: Mapping[str, ClientTransaction],
        accepted_dead: frozenset[DeadReason],
        *,
        may_repeat: bool,
    ) -> None:
        self._may_repeat = may_repeat
        self.repeats = 0
        # Messages without a key that were repeated in another partition: their order is unchecked.
        self._moved: set[tuple[str, int]] = set()
        self.findings: list[Finding] = []
        self.landed: dict[str, dict[int, ReadRecord]] = defaultdict(dict)
        self.dead_letters: dict[str, dict[int, DeadReason]] = defaultdict(dict)
        self._known = known
        self._accepted_dead = accepted_dead
        self._owners: dict[str, list[tuple[str, SentMessage]]] = defaultdict(list)
        for tid, tx in known.items():
            for message in tx.messages:
                self._owners[message.digest].append((tid, message))

    def find(self, anomaly: Anomaly, transaction_id: str, detail: str) -> None:
        self.findings.append(Finding(anomaly, transaction_id, detail))

    def deliver(self, record: ReadRecord) -> None:
        """Add one record of a real topic."""
        named = dict(record.headers).get(header_names.TRANSACTION_ID) or b""
        tid = named.decode("ascii", "replace")
        alike = self._owners.get(digest_of(record.value), [])
        if tid not in self._known:
            if not alike:
                return self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: sent by nobody")
            tid = alike[0][0]
            self.find(Anomaly.CORRUPTED, tid, f"{_at(record)}: its transaction id reads {named!r}")
        found = self.landed[tid]
        # A value is unique, so it identifies the message; a damaged one counts as the best fit.
        candidates = [message for owner, message in alike if owner == tid] or [
            message for message in self._known[tid].messages if message.topic == record.topic
        ]
        headers = tuple(header for header in record.headers if header[0] not in _OURS)
        message, flaw = _best(candidates, record, headers=headers, taken=found)
        if message is None:
            return self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: not of this transaction")
        if flaw:
            self.find(Anomaly.CORRUPTED, tid, f"{_at(record)}: {flaw} differs")
        if message.outcome is Outcome.FAILED:
            self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: its send had failed")
        if message.index in found and self._may_repeat:
            self.repeats += 1
            first = found[message.index]
            if (first.topic, first.partition) != (record.topic, record.partition):
                self._moved.add((tid, message.index))
            return None
        if message.index in found:
            where = _at(found[message.index])
            return self.find(Anomaly.DUPLICATED, tid, f"{_at(record)}: also at {where}")
        found[message.index] = record
        return None

    def dead_letter(self, record: ReadRecord) -> None:
        """Add one record of the dead-letter topic; an undecodable one is no anomaly."""
        named = dict(record.headers)
        try:
            half, _ = header_names.parse_half(list(record.headers))
            letter = DEAD_LETTER.decode(named.get(header_names.DEAD) or b"")
        except DecodeError:
            return None
        tid, index = half.transaction_id, half.message_index
        tx = self._known.get(tid)
        if tx is None:
            return self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: dead letter sent by nobody")
        message = next((one for one in tx.messages if one.index == index), None)
        if message is None:
            return self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: no message {index}")
        headers = tuple(
            header
            for header in header_names.user_headers(record.headers)
            if header[0] != header_names.DEAD
        )
        flaw = next((name for name in _misfits(message, record, headers)[:3] if name), "")
        if flaw:
            self.find(Anomaly.CORRUPTED, tid, f"{_at(record)}: {flaw} differs")
        if index in self.dead_letters[tid]:
            self.find(Anomaly.DUPLICATED, tid, f"{_at(record)}: message {index} is there already")
        self.dead_letters[tid][index] = letter.reason
        return None

    def rule(self, tx: ClientTransaction, ruling: Ruling) -> None:
        """Compare the records of `tx` with the decisions that may have ruled it."""
        tid = tx.transaction_id
        landed = self.landed.get(tid, {})
        dead_letters = self.dead_letters.get(tid, {})
        for index in landed.keys() & dead_letters.keys():
            self.find(Anomaly.DUPLICATED, tid, f"message {index} delivered and dead-lettered")
        reasons = {reason for reason in dead_letters.values() if reason not in _PER_MESSAGE}
        count = ruling.message_count
        required = {
            message.index
            for message in tx.messages
            if message.outcome is Outcome.OK and (count == COUNT_UNKNOWN or message.index < count)
        }
        if landed:
            self._rule_delivered(tid, ruling, missing=required - landed.keys())
        elif reasons:
            self._rule_dead(tid, ruling, reasons=reasons, missing=required - dead_letters.keys())
        elif not ruling.kinds:
            is_acknowledged = any(claim.outcome is Outcome.OK for claim in tx.claims)
            if required and not is_acknowledged:  # else the finding is a lost decision
                self.find(Anomaly.UNDECIDED, tid, "nothing decided it")
        elif OpKind.ROLLBACK not in ruling.kinds and not ruling.vague:
            for index in sorted(required):
                self.find(Anomaly.LOST, tid, f"message {index}: {ruling}, and it is nowhere")

    def _rule_delivered(self, tid: str, ruling: Ruling, *, missing: set[int]) -> None:
        if OpKind.COMMIT not in ruling.kinds:
            for index, record in self.landed[tid].items():
                self.find(Anomaly.PHANTOM, tid, f"{_at(record)}: message {index}, but {ruling}")
        elif missing:
            self.find(Anomaly.TORN, tid, f"delivered without messages {sorted(missing)}")

    def _rule_dead(
        self, tid: str, ruling: Ruling, *, reasons: set[DeadReason], missing: set[int]
    ) -> None:
        names = "/".join(sorted(reasons))
        discarded = OpKind.DISCARD in ruling.kinds and reasons <= _DISCARDED
        if missing:
            self.find(Anomaly.TORN, tid, f"dead-lettered ({names}) without {sorted(missing)}")
        elif not discarded and not reasons <= self._accepted_dead:
            wrong = Anomaly.LOST if OpKind.COMMIT in ruling.kinds else Anomaly.PHANTOM
            self.find(wrong, tid, f"dead-lettered ({names}), but {ruling}")

    def check_order_within(self) -> None:
        """Check that a transaction's messages are in the order sent, per real partition."""
        for tid, found in self.landed.items():
            highest: dict[tuple[str, int], int] = {}
            for index in sorted(found):
                if (tid, index) in self._moved:
                    continue
                record = found[index]
                place = (record.topic, record.partition)
                if record.offset < highest.get(place, -1):
                    self.find(Anomaly.REORDERED, tid, f"{_at(record)}: message {index} too early")
                highest[place] = max(record.offset, highest.get(place, -1))

    def check_order_by_key(self, rulings: Mapping[str, Ruling]) -> None:
        """Check that messages with one key are in the order of the decisions, per op partition."""
        flow: dict[tuple[str, int, bytes, int], list[tuple[int, int, str]]] = defaultdict(list)
        for tid, found in self.landed.items():
            position = rulings[tid].commit_at
            for record in found.values() if position is not None else ():
                if record.key is not None and position is not None:
                    lane = (record.topic, record.partition, record.key, position[0])
                    flow[lane].append((record.offset, position[1], tid))
        for (topic, partition, key, _), deliveries in flow.items():
            newest = -1
            for offset, op_offset, tid in sorted(deliveries):
                if op_offset < newest:
                    where = f"{topic}[{partition}]@{offset}"
                    why = f"key {key!r}, decided at {op_offset}, comes after {newest}"
                    self.find(Anomaly.REORDERED, tid, f"{where}: {why}")
                newest = max(newest, op_offset)


def _at(record: ReadRecord) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"


def _positions(records: Iterable[ReadRecord], trial: _Trial) -> list[ReadRecord]:
    """Return one record per position; different contents at one position are a finding."""
    seen: dict[tuple[str, int, int], ReadRecord] = {}
    for record in records:
        first = seen.setdefault((record.topic, record.partition, record.offset), record)
        if first != record:
            trial.find(Anomaly.CORRUPTED, "", f"{_at(record)}: read twice, with two contents")
    return [seen[position] for position in sorted(seen)]


def _misfits(message: SentMessage, record: ReadRecord, headers: Headers) -> tuple[str, ...]:
    """Return the fields that differ, in the order of _FIELDS; an empty name for each that fits."""
    same = (
        message.digest == digest_of(record.value),
        message.key == record.key,
        message.headers == headers,
        message.topic == record.topic,
        message.partition in (PARTITION_BY_KEY, record.partition),
        dict(record.headers).get(header_names.MESSAGE_INDEX) == _index_text(message),
    )
    return tuple("" if fits else name for name, fits in zip(_FIELDS, same, strict=True))


def _index_text(message: SentMessage) -> bytes | None:
    """Return the value of the daemon's index header; None: the first message has no header."""
    return b"%d" % message.index if message.index else None


def _best(
    candidates: list[SentMessage],
    record: ReadRecord,
    *,
    headers: Headers,
    taken: Mapping[int, ReadRecord],
) -> tuple[SentMessage | None, str]:
    """Return the candidate that fits `record` best, untaken ones first, and a misfit."""
    best: tuple[int, SentMessage | None, str] = (0, None, "")
    for message in candidates:
        misfits = [name for name in _misfits(message, record, headers) if name]
        score = 10 * (len(_FIELDS) - len(misfits)) + (message.index not in taken)
        if score > best[0]:
            best = (score, message, misfits[0] if misfits else "")
    return best[1], best[2]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decisions that may rule a transaction.

    Attributes:
        kinds: Their kinds; empty: undecided.
        commit_at: Position of the ruling COMMIT, if there is one and its position is certain.
        message_count: The number of messages in that COMMIT.
        vague: Whether it may also be undecided.
    """

    kinds: frozenset[OpKind] = frozenset()
    commit_at: Position | None = None
    message_count: int = COUNT_UNKNOWN
    vague: bool = False

    def __str__(self) -> str:
        return "/".join(sorted(self.kinds)) or "undecided"


def rule_by_op_log(
    known: Mapping[str, ClientTransaction], ops: Iterable[ReadOp]
) -> tuple[dict[str, Ruling], list[Finding]]:
    """Return the ruling of each known transaction, and the findings about the op log itself."""
    findings: list[Finding] = []
    decisions: dict[str, list[ReadOp]] = defaultdict(list)
    for read in sorted(ops, key=lambda read: (read.partition, read.offset)):
        tx = known.get(read.op.transaction_id)
        if tx is None or not _decides(tx, read):
            continue
        by_client = read.op.source in (OpSource.PRODUCER, OpSource.CHECK)
        if by_client and all(claim.kind is not read.op.kind for claim in tx.claims):
            detail = f"op[{read.partition}]@{read.offset}: nobody meant this {read.op.kind.value}"
            findings.append(Finding(Anomaly.PHANTOM, tx.transaction_id, detail))
        decisions[tx.transaction_id].append(read)
    for tid, tx in known.items():
        applied = {((read.partition, read.offset), read.op.kind) for read in decisions[tid]}
        for claim in tx.claims:
            if claim.outcome is Outcome.OK and (claim.position, claim.kind) not in applied:
                detail = f"{claim.kind.value} acknowledged at {claim.position}, not in the op log"
                findings.append(Finding(Anomaly.LOST, tid, detail))
    return {tid: _first(decisions[tid]) for tid in known}, findings


def rule_by_claims(known: Mapping[str, ClientTransaction]) -> dict[str, Ruling]:
    """Return the ruling of each known transaction by the decisions acknowledged to clients.

    Weaker than the op log: a decision in doubt, or a discard, may have come first.
    """
    rulings = {}
    for tid, tx in known.items():
        in_doubt = {claim.kind for claim in tx.claims if claim.outcome is Outcome.UNKNOWN}
        acknowledged = [
            claim for claim in tx.claims if claim.outcome is Outcome.OK and claim.position
        ]
        first = min(acknowledged, key=lambda claim: claim.position or (0, 0), default=None)
        may_rule = frozenset(in_doubt | {OpKind.DISCARD} | ({first.kind} if first else set()))
        certain = first is not None and first.kind is OpKind.COMMIT and not in_doubt
        rulings[tid] = Ruling(
            may_rule, first.position if first and certain else None, vague=first is None
        )
    return rulings


def _decides(tx: ClientTransaction, read: ReadOp) -> bool:
    return tx.producer_group == read.op.producer_group and decision_of(read.op) is not None


def _first(decisions: list[ReadOp]) -> Ruling:
    if not decisions:
        return Ruling()
    may_rule = decisions[:1]
    first = decisions[0].op
    if claimed_age_ms(first) > 0:
        # A discard for age that was appended too early has no effect; then the next decision rules.
        may_rule = decisions[:2]
    commit = next((read for read in may_rule if read.op.kind is OpKind.COMMIT), None)
    return Ruling(
        frozenset(read.op.kind for read in may_rule),
        (commit.partition, commit.offset) if commit else None,
        commit.op.message_count if commit else COUNT_UNKNOWN,
    )

"""`checker init --partition P`: compute new offsets for a partition that stopped.

A partition stops when its committed offsets cannot be trusted. Its past work is still visible:
each delivered record carries its transaction id, and each dead letter its half message. The worker
applies decisions in op order, so the applied decisions are a prefix of the op log, and O is the
end of that prefix. If they are no prefix (delivered records expired, an offset was set back by
hand), no offset is exact, and the operator chooses between duplicates and lost messages.
`new_offsets` is pure, and nothing is delivered here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING

from halfbridge.checker.admin.read import Key, first_decisions, readable_ops
from halfbridge.checker.admin.topics import common_partitions
from halfbridge.checker.admin.words import listed
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.errors import AdminRequestError, AdminSetupError
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, real_identity
from halfbridge.serde.progress import Progress
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, DeadDecision, DeadReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.signatures import Verifier
    from halfbridge.serde.topics import TopicNames

# Beyond every timestamp: nothing about such a topic is proof of "not delivered".
_ALL_MAY_BE_GONE = sys.maxsize
_LOG_START = -1  # no offset is negative: the choice "from where the log begins"
NAMED_MAX = 20  # transactions that one line names; --json has all


class Choice(Enum):
    """What to do when no offset is exact."""

    REFUSE = "refuse"
    ACCEPT_DUPLICATES = "accept duplicates"
    SKIP_UNDELIVERED = "skip undelivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """The operator's request; -1 as an offset means the log start."""

    partition: int
    half_start: int = _LOG_START
    op_start: int = _LOG_START
    choice: Choice = Choice.REFUSE
    dry_run: bool = False


def init_partition(cluster: Cluster, names: TopicNames, request: InitRequest) -> NewOffsets:
    """Compute the partition's new offsets, and commit them unless that is not allowed.

    Raises:
        AdminRequestError: no such partition, or no offset is exact and the operator did not choose;
            nothing is committed; the operator follows the text.
        AdminSetupError: a daemon is running; an operator stops it.
    """
    count = common_partitions(cluster, names)
    if not 0 <= request.partition < count:
        raise AdminRequestError(
            f"there is no partition {request.partition}: half and op have {count}"
        )
    if not request.dry_run:
        _refuse_while_running(cluster, names)
    found = find_offsets(cluster, names, request)
    if request.dry_run:
        return found
    if not found.exact and request.choice is Choice.REFUSE:
        raise AdminRequestError(explain_inexact(found))
    _refuse_while_running(cluster, names)
    progress = found.progress
    cluster.commit(
        names.daemon_group,
        {
            (names.half, request.partition): (progress.half, ""),
            (names.op, request.partition): (progress.op, progress.metadata()),
        },
    )
    return found


def find_offsets(cluster: Cluster, names: TopicNames, request: InitRequest) -> NewOffsets:
    """Read the partition and the deliveries from it; return the new offsets."""
    partition = request.partition
    half_low, half_end = cluster.watermarks(names.half, partition)
    op_low, op_end = cluster.watermarks(names.op, partition)
    half_start = half_low if request.half_start == _LOG_START else request.half_start
    op_start = op_low if request.op_start == _LOG_START else request.op_start
    verifier = cluster.signatures.verifier
    half_records = cluster.read(names.half, partition, start=half_start, end=half_end)
    op_records = cluster.read(names.op, partition, start=op_start, end=op_end)
    halves, ops = list(_halves(half_records, verifier)), list(readable_ops(op_records, verifier))
    return new_offsets(
        halves,
        ops,
        _evidence(cluster, names, halves),
        half_end=half_end,
        op_end=op_end,
        choice=request.choice,
    )


def explain_inexact(found: NewOffsets) -> str:
    """Return why no offset is exact, with the transactions and both ways out."""
    parts = []
    if found.twice:
        parts.append(f"applied after one that was not: {listed(found.twice, NAMED_MAX)}")
    if found.to_apply and found.twice:
        parts.append(f"not applied: {listed(found.to_apply, NAMED_MAX)}")
    if found.uncertain:
        shown = listed(found.uncertain, NAMED_MAX)
        parts.append(f"not found, but their real topics have lost records since: {shown}")
    return (
        f"no offset is exact ({'; '.join(parts)}): choose --accept-duplicates to apply from the"
        " first one not found, or --skip-undelivered to continue after the last one found"
    )


def _refuse_while_running(cluster: Cluster, names: TopicNames) -> None:
    members = cluster.live_members(names.daemon_group)
    if members:
        raise AdminSetupError(
            f"the daemon is running ({', '.join(members)}): stop every worker and wait for the"
            " session timeout (10 s; at once with --leave), then run this again"
        )


def _halves(records: Iterable[LogRecord], verifier: Verifier | None) -> Iterable[HalfRead]:
    for record in records:
        try:
            metadata, flaw = record.half(verifier)
        except DecodeError:
            continue  # the daemon dead-letters it by itself
        yield HalfRead(record.offset, record.append_ms, metadata, flaw, 0, None)


def _evidence(cluster: Cluster, names: TopicNames, halves: list[HalfRead]) -> Evidence:
    wanted = {half.metadata.transaction_id for half in halves}
    topics = sorted({half.metadata.real_topic for half in halves})
    delivered: set[tuple[str, int]] = set()
    expired: dict[str, int] = {}
    for topic in topics:
        if names.is_internal(topic):
            continue
        ids, expired_before_ms = _delivered(cluster, topic, wanted)
        delivered |= ids
        if expired_before_ms >= 0:
            expired[topic] = expired_before_ms
    return Evidence(delivered, _dead(cluster, names, wanted), expired)


def _delivered(cluster: Cluster, topic: str, wanted: set[str]) -> tuple[set[tuple[str, int]], int]:
    """Return the messages in a real topic, and since when it is complete (ms)."""
    seen = cluster.describe([topic]).get(topic)
    if seen is None:
        return set(), _ALL_MAY_BE_GONE
    expired = _ALL_MAY_BE_GONE if "compact" in seen.settings["cleanup.policy"] else -1
    found: set[tuple[str, int]] = set()
    for partition in range(seen.partitions):
        # From the log start, not from a time: a real record's time is its worker's clock.
        low, end = cluster.watermarks(topic, partition)
        oldest_ms = _ALL_MAY_BE_GONE
        for record in cluster.read(topic, partition, start=low, end=end):
            oldest_ms = min(oldest_ms, record.timestamp[1])
            message = _message(record)
            if message is not None and message[0] in wanted:
                found.add(message)
        if low > 0:
            expired = max(expired, oldest_ms)
    return found, expired


def _message(record: LogRecord) -> tuple[str, int] | None:
    """Return transaction id and message index of a real record; None: it is not the daemon's."""
    try:
        return real_identity(record.headers)
    except DecodeError:
        return None  # another producer's, with a header of that name


def _dead(cluster: Cluster, names: TopicNames, wanted: set[str]) -> set[tuple[str, int]]:
    found = set()
    for partition in range(cluster.partition_count(names.dead)):
        low, end = cluster.watermarks(names.dead, partition)
        letters = cluster.read(names.dead, partition, start=low, end=end)
        # A dead letter has the signature of its half record, which holds in the half topic only.
        for half in _halves((each for each in letters if _shows_a_decision(each)), None):
            if half.metadata.transaction_id in wanted:
                found.add((half.metadata.transaction_id, half.metadata.resume_count))
    return found


def _shows_a_decision(letter: LogRecord) -> bool:
    """Tell whether a dead letter shows that its transaction's decision was applied.

    A message whose index no transaction can have becomes a dead letter before any decision.
    """
    value = next((value for name, value in reversed(letter.headers) if name == DEAD), None)
    try:
        dead = DEAD_LETTER.decode(value or b"")
    except DecodeError:
        return True  # RMQ_HALF says whose it is, as before there was a decision in dead letters
    return not (dead.reason is DeadReason.TOO_LARGE and dead.decision is DeadDecision.NONE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Traces of applied decisions."""

    # Transaction id and message index of committed records in real topics. The index distinguishes
    # a redelivered message from the messages of the life before.
    delivered: Collection[tuple[str, int]] = frozenset()
    # (transaction id, resume count) of the dead letters found.
    dead: Collection[tuple[str, int]] = frozenset()
    # Real topic -> append time before which its records may be gone; without topics that lost
    # nothing.
    expired_before_ms: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewOffsets:
    """Where the partition resumes."""

    progress: Progress
    applied: tuple[str, ...]  # transactions that are not applied again, decided below O
    to_apply: tuple[str, ...]  # transactions decided at or above O and not applied so far
    twice: tuple[str, ...]  # transactions that were applied and will be again
    never: tuple[str, ...]  # transactions of which nothing was found and that will not be applied
    uncertain: tuple[str, ...]  # in `to_apply` or `never`; their records may have expired

    @property
    def exact(self) -> bool:
        """Tell whether nothing is applied twice or never, for all that can be seen."""
        return not (self.twice or self.never or self.uncertain)


@dataclass(slots=True)
class _Transaction:
    """One transaction by the log."""

    first_append_ms: int
    halves: list[int] = field(default_factory=list)
    # Index -> offset of the original, real topic.
    messages: dict[int, tuple[int, str]] = field(default_factory=dict)
    last_copy: int = -1
    topics: set[str] = field(default_factory=set)
    state: State = State.UNDECIDED
    decided_at: int = -1
    decided_ms: int = -1
    decided_to: int = -1  # half offset up to which the decision covers messages
    count: int = COUNT_UNKNOWN  # of the messages that the decision covers


def new_offsets(
    halves: Sequence[HalfRead],
    ops: Sequence[OpRead],
    evidence: Evidence,
    *,
    half_end: int,
    op_end: int,
    choice: Choice = Choice.REFUSE,
) -> NewOffsets:
    """Return where the partition resumes.

    `halves` and `ops` are the readable records in ascending order, from their log start, or from
    below everything that is still undecided. With REFUSE the answer shows what ACCEPT_DUPLICATES
    would do, and is not exact.
    """
    transactions = _judge(halves, ops)
    # A ROLLBACK leaves no trace and applying it again does nothing: it is on either side of O.
    visible = {
        key: each
        for key, each in transactions.items()
        if each.state in (State.COMMITTED, State.DISCARDED)
    }
    found = {key for key, each in visible.items() if _is_found(key, each, evidence)}
    missing = {key: each for key, each in visible.items() if key not in found}
    uncertain = {key for key, each in missing.items() if _may_have_expired(each, evidence)}
    next_op = _next_op(visible, found, missing, uncertain, op_end=op_end, choice=choice)
    below = {key for key, each in transactions.items() if 0 <= each.decided_at < next_op}

    def ids(keys: Iterable[Key]) -> tuple[str, ...]:
        return tuple(sorted({key[0] for key in keys}))

    return NewOffsets(
        progress=_progress(transactions, below, next_op=next_op, half_end=half_end),
        applied=ids(found & below),
        to_apply=ids(missing.keys() - below),
        twice=ids(found - below),
        never=ids(missing.keys() & below),
        uncertain=ids(uncertain),
    )


def _judge(halves: Sequence[HalfRead], ops: Sequence[OpRead]) -> dict[Key, _Transaction]:
    transactions: dict[Key, _Transaction] = {}
    for half in halves:
        metadata = half.metadata
        key = (metadata.transaction_id, metadata.resume_count, metadata.producer_group)
        entry = transactions.setdefault(key, _Transaction(half.first_append_ms))
        entry.halves.append(half.offset)
        entry.messages.setdefault(metadata.message_index, (half.origin, metadata.real_topic))
        if metadata.origin_offset >= 0:
            entry.last_copy = half.offset
        entry.topics.add(metadata.real_topic)
    append_ms = {key: each.first_append_ms for key, each in transactions.items()}
    for key, first in first_decisions(ops, append_ms).items():
        known = transactions[key]
        known.state, known.decided_at, known.decided_ms = first.state, first.offset, first.append_ms
        known.decided_to, known.count = first.op.half_offset, first.op.message_count
    return transactions


def _is_found(key: Key, transaction: _Transaction, evidence: Evidence) -> bool:
    """Tell whether a transaction was applied, all of it.

    One of which only a part was delivered counts as not applied: where the daemon delivers at least
    once, it may have died while it wrote the messages. A message whose topic has lost records since
    says nothing.
    """
    if key[:2] in evidence.dead:
        return True
    if transaction.state is not State.COMMITTED:
        return False
    lacking = [index for index in transaction.messages if (key[0], index) not in evidence.delivered]
    is_any_there = len(lacking) < len(transaction.messages)
    return is_any_there and not any(_is_lost(transaction, index, evidence) for index in lacking)


def _is_lost(transaction: _Transaction, index: int, evidence: Evidence) -> bool:
    """Tell whether message `index` would be in its real topic, had its decision been applied."""
    offset, topic = transaction.messages[index]
    is_covered = offset <= transaction.decided_to and (
        transaction.count == COUNT_UNKNOWN or index < transaction.count
    )
    return is_covered and transaction.decided_ms >= evidence.expired_before_ms.get(topic, -1)


def _may_have_expired(transaction: _Transaction, evidence: Evidence) -> bool:
    # A real record is appended after its decision; one decided later than the oldest record
    # that is left would still be there.
    if transaction.state is not State.COMMITTED:
        return False
    return all(
        transaction.decided_ms < evidence.expired_before_ms.get(topic, -1)
        for topic in transaction.topics
    )


def _next_op(
    visible: dict[Key, _Transaction],
    found: set[Key],
    missing: dict[Key, _Transaction],
    uncertain: set[Key],
    *,
    op_end: int,
    choice: Choice,
) -> int:
    first_missing = min((each.decided_at for each in missing.values()), default=op_end)
    if choice is not Choice.SKIP_UNDELIVERED:
        return first_missing
    # Begin after the last decision that was, or may have been, applied; later missing ones are new.
    last_done = max((visible[key].decided_at for key in found | uncertain), default=-1)
    above = (each.decided_at for each in missing.values() if each.decided_at > last_done)
    return min(above, default=op_end)


def _progress(
    transactions: dict[Key, _Transaction], below: set[Key], *, next_op: int, half_end: int
) -> Progress:
    """Return H, R, T and P for O; a low H is safe because T is computed for the same H."""
    half = min(
        (
            offset
            for key, each in transactions.items()
            if key not in below
            for offset in each.halves
        ),
        default=half_end,
    )
    half = _whole(half, [transactions[key] for key in below])
    ops_from = min(
        (
            transactions[key].decided_at
            for key in below
            if any(offset >= half for offset in transactions[key].halves)
        ),
        default=next_op,
    )
    # P follows the records that decisions below O covered: unreadable and late records beyond P are
    # dead-lettered, perhaps a second time, rather than dropped. R at the end: no op applies
    # before all that was read here is known again.
    position = max(
        (
            offset + 1
            for key in below
            for offset in transactions[key].halves
            if offset <= transactions[key].decided_to
        ),
        default=half,
    )
    return Progress(half, next_op, half_end, ops_from, max(half, position))


def _whole(half: int, decided: Iterable[_Transaction]) -> int:
    """Return H = `half`, lowered where it would part the messages of a discarded transaction.

    As the ledger does (halfbridge.checker.core.entries): a discard for age proves itself by the
    first message,
    or by any copy, and a rebuild that met neither would take the transaction for undecided.
    """
    spans = [
        (max(each.halves[0], each.last_copy), each.halves[-1])
        for each in decided
        if each.state is State.DISCARDED
    ]
    for first, last in sorted(spans, key=itemgetter(1), reverse=True):
        if first < half <= last:
            half = first
    return half

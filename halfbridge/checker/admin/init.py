"""`checker init --partition P`: set a stopped partition anew, after looking at what was done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.reinit import Choice, Evidence, NewOffsets, new_offsets
from halfbridge.checker.admin.topics import common_partitions
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.errors import AdminError
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, real_identity
from halfbridge.serde.records import DeadDecision, DeadReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.topics import TopicNames
    from halfbridge.serde.verifier import Verifier

# Beyond every timestamp: nothing about such a topic is proof of "not delivered".
_ALL_MAY_BE_GONE = sys.maxsize
_LOG_START = -1
NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """What the operator asks for.

    Attributes:
        partition: Of half and op topic.
        half_start: Half offset to read from; -1 for the log start.
        op_start: Op offset to read from; -1 for the log start.
        choice: Where no offset is exact.
        dry_run: Commit nothing.
    """

    partition: int
    half_start: int = _LOG_START
    op_start: int = _LOG_START
    choice: Choice = Choice.REFUSE
    dry_run: bool = False


def init_partition(cluster: Cluster, names: TopicNames, request: InitRequest) -> NewOffsets:
    """Find out where the partition goes on, and commit it unless that is not allowed.

    Raises:
        AdminError: no such partition, a daemon is running, or no offset is exact and the
            operator did not choose; nothing is committed.
    """
    count = common_partitions(cluster, names)
    if not 0 <= request.partition < count:
        raise AdminError(f"there is no partition {request.partition}: half and op have {count}")
    if not request.dry_run:
        _refuse_while_running(cluster, names)
    found = find_offsets(cluster, names, request)
    if request.dry_run:
        return found
    if not found.exact and request.choice is Choice.REFUSE:
        raise AdminError(explain_inexact(found))
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
    """Read the partition and what was delivered from it; return where it goes on."""
    partition = request.partition
    half_low, half_end = cluster.watermarks(names.half, partition)
    op_low, op_end = cluster.watermarks(names.op, partition)
    half_start = half_low if request.half_start == _LOG_START else request.half_start
    op_start = op_low if request.op_start == _LOG_START else request.op_start
    verifier = cluster.signatures.verifier
    half_records = cluster.read(names.half, partition, start=half_start, end=half_end)
    op_records = cluster.read(names.op, partition, start=op_start, end=op_end)
    halves, ops = list(_halves(half_records, verifier)), list(_ops(op_records, verifier))
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
        parts.append(f"applied behind one that was not: {_named(found.twice)}")
    if found.to_apply and found.twice:
        parts.append(f"not applied: {_named(found.to_apply)}")
    if found.uncertain:
        parts.append(
            f"not found, but their real topics have lost records since: {_named(found.uncertain)}"
        )
    return (
        f"no offset is exact ({'; '.join(parts)}): choose --accept-duplicates to apply from the"
        " first one not found, or --skip-undelivered to go on behind the last one found"
    )


def _named(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return ", ".join(ids[:NAMED_MAX]) + more


def _refuse_while_running(cluster: Cluster, names: TopicNames) -> None:
    members = cluster.live_members(names.daemon_group)
    if members:
        raise AdminError(
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


def _ops(records: Iterable[LogRecord], verifier: Verifier | None) -> Iterable[OpRead]:
    for record in records:
        try:
            op = record.op(verifier)
        except DecodeError:
            continue
        yield OpRead(record.offset, record.append_ms, op)


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
    """Return which messages stand in a real topic, and since when it is complete (ms)."""
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
        for half in _halves((each for each in letters if _says_of_a_decision(each)), None):
            if half.metadata.transaction_id in wanted:
                found.add((half.metadata.transaction_id, half.metadata.resume_count))
    return found


def _says_of_a_decision(letter: LogRecord) -> bool:
    """Tell whether a dead letter shows that its transaction's decision was applied.

    A message whose index no transaction can have becomes a dead letter before any decision.
    """
    value = next((value for name, value in reversed(letter.headers) if name == DEAD), None)
    try:
        dead = DEAD_LETTER.decode(value or b"")
    except DecodeError:
        return True  # RMQ_HALF says whose it is, as before there was a decision in dead letters
    return not (dead.reason is DeadReason.TOO_LARGE and dead.decision is DeadDecision.NONE)

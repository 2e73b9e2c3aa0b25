"""An oracle for checks: which requests nobody should have been sent, by the logs alone.

RocketMQ's test calls them unexpectedCheck (the decision stood) and duplicatedCheck (the answer
stood). DESIGN.md, C2: before a request op p was read to its end at some moment after it fell due.
So what stood in op p before that moment was known, by the clock of one broker. What was appended
later may have crossed with the request, and is not found here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from halfbridge.serde.headers import HALF
from halfbridge.serde.protocol import REASON_AGE
from halfbridge.serde.records import NO_TIMESTAMP, CheckRequest, OpKind
from halfbridge.serde.topics import TopicNames
from tests.integration.tail import Record, Tail


@dataclass
class _Known:
    """What the logs say of a transaction; times are the broker's, milliseconds.

    Attributes:
        first_due_ms: When it may be asked about for the first time.
        group: Who decides it.
        decided_ms: When its first decision was appended.
        answered_ms: Number -> when the UNKNOWN that has it was appended.
        sent_ms: (number, attempt) -> when that request was sent last.
    """

    first_due_ms: int
    group: str
    decided_ms: int | None = None
    answered_ms: dict[int, int] = field(default_factory=dict)
    sent_ms: dict[tuple[int, int], int] = field(default_factory=dict)


def unexpected_checks(
    halves: Iterable[Record],
    ops: Iterable[Record],
    checks: Iterable[Record],
    *,
    timeout_ms: int,
    interval_ms: int,
) -> list[str]:
    """Return what is wrong with the requests, one line for each.

    Args:
        halves: All records of the half topic, copies too.
        ops: All records of the op topic.
        checks: All requests to all groups.
        timeout_ms: The daemon's transaction_timeout_ms.
        interval_ms: Its check_interval_ms.
    """
    known = _known(halves, timeout_ms)
    for record in sorted(ops, key=lambda each: (each.partition, each.offset)):
        op = record.op
        half = known.get(op.transaction_id)
        if half is None or half.group != op.producer_group:
            continue
        if op.kind is OpKind.DISCARD and op.reason == REASON_AGE:
            continue  # it may come too early, and has no effect then
        if op.kind is not OpKind.UNKNOWN:
            half.decided_ms = half.decided_ms or record.timestamp_ms
        elif op.check_number:
            half.answered_ms.setdefault(op.check_number, record.timestamp_ms)
    found: list[str] = []
    for request in sorted((each.check for each in checks), key=lambda one: one.sent_timestamp):
        half = known.get(request.transaction_id)
        wrong = "no half message" if half is None else _wrong_with(request, half, interval_ms)
        if wrong:
            what = f"check {request.check_number}, attempt {request.attempt}"
            found.append(f"{request.transaction_id}: {what}: {wrong}")
    return found


def unexpected_in(
    servers: str, names: TopicNames, group: str, *, timeout_ms: int, interval_ms: int
) -> list[str]:
    """Return the same for the requests to a group, of an installation on one broker."""
    logs: list[list[Record]] = []
    for topic in (names.check(group), names.half, names.op):  # requests first: they are the least
        tail = Tail(servers, topic)
        logs.append(tail.to_end())
        tail.close()
    checks, halves, ops = logs
    assert checks, "nobody was asked: this shows nothing"
    return unexpected_checks(halves, ops, checks, timeout_ms=timeout_ms, interval_ms=interval_ms)


def _known(halves: Iterable[Record], timeout_ms: int) -> dict[str, _Known]:
    known: dict[str, _Known] = {}
    for record in sorted(halves, key=lambda each: (each.partition, each.offset)):
        if not any(name == HALF for name, _ in record.headers):
            continue
        half = record.half
        first_ms = half.first_append_timestamp
        if first_ms == NO_TIMESTAMP:
            first_ms = record.timestamp_ms
        due_ms = first_ms + max(half.immunity_ms, timeout_ms)
        known.setdefault(half.transaction_id, _Known(due_ms, half.producer_group))
    return known


def _wrong_with(request: CheckRequest, half: _Known, interval_ms: int) -> str:
    number, attempt = request.check_number, request.attempt
    before_ms = half.sent_ms.get((number, attempt - 1))
    half.sent_ms[number, attempt] = request.sent_timestamp
    if before_ms is not None:
        due_ms = before_ms + interval_ms
    elif number == 1:
        due_ms = half.first_due_ms
    elif number - 1 in half.answered_ms:
        due_ms = half.answered_ms[number - 1]
    else:
        return f"nobody answered {number - 1}"
    if request.sent_timestamp < due_ms:
        return f"sent {due_ms - request.sent_timestamp} ms before it was due"
    if half.decided_ms is not None and half.decided_ms < due_ms:
        return f"decided {due_ms - half.decided_ms} ms before it was due"
    answered_ms = half.answered_ms.get(number)
    if answered_ms is not None and answered_ms < due_ms:
        return f"answered {due_ms - answered_ms} ms before it was due"
    return ""

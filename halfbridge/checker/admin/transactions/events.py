"""Records of a transaction as the events of its life. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.transactions.life import Event, Kind, Payload
from halfbridge.checker.admin.transactions.records import append_ms, headers_or_none
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, HALF, real_identity
from halfbridge.serde.protocol import decision_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.admin.transactions.asked import Request
    from halfbridge.checker.admin.transactions.life import Ruling
    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.kafka.ports import Record
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import HalfMetadata

# The order of events of one moment, as they come about.
_ORDER = {kind: number for number, kind in enumerate(Kind)}


def half_event(record: Record, half: HalfRead) -> Event:
    """Return an original or a copy."""
    metadata = half.metadata
    is_copy = metadata.origin_offset >= 0
    return Event(
        kind=Kind.COPY if is_copy else Kind.HALF,
        at_ms=_known(half.append_ms),
        topic=record.topic() or "",
        partition=record.partition() or 0,
        offset=half.offset,
        resume_count=metadata.resume_count,
        producer_group=metadata.producer_group,
        message_index=metadata.message_index,
        real_topic=metadata.real_topic,
        real_partition=_known(metadata.real_partition),
        bytes=half.user_bytes,
        check_times=metadata.check_times if is_copy else None,
        origin_offset=_known(metadata.origin_offset),
        reason=half.flaw or None,
    )


def op_event(
    record: Record, read: OpRead, ruling: Ruling | None, progress: Progress | None
) -> Event:
    """Return an answer or a decision.

    Args:
        record: The op record.
        read: What the record says.
        ruling: What became of the op; None: not known.
        progress: The daemon's committed progress of the pair; None: not known.
    """
    op = read.op
    return Event(
        kind=Kind.ANSWER
        if decision_of(op) is None and op.kind.value == "UNKNOWN"
        else Kind.DECISION,
        at_ms=_known(read.append_ms),
        topic=record.topic() or "",
        partition=record.partition() or 0,
        offset=read.offset,
        resume_count=op.resume_count,
        producer_group=op.producer_group,
        op=op.kind.value,
        source=op.source.value,
        actor=op.actor,
        reason=op.reason or None,
        message_count=_known(op.message_count),
        half_offset=op.half_offset,
        check_number=op.check_number or None,
        verdict=None if ruling is None else ruling.verdict,
        why=None if ruling is None else ruling.why,
        is_applied=None if progress is None else progress.has_applied(read.offset),
    )


def check_event(found: Request) -> Event:
    """Return a check request."""
    request = found.request
    return Event(
        kind=Kind.CHECK,
        at_ms=_known(request.sent_timestamp),
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        resume_count=request.resume_count,
        producer_group=request.producer_group,
        message_index=request.message_index,
        check_number=request.check_number,
        attempt=request.attempt,
    )


def delivery_event(record: Record) -> Event:
    """Return a record of a real topic; without a message index where the record has a wrong one."""
    try:
        identity = real_identity(headers_or_none(record))
    except DecodeError:
        identity = None
    return Event(
        kind=Kind.DELIVERY,
        at_ms=_known(record.timestamp()[1]),
        topic=record.topic() or "",
        partition=record.partition() or 0,
        offset=record.offset() or 0,
        message_index=None if identity is None else identity[1],
        bytes=len(record.key() or b"") + len(record.value() or b""),
    )


def dead_letter_event(record: Record) -> Event:
    """Return a dead letter. What cannot be read of it is None."""
    headers = headers_or_none(record)
    metadata = _half_in(headers)
    event = Event(
        kind=Kind.DEAD_LETTER,
        at_ms=_known(append_ms(record)) or _known(record.timestamp()[1]),
        topic=record.topic() or "",
        partition=record.partition() or 0,
        offset=record.offset() or 0,
    )
    if metadata is not None:
        event = replace(
            event,
            resume_count=metadata.resume_count,
            producer_group=metadata.producer_group,
            message_index=metadata.message_index,
            real_topic=metadata.real_topic,
        )
    for name, value in reversed(headers):
        if name == DEAD:
            try:
                letter = DEAD_LETTER.decode(value or b"")
            except DecodeError:
                return event
            return replace(
                event,
                op=letter.decision.value,
                reason=letter.reason.value,
                why=letter.detail or None,
                check_times=_known(letter.check_times),
                origin_offset=_known(letter.source_offset),
            )
    return event


def with_payload(event: Event, record: Any) -> Event:
    """Return `event` with the record's own bytes."""
    headers = tuple(headers_or_none(record))
    return replace(event, payload=Payload(record.key(), record.value(), headers))


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events in the order of time, those of one moment as they come about.

    Events whose time is not known come first.
    """
    return tuple(sorted(events, key=lambda each: (each.at_ms or 0, _ORDER[each.kind], each.offset)))


def _half_in(headers: list[tuple[str, bytes | None]]) -> HalfMetadata | None:
    for name, value in headers:
        if name == HALF:
            try:
                return HALF_METADATA.decode(value or b"")
            except DecodeError:
                return None
    return None


def _known(number: int) -> int | None:
    return None if number < 0 else number

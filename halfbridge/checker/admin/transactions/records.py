"""Consumed records as what the ledger reads, without their bodies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead, append_ms_of, message_bytes
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, parse_half, user_bytes
from halfbridge.serde.limits import shortened

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Record
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.verifier import Verifier


def append_ms(record: Any) -> int:
    """Return the broker's append time of a record, or NO_APPEND_MS."""
    return append_ms_of(*record.timestamp())


def headers_or_none(record: Any) -> Headers:
    """Return the headers of a record; an empty list where the client cannot read the headers."""
    try:
        return headers_of(record) or []
    except DecodeError:
        return []


def half_read(
    record: Any, verifier: Verifier | None, *, with_key: bool = False
) -> HalfRead | JunkRead:
    """Return a half record without its body. `size_bytes` are the user's bytes.

    Args:
        record: As consumed.
        verifier: Judges signatures, as the daemon's does; None: every record is believed.
        with_key: The key stands in place of the body. It counts as metadata, so that a ledger never
            releases it.
    """
    appended_ms = append_ms(record)
    try:
        headers = headers_of(record)
        metadata, flaw = parse_half(headers)
        if verifier is not None:
            verifier.check_half(
                record.partition(),
                appended_ms,
                metadata,
                headers=headers or (),
                key=record.key(),
                value=record.value(),
            )
    except DecodeError as error:
        return JunkRead(record.offset(), appended_ms, shortened(error.reason), 0, None)
    key = record.key() if with_key else None
    # Not `value()`, which copies what nobody looks at here: it may be a megabyte.
    size_bytes = len(record) + user_bytes(record.key(), None, headers or (), has_flaw=bool(flaw))
    return HalfRead(
        record.offset(),
        appended_ms,
        metadata,
        flaw,
        size_bytes,
        key,
        size_bytes,
        message_bytes(metadata) + len(key or b""),
    )


def op_read(record: Record, verifier: Verifier | None) -> OpRead | JunkRead:
    """Return an op record; `verifier` as in `half_read`."""
    offset, appended_ms = record.offset() or 0, append_ms(record)
    value = record.value() or b""
    try:
        op = OP.decode(value)
        if verifier is not None:
            verifier.check_op(
                record.partition() or 0,
                appended_ms,
                op,
                headers=partial(headers_of, record),
                key=record.key(),
                value=value,
            )
    except DecodeError as error:
        return JunkRead(offset, appended_ms, shortened(error.reason), 0, None)
    return OpRead(offset, appended_ms, op, len(record))

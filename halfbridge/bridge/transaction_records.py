"""Makes the records of one message transaction: half records and the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.avro import FENCE_CONTEXT, HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CONTEXT, HALF
from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.records import OpKind, OpSource, new_half, new_op

if TYPE_CHECKING:
    from halfbridge.bridge.message import Message
    from halfbridge.serde.headers import Header

# Why a transaction with a fence's context cannot commit yet.
FENCE_FIRST = (
    "its fence row is not committed: call fence.enter() in the local transaction, and commit the"
    " database first. A check would roll the messages back otherwise"
)


def half_headers(
    message: Message,
    *,
    transaction_id: str,
    now_ms: int,
    producer_group: str,
    index: int,
    immunity_ms: int,
    context: bytes | None,
) -> list[Header]:
    """Return a half record's headers: the user's, then RMQ_CONTEXT if any, then RMQ_HALF.

    Those of a CloudEvent are the user's too, and are delivered.
    """
    metadata = HALF_METADATA.encode(
        new_half(
            transaction_id=transaction_id,
            born_timestamp=now_ms,
            message_index=index,
            producer_group=producer_group,
            real_topic=message.topic,
            real_partition=message.real_partition,
            immunity_ms=immunity_ms,
        )
    )
    user = message.header_pairs
    if message.cloud_event is not None:
        user += message.cloud_event.headers(transaction_id, index, now_ms)
    if context is None:
        return [*user, (HALF, metadata)]
    return [*user, (CONTEXT, context), (HALF, metadata)]


def encoded_decision(
    kind: OpKind,
    *,
    transaction_id: str,
    now_ms: int,
    producer_group: str,
    half_offset: int,
    message_count: int,
    actor: str,
) -> bytes:
    """Return the value of the op record by which a producer decides."""
    return OP.encode(
        new_op(
            transaction_id=transaction_id,
            timestamp=now_ms,
            half_offset=half_offset,
            producer_group=producer_group,
            kind=kind,
            message_count=message_count,
            source=OpSource.PRODUCER,
            actor=actor,
        )
    )


def immunity_of(message: Message, default: int) -> int:
    """Return a message's immunity as it is encoded; `default` is its transaction's."""
    return default if message.immunity_ms is None else message.immunity_ms


def is_fenced(context: bytes | None) -> bool:
    """Return whether a context marks a transaction as fenced (`halfbridge.sql.Fence.context`)."""
    if context is None:
        return False
    try:
        FENCE_CONTEXT.decode(context)
    except DecodeError:
        return False
    return True


def checked_context(context: object) -> bytes | None:
    """Return `context` if it is valid, else raise InvalidMessageError: the caller shortens it."""
    if context is None:
        return None
    if isinstance(context, bytes) and len(context) <= METADATA_BYTES_MAX:
        return context
    shown = f"{len(context)} bytes" if isinstance(context, bytes) else type(context).__name__
    raise InvalidMessageError(
        f"context must be bytes, at most {METADATA_BYTES_MAX}, or None, not {shown}",
        field="context",
    )


def transaction_full(transaction_id: str) -> InvalidMessageError:
    """Return the error for a message that exceeds the limits of its transaction."""
    return InvalidMessageError(
        f"transaction {transaction_id} is full: at most {TRANSACTION_MESSAGES_MAX} messages and "
        f"{TRANSACTION_BYTES_MAX // (1024 * 1024)} MiB",
        field="value",
    )

"""Makes the records of one message transaction: half records and the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import CONTEXT, HALF
from halfbridge.serde.records import OpKind, OpSource, new_half, new_op

if TYPE_CHECKING:
    from halfbridge.bridge.message import Message
    from halfbridge.serde.headers import Header


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

"""What the sink writes into the op topic."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from halfbridge.serde.avro import OP
from halfbridge.serde.records import new_op

if TYPE_CHECKING:
    from halfbridge.serde.records import ManifestTransaction, OpKind, OpSource

_NS_PER_MS = 1_000_000


def decision(
    kind: OpKind,
    transaction: ManifestTransaction,
    producer_group: str,
    source: OpSource,
    *,
    actor: str,
    reason: str,
) -> bytes:
    """Return the op that decides a transaction now, encoded."""
    op = new_op(
        transaction_id=transaction.transaction_id,
        timestamp=time_ns() // _NS_PER_MS,
        half_offset=transaction.half_offset,
        producer_group=producer_group,
        kind=kind,
        message_count=transaction.message_count,
        source=source,
        actor=actor,
        reason=reason,
    )
    return OP.encode(op)

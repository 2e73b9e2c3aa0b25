"""What the sink writes into the op topic."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from halfbridge.serde.avro import OP
from halfbridge.serde.records import Op

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
    op = Op(
        transaction.transaction_id,
        time_ns() // _NS_PER_MS,
        transaction.half_offset,
        0,
        producer_group,
        kind,
        transaction.message_count,
        0,
        source,
        actor,
        reason,
    )
    return OP.encode(op)

"""Which decision of a transaction is the first in op order, by the rules of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.protocol import NO_APPEND_MS, State, state_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.records import Op
    from halfbridge.serde.topics import TopicNames
    from halfbridge.serde.verifier import Verifier

# Transaction id, resume count, producer group.
Key = tuple[str, int, str]


class First(NamedTuple):
    """The first decision of a transaction.

    Attributes:
        offset: Of the op.
        state: What the transaction is by it.
        op: The op.
    """

    offset: int
    state: State
    op: Op


def first_decisions(
    cluster: Cluster,
    names: TopicNames,
    partition: int,
    *,
    start: int,
    end: int,
    wanted: Mapping[Key, int | None],
) -> dict[Key, First]:
    """Return the first decision of each transaction that has one in [start, end).

    An op that the table of `serde.protocol` does not allow has no effect, and neither has one that
    is not believed (`serde.verifier`). One that names a half offset beyond the end of the half
    partition has its effect (rule 1, `Ledger.half_end`).

    Args:
        cluster: Where.
        names: Of the installation.
        partition: The pair.
        start: Op offset below which there is no decision of these transactions.
        end: An op offset that the log has had as its end.
        wanted: Transaction -> when its first half message was appended; None: not known.

    Raises:
        AdminError: the op partition cannot be read to `end`, as behind an open kafka_txn.
    """
    found: dict[Key, First] = {}
    for record in cluster.read(names.op, partition, start=start, end=end):
        op = _op(record, cluster.signatures.verifier)
        if op is None:
            continue
        key = op.transaction_id, op.resume_count, op.producer_group
        if key not in wanted or key in found:
            continue
        first_ms = wanted[key]
        state = state_after(
            op,
            State.UNDECIDED,
            op_append_ms=record.append_ms,
            first_append_ms=NO_APPEND_MS if first_ms is None else first_ms,
        )
        if state is not None:
            found[key] = First(record.offset, state, op)
    return found


def _op(record: LogRecord, verifier: Verifier | None) -> Op | None:
    try:
        return record.op(verifier)
    except DecodeError:
        return None

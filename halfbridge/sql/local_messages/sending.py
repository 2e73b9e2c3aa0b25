"""Half messages of batches: sent together, and settled together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.errors import BridgeError, InvalidMessageError, TopicSetupError
from bridge.transaction import IllegalTransitionError
from halfbridge.sql.local_messages.marks import Failure, MarkedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.futures import SendFuture
    from bridge.message_transaction import Transaction
    from bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.planning import Batch
    from halfbridge.sql.local_messages.rows import LocalMessage


@dataclass(frozen=True, slots=True)
class Attempt:
    """A message transaction whose half messages are durable.

    Attributes:
        tx: The transaction; its message of index i is that of `rows[i]`.
        rows: By id.
        half_offset: The highest of its half messages.
    """

    tx: Transaction
    rows: tuple[LocalMessage, ...]
    half_offset: int

    @property
    def marked(self) -> MarkedTransaction:
        """What its rows keep."""
        place = self.tx.half_partition, self.half_offset
        return MarkedTransaction(self.tx.id, *place, len(self.rows))


@dataclass(slots=True)
class _Sending:
    """A batch on its way."""

    tx: Transaction
    rows: list[LocalMessage]
    futures: list[SendFuture]


def send_batches(
    producer: TransactionProducer, batches: Iterable[Batch], *, context: bytes
) -> tuple[list[Attempt], list[Failure]]:
    """Send the half messages of all batches; return when all are durable.

    Args:
        producer: Started.
        batches: Each becomes a message transaction.
        context: The fence's.

    Returns:
        What is durable, and rows that the client refuses. A row behind a refused one of its key
        is in neither: it is not sent, and waits.

    Raises:
        BridgeError: a broker does not acknowledge; no row is to blame. Nothing was decided: the
            check rolls back what was sent.
    """
    failures: list[Failure] = []
    under_way = [_begin(producer, batch, context, failures) for batch in batches]
    attempts = [
        Attempt(each.tx, tuple(each.rows), max(it.result().half_offset for it in each.futures))
        for each in under_way
        if each.rows
    ]
    return attempts, failures


def _begin(
    producer: TransactionProducer, batch: Batch, context: bytes, failures: list[Failure]
) -> _Sending:
    sending = _Sending(producer.begin(context=context), [], [])
    passed_over: set[int] = set()
    for row in batch.messages:
        if row.key_hash in passed_over:
            continue
        try:
            future = sending.tx.send_async(row.message())
        except (InvalidMessageError, TopicSetupError, ValueError) as error:
            failures.append(Failure(row, f"{type(error).__name__}: {error}"))
            sending.tx.refused = None  # the row is left out on purpose
            if row.key_hash is not None:
                passed_over.add(row.key_hash)
        else:
            sending.rows.append(row)
            sending.futures.append(future)
    return sending


def abandon(attempts: Iterable[Attempt]) -> None:
    """Roll back message transactions whose rows are certainly not marked; wait for nothing."""
    for attempt in attempts:
        with suppress(BridgeError, IllegalTransitionError):  # else the check rolls it back
            attempt.tx.rollback_async()

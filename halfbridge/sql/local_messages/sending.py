"""Sends the half messages of batches together, and collects their acknowledgements."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, cycle
from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.kafka.errors import BridgeError, InvalidMessageError, TopicSetupError
from halfbridge.serde.partitioner import key_hash
from halfbridge.sql.local_messages.marks import Failure, MarkedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.bridge.futures import SendFuture
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.planning import Batch
    from halfbridge.sql.local_messages.rows import LocalMessage


@dataclass(frozen=True, slots=True)
class Attempt:
    """A message transaction whose half messages are durable.

    Attributes:
        tx: The message transaction; its message of index i is that of `rows[i]`.
        rows: The rows, by id.
        half_offset: The highest half offset.
    """

    tx: Transaction
    rows: tuple[LocalMessage, ...]
    half_offset: int

    @property
    def marked(self) -> MarkedTransaction:
        """The columns that the mark writes into the rows."""
        place = self.tx.half_partition, self.half_offset
        return MarkedTransaction(self.tx.id, *place, len(self.rows))


@dataclass(slots=True)
class Sending:
    """A batch whose half messages are under way.

    Attributes:
        tx: The message transaction.
        rows: The rows that were sent, without those that the client refused.
        futures: One for each row.
        began: When sending began, by the monotonic clock.
    """

    tx: Transaction
    rows: list[LocalMessage]
    futures: list[SendFuture]
    began: float

    @property
    def half_partition(self) -> int:
        """The half partition of the batch."""
        return self.tx.half_partition

    @property
    def is_done(self) -> bool:
        """Whether every half message is acknowledged or has failed."""
        return all(future.done() for future in self.futures)

    def waits_for(self) -> list[SendFuture]:
        """Return the futures that must be done first."""
        return self.futures

    def attempt(self) -> Attempt:
        """Return the batch as an attempt, whose half messages are durable.

        Raises:
            BridgeError: a half message is not acknowledged; no row is the cause. Nothing is
                decided: the check rolls back the transaction.
        """
        offsets = [future.result(0).half_offset for future in self.futures]
        return Attempt(self.tx, tuple(self.rows), max(offsets))


def send_batches(
    producer: TransactionProducer,
    batches: Iterable[Batch],
    *,
    context: bytes,
    places: Iterable[int] = (),
) -> tuple[list[Sending], list[Failure]]:
    """Send the half messages of all batches; waits only for room in the queue.

    Args:
        producer: A started producer.
        batches: The batches, one message transaction each.
        context: The fence's context.
        places: Half partitions for batches without keys, in turn; empty: the client chooses.

    Returns:
        The batches under way, and the rows that the client refused. A row after a refused row of
        the same key is in neither: it is not sent, and waits.

    Raises:
        BridgeError: there is no room; no row is the cause.
    """
    failures: list[Failure] = []
    keys = cycle(placement_keys(producer.half_partitions)[place] for place in places)
    under_way = []
    for batch in batches:
        key = next(keys, None) if batch.half_partition is None else None
        under_way.append(_begin(producer, batch, context, failures, key))
    return [each for each in under_way if each.rows], failures


@lru_cache(maxsize=8)
def placement_keys(half_partitions: int) -> tuple[bytes, ...]:
    """Return a placement key for each half partition."""
    found: dict[int, bytes] = {}
    for number in count():
        found.setdefault(key_hash(b"%d" % number) % half_partitions, b"%d" % number)
        if len(found) == half_partitions:
            break
    return tuple(found[place] for place in range(half_partitions))


def _begin(
    producer: TransactionProducer,
    batch: Batch,
    context: bytes,
    failures: list[Failure],
    placement_key: bytes | None,
) -> Sending:
    tx = producer.begin(context=context, placement_key=placement_key)
    sending = Sending(tx, [], [], monotonic())
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
    """Roll back message transactions whose rows are certainly not marked; does not wait."""
    for attempt in attempts:
        with suppress(BridgeError, IllegalTransitionError):  # else the check rolls it back
            attempt.tx.rollback_async()

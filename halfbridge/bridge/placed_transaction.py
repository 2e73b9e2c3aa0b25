"""A transaction whose half partition is chosen by a key of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction_records import half_partition

if TYPE_CHECKING:
    from halfbridge.bridge.message import Message
    from halfbridge.bridge.shared import Shared


class PlacedTransaction(Transaction):
    """A transaction that shares its half partition with all others of the same placement key.

    Args:
        shared: State of the producer.
        placement_key: Decisions of transactions with the same placement key apply in their order,
            whatever keys the messages have.
        immunity_ms: As for every transaction.
        context: As for every transaction.
        rollback_on: As for every transaction.
    """

    __slots__ = ("_placement_key",)

    def __init__(
        self,
        shared: Shared,
        *,
        placement_key: bytes,
        immunity_ms: int | None = None,
        context: bytes | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        super().__init__(shared, immunity_ms=immunity_ms, context=context, rollback_on=rollback_on)
        self._placement_key = placement_key

    def _place(self, message: Message) -> None:
        super()._place(message)
        self.half_partition = half_partition(self.id, self._placement_key, self.shared.partitions)

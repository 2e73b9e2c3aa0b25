"""A COMMIT that is said again, by whoever knows that the local transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.errors import InvalidMessageError
from halfbridge.bridge.message import check_whole_number
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import State
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from halfbridge.bridge.shared import Shared


class RepeatedCommit(Transaction):
    """A transaction that another process sent, as after a COMMIT of unknown outcome.

    So it can be committed, as often as need be, and nothing else.

    Args:
        shared: Of the producer that says it; of the same producer group.
        transaction_id: As its sender had it.
        half_partition: Where its half messages stand.
        half_offset: At or above the last of them, and below the end of the half partition.
        message_count: How many they are.

    Raises:
        InvalidMessageError: a number that no transaction has; the caller corrects it.
    """

    __slots__ = ()

    def __init__(
        self,
        shared: Shared,
        *,
        transaction_id: str,
        half_partition: int,
        half_offset: int,
        message_count: int,
    ) -> None:
        super().__init__(shared)
        for field, value, least, most in (
            ("half_partition", half_partition, 0, shared.partitions - 1),
            ("half_offset", half_offset, 0, None),
            ("message_count", message_count, 1, TRANSACTION_MESSAGES_MAX),
        ):
            check_whole_number(field, value)
            if value < least or (most is not None and value > most):
                raise InvalidMessageError(f"{field} {value} is of no transaction", field=field)
        self.id = transaction_id
        self.half_partition = half_partition
        self._state = State.COMMIT_IN_DOUBT
        self._count = message_count
        self._last_offset = half_offset

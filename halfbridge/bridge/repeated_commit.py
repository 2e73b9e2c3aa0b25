"""A COMMIT that is repeated by a process which knows that the local transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.message_checks import check_whole_number
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import State
from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from halfbridge.bridge.shared import Shared


class RepeatedCommit(Transaction):
    """A transaction that another process sent; it can only be committed, as often as needed.

    Used where it is not known whether COMMIT was sent.

    Args:
        shared: State of the producer that repeats the COMMIT, a member of the same producer group.
        transaction_id: The transaction's id.
        half_partition: The half partition of its half messages.
        half_offset: At or above its last half message, and below the end of the half partition.
        message_count: Number of its half messages.

    Raises:
        InvalidMessageError: a number that no transaction can have; the caller corrects it.
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

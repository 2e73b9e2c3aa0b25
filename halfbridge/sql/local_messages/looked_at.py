"""The result of one look of a relay at its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from halfbridge.sql.local_messages.rows import LocalMessage


class Unacknowledged(NamedTuple):
    """A message transaction whose rows are marked, and whose COMMIT may not have been sent."""

    transaction_id: str
    half_partition: int
    half_offset: int
    message_count: int


class Snapshot(NamedTuple):
    """The work of a relay at one moment.

    Attributes:
        messages: Rows with keys, by id; for each key its first waiting rows, without a gap.
        unacknowledged: Transactions of the same keys, to repeat first; at most REPEATS_MAX.
        has_keyless: Whether rows without a key wait.
    """

    messages: list[LocalMessage]
    unacknowledged: list[Unacknowledged]
    has_keyless: bool

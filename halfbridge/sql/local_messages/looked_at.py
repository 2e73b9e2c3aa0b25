"""What one look of a relay at its database found."""

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
    """What there is to do, at one moment.

    Attributes:
        messages: Rows with keys, by id; of each key a beginning of what waits.
        unacknowledged: Their keys' transactions to repeat first; at most REPEATS_MAX.
        has_keyless: Whether there are rows without a key to relay.
    """

    messages: list[LocalMessage]
    unacknowledged: list[Unacknowledged]
    has_keyless: bool

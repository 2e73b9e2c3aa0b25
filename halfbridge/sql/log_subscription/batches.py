"""How many inserts one message transaction contains. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.bridge.message import Message

# The protocol's limit of messages, and half of its limit of bytes, so that a batch of the daemon
# has room for another transaction.
MESSAGES_MAX = TRANSACTION_MESSAGES_MAX
BYTES_MAX = TRANSACTION_BYTES_MAX // 2


def cut(
    messages: Sequence[Message],
    ends: Sequence[bool],
    *,
    messages_max: int = MESSAGES_MAX,
    bytes_max: int = BYTES_MAX,
) -> int:
    """Return how many of `messages` go into one message transaction; 0: wait for more messages.

    A message transaction contains whole database transactions, so that the messages of a database
    transaction are delivered together. A database transaction that is larger than the limits is
    divided.

    Args:
        messages: Messages in the order of the log.
        ends: For each message, whether it is the last of its database transaction.
        messages_max: Most messages.
        bytes_max: Most bytes of keys and values. The first message is taken whatever its size.
    """
    whole = size = 0
    for number, (message, is_end) in enumerate(zip(messages, ends, strict=True)):
        size += message.body_bytes
        if number == messages_max or (number and size > bytes_max):
            return whole or number
        if is_end:
            whole = number + 1
    if len(messages) >= messages_max:
        return whole or messages_max
    return whole

"""How many inserts one message transaction takes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.bridge.message import Message

# The protocol's limit of messages; half of its limit of bytes, so that a batch of the daemon holds
# another transaction too.
MESSAGES_MAX = TRANSACTION_MESSAGES_MAX
BYTES_MAX = TRANSACTION_BYTES_MAX // 2


def cut(
    messages: Sequence[Message],
    ends: Sequence[bool],
    *,
    messages_max: int = MESSAGES_MAX,
    bytes_max: int = BYTES_MAX,
) -> int:
    """Return how many of `messages` go into one message transaction; 0: wait for more.

    As many whole database transactions as there is room for, so that the messages of one are
    delivered together. Of one for which there is no room, as much as there is room for.

    Args:
        messages: In the order of the log.
        ends: Of each, whether it is the last of its database transaction.
        messages_max: Most of them.
        bytes_max: Most bytes of keys and values; the first message is taken whatever its size.
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

"""The protocol's limits on the number and the size of a transaction's messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.checker.core.events import HalfRead


def is_excess(half: HalfRead) -> bool:
    """Tell whether a message's index is above the highest index that a transaction may have."""
    return half.metadata.message_index >= TRANSACTION_MESSAGES_MAX


def is_too_large(messages: Collection[HalfRead]) -> bool:
    """Tell whether `messages` exceed a limit of a transaction: index or bytes."""
    if any(map(is_excess, messages)):
        return True
    return sum(half.user_bytes for half in messages) > TRANSACTION_BYTES_MAX

"""Marks of dead letters: what an operator did about each (docs/adr/0018).

Whoever may write to the dead-letter topic may write anything there, so a reader gets a mark or a
SerdeError.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.limits import METADATA_BYTES_MAX

# Bytes in UTF-8 of the texts that an operator gives, in a mark and in the op beside it.
ACTOR_BYTES_MAX = 256
REASON_BYTES_MAX = 512


class MarkAction(str, Enum):
    """What an operator did about a dead letter."""

    RESUMED = "RESUMED"
    REDELIVERED = "REDELIVERED"
    PURGED = "PURGED"


class DeadMark(NamedTuple):
    """Header RMQ_DEAD_MARK of a record in the dead-letter topic that is about a dead letter."""

    transaction_id: str
    timestamp: int
    action: MarkAction
    letter_offset: int
    resume_count: int
    actor: str
    reason: str


# The longest one has an id of 3,000 bytes (IDENTITY_BYTES_MAX) and both texts.
DEAD_MARK: Codec[DeadMark] = Codec(DeadMark, ("dead_mark.v1",), bytes_max=METADATA_BYTES_MAX)

"""What the parts of a ledger take in memory, apart from bodies: estimates. Pure.

Measured with tracemalloc, 200,000 transactions with ids of 32 characters and short names: an
undecided transaction of one message takes 1,052 bytes (up to 200 more once it stands in the heap of
due times) and is weighed 1,180, a decided one takes 506 and is weighed 712; each further message
takes 468 and an op that waits 441.
`tests/unit/checker/core/test_weights.py` measures them again, and that no estimate is too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.events import JunkRead
from halfbridge.checker.core.plan import DeadHalf

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.checker.core.letters import Letter
    from halfbridge.serde.records import HalfMetadata

# The entry, its key, and its places in tables and queues.
ENTRY_BYTES = 560
# A half record without its body: metadata, and its places in tables and queues.
MESSAGE_BYTES = 420
# An index of a decided transaction whose messages had a gap.
INDEX_BYTES = 100
# An op without its text, which is no longer than its value.
OP_BYTES = 320
# A dead letter without its text.
LETTER_BYTES = 160
# What Python takes for one character of a text that has a single one beyond U+FFFF. Other texts
# take less; so long names weigh more than they should, and never less.
CHAR_BYTES = 4


def entry_bytes(transaction_id: str, group: str) -> int:
    """Return what a transaction takes, without its messages."""
    return ENTRY_BYTES + CHAR_BYTES * (len(transaction_id) + len(group))


def message_bytes(metadata: HalfMetadata) -> int:
    """Return what a half record takes without its body."""
    chars = len(metadata.transaction_id) + len(metadata.producer_group) + len(metadata.real_topic)
    return MESSAGE_BYTES + CHAR_BYTES * chars


def op_bytes(read: OpRead | JunkRead) -> int:
    """Return what an op takes that waits; the body of an unreadable one apart."""
    if isinstance(read, JunkRead):
        return OP_BYTES + CHAR_BYTES * len(read.detail)
    return OP_BYTES + CHAR_BYTES * read.size_bytes


def record_bytes(record: HalfRead | JunkRead) -> int:
    """Return what a half record takes, readable or not, without its body."""
    if isinstance(record, JunkRead):
        return MESSAGE_BYTES + CHAR_BYTES * len(record.detail)
    return record.metadata_bytes


def letter_bytes(letter: Letter) -> int:
    """Return what a dead letter takes that waits, without its body."""
    if isinstance(letter, DeadHalf):
        return LETTER_BYTES + letter.half.metadata_bytes + CHAR_BYTES * len(letter.detail)
    return LETTER_BYTES + record_bytes(letter.record)

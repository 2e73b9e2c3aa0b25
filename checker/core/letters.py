"""Dead letters of half records, which wait until a kafka_txn has room for them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.checker.core.plan import DeadHalf, DeadJunk
from halfbridge.checker.core.weights import letter_bytes

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead, JunkRead

Letter = DeadHalf | DeadJunk


class Letters:
    """Unreadable and late half records, in the order of their offsets.

    No decision makes them wait for anything, so all that is read at once is due at once. They are
    written before any further op is applied, and P stands at the first one left: a rebuild takes
    what is at or above P for what no op below O has met.

    Args:
        body_bytes_max: Bytes of the bodies held; those beyond are read again by offset.

    Attributes:
        held_bytes: Bytes of the bodies that are in memory.
        metadata_bytes: What they take in memory besides: an estimate.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._waiting: deque[Letter] = deque()
        self._body_bytes_max = body_bytes_max
        self.held_bytes = 0
        self.metadata_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, letter: Letter) -> None:
        """Take a letter; offsets ascend."""
        record = record_of(letter)
        if record.body is not None:
            if self.held_bytes + record.body_bytes <= self._body_bytes_max:
                self.held_bytes += record.body_bytes
            else:
                letter = _without_body(letter)
        self.metadata_bytes += letter_bytes(letter)
        self._waiting.append(letter)

    def take(self) -> Letter:
        """Hand the first letter over."""
        letter = self._waiting.popleft()
        self.metadata_bytes -= letter_bytes(letter)
        record = record_of(letter)
        if record.body is not None:
            self.held_bytes -= record.body_bytes
        return letter

    def first(self) -> int | None:
        """Return the offset of the first one left."""
        return record_of(self._waiting[0]).offset if self._waiting else None


def record_of(letter: Letter) -> HalfRead | JunkRead:
    """Return what was read."""
    return letter.half if isinstance(letter, DeadHalf) else letter.record


def _without_body(letter: Letter) -> Letter:
    if isinstance(letter, DeadHalf):
        return replace(letter, half=letter.half._replace(body=None))
    return replace(letter, record=letter.record._replace(body=None))

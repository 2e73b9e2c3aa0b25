"""Dead letters of half records that wait until a plan has room for them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.checker.core.plan import DeadHalf
from halfbridge.checker.core.weights import CHAR_BYTES, record_bytes

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead, JunkRead
    from halfbridge.checker.core.plan import Letter

# Waiting dead letters may take half of the budget of bodies.
LETTERS_SHARE = 2
# A dead letter without its text.
LETTER_BYTES = 160


class Letters:
    """Waiting dead letters, in the order of their half offsets.

    A half record becomes a waiting dead letter as soon as it is read, so one fetch may bring more
    dead letters than a plan has room for. Waiting dead letters are written before any further op is
    applied, and P stays at the first one. Example: half records are read to 900, and the dead
    letter of 870 does not fit into the plan. P is 870, so a rebuild still dead-letters 870.

    Args:
        body_bytes_max: Most bytes of bodies to hold. Bodies beyond it are read again by offset.

    Attributes:
        held_bytes: Bytes of the bodies in memory.
        metadata_bytes: Bytes of the dead letters without bodies: an estimate.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._waiting: deque[Letter] = deque()
        self._body_bytes_max = body_bytes_max
        self.held_bytes = 0
        self.metadata_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, letter: Letter) -> None:
        """Add a dead letter, without its body if there is no room; offsets ascend."""
        record = record_of(letter)
        if record.body is not None:
            if self.held_bytes + record.body_bytes <= self._body_bytes_max:
                self.held_bytes += record.body_bytes
            else:
                letter = _without_body(letter)
        self.metadata_bytes += letter_bytes(letter)
        self._waiting.append(letter)

    def take(self) -> Letter:
        """Remove the first dead letter, and return it."""
        letter = self._waiting.popleft()
        self.metadata_bytes -= letter_bytes(letter)
        record = record_of(letter)
        if record.body is not None:
            self.held_bytes -= record.body_bytes
        return letter

    def first(self) -> int | None:
        """Return the half offset of the first dead letter; None when there is none."""
        return record_of(self._waiting[0]).offset if self._waiting else None


def record_of(letter: Letter) -> HalfRead | JunkRead:
    """Return the record that the dead letter is about."""
    return letter.half if isinstance(letter, DeadHalf) else letter.record


def letter_bytes(letter: Letter) -> int:
    """Return the bytes of a waiting dead letter without its body."""
    if isinstance(letter, DeadHalf):
        return LETTER_BYTES + letter.half.metadata_bytes + CHAR_BYTES * len(letter.detail)
    return LETTER_BYTES + record_bytes(letter.record)


def _without_body(letter: Letter) -> Letter:
    if isinstance(letter, DeadHalf):
        return replace(letter, half=letter.half._replace(body=None))
    return replace(letter, record=letter.record._replace(body=None))

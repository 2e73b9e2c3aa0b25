"""How far partitions have been read, and since when. Times are monotonic seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.stalls import UNREAD_S

if TYPE_CHECKING:
    from collections.abc import Mapping

# How long the group's last word counts: the client says the same again only every 30 s.
SAID_S = 60.0


class Reading:
    """What was taken from a consumer.

    Attributes:
        ends: (topic, partition) -> where reading began, or the last end that was told; it may lie
            behind markers, which no record shows.
    """

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self._taken_at = self._since = 0.0

    def begin(self, offsets: Mapping[tuple[str, int], int], now: float) -> None:
        """Take that these partitions are read, from these offsets."""
        self.ends = dict(offsets)
        self._since = now

    def takes(self, now: float) -> None:
        """Take that records are asked for."""
        if now - self._taken_at > UNREAD_S:
            self._since = now
        self._taken_at = now

    def since(self, now: float) -> float:
        """Return since when records have been taken without a pause; `now`, if they are not."""
        return now if now - self._taken_at > UNREAD_S else self._since


class GroupTrouble:
    """What the group said last of why it does not let us in."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0.0

    def note(self, text: str, now: float) -> None:
        """Keep what was said."""
        self._text, self._at = text, now

    def end(self) -> None:
        """Take that we are in."""
        self._text = ""

    def text(self, now: float) -> str:
        """Return what was said; empty when it is long ago, or was never."""
        return self._text if now - self._at <= SAID_S else ""

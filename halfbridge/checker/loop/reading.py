"""How far partitions have been read, and since when. Times are monotonic seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.stalls import UNREAD_S

if TYPE_CHECKING:
    from collections.abc import Mapping

# How long a report about the group counts: the client repeats the same report only every 30 s.
SAID_S = 60.0


class Reading:
    """How far a consumer has read.

    Attributes:
        ends: (topic, partition) -> where reading began, or the last PARTITION_EOF, which may lie
            behind markers that no record shows.
    """

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self._taken_at = self._since = 0.0

    def begin(self, offsets: Mapping[tuple[str, int], int], now: float) -> None:
        """Record that these partitions are read from these offsets."""
        self.ends = dict(offsets)
        self._since = now

    def takes(self, now: float) -> None:
        """Record that the consumer is polled."""
        if now - self._taken_at > UNREAD_S:
            self._since = now
        self._taken_at = now

    def since(self, now: float) -> float:
        """Return since when the consumer has been polled without a pause; `now` if it is not."""
        return now if now - self._taken_at > UNREAD_S else self._since


class GroupTrouble:
    """The group's last reason not to let this member join."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0.0

    def note(self, text: str, now: float) -> None:
        """Keep the reason."""
        self._text, self._at = text, now

    def end(self) -> None:
        """Record that the member has joined."""
        self._text = ""

    def text(self, now: float) -> str:
        """Return the reason; empty if there is none or it is older than SAID_S."""
        return self._text if now - self._at <= SAID_S else ""

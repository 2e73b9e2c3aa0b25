"""What the operator's commands read of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from halfbridge.checker.core.events import append_ms_of


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset; -1 when there is none."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as read; headers as the client gives them.

    Attributes:
        timestamp: Kafka's type of it, and milliseconds.
    """

    partition: int
    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def append_ms(self) -> int:
        """The broker's append time, or NO_APPEND_MS."""
        return append_ms_of(*self.timestamp)

"""What the operator's commands read of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset; -1 when there is none."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as read; headers as the client gives them."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

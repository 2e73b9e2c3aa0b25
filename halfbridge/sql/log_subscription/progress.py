"""The progress of a log subscription, for its metrics and its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from time import monotonic


@dataclass(slots=True)
class Progress:
    """The progress of a subscription since its process started.

    Attributes:
        messages: Committed messages.
        batches: Message transactions of these messages.
        retries: How often the subscription has begun again from its row.
        last_error: The error of the last retry; empty after a success.
        is_open: Whether the log is being read.
        step: Name of the last step.
        step_at: Time of the last step, by the monotonic clock.
    """

    messages: int = 0
    batches: int = 0
    retries: int = 0
    last_error: str = ""
    is_open: bool = False
    step: str = "starting"
    step_at: float = field(default_factory=monotonic)

    def note(self, step: str) -> None:
        """Record a step."""
        self.step, self.step_at = step, monotonic()


class BeginAt(Enum):
    """Where a subscription without a position begins.

    NOW: with the inserts that commit from now on. SNAPSHOT: with all existing rows, then as NOW.
    """

    NOW = "now"
    SNAPSHOT = "snapshot"

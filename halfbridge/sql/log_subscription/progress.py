"""What a log subscription has done, for its metrics and its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True)
class Progress:
    """What a subscription has done since its process started.

    Attributes:
        messages: Claimed and committed.
        batches: Message transactions of them.
        retries: Times it began again from its row.
        last_error: Why it last did; empty: it has not, or goes on well since.
        is_open: It reads the log.
        step: What it did last, or is about to wait for.
        step_at: When, by the monotonic clock.
    """

    messages: int = 0
    batches: int = 0
    retries: int = 0
    last_error: str = ""
    is_open: bool = False
    step: str = "starting"
    step_at: float = field(default_factory=monotonic)

    def note(self, step: str) -> None:
        """Note a step."""
        self.step, self.step_at = step, monotonic()

"""When a Kafka client is replaced because brokers do not answer it.

This is the rule for the clients that a worker keeps for its life: its consumer, its admin client
and its producer of check requests. `StallWatch` replaces a consumer that is answered and reads
nothing. All other clients are replaced after each failure, or live as long as one question: the
producers of batches and of barriers, the reader of bodies, and the clients of the settings record
and of the marks.
"""

from __future__ import annotations

# Three questions without an answer (`QUESTION_S`). A client reconnects by itself in less time, even
# after its broker has restarted.
REPLACED_AFTER_S = 30.0


class Silence:
    """How long a client has not been answered. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None

    def goes_on(self, since: float) -> None:
        """Record that a question or record of `since` has no answer."""
        self._since = since if self._since is None else self._since

    def end(self) -> None:
        """Record an answer."""
        self._since = None

    def is_over_limit(self, now: float) -> bool:
        """Return whether the client has been unanswered for REPLACED_AFTER_S."""
        return self._since is not None and now - self._since >= REPLACED_AFTER_S

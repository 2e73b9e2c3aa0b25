"""Keeps what is known of the cluster's topics fresh enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checker.core.plan import Plan
    from checker.inquiry.kafka_io import Questions
    from checker.routes import Routes

# Looked up anew at this pace, and at this one while a topic is missed.
FRESH_S = 30.0
MISSING_S = 0.5
# While a right is missing, which may come back.
RIGHTS_S = 2.0


class TopicWatch:
    """Looks topics up and tells `routes`. Times are monotonic seconds.

    Args:
        questions: Asked.
        routes: Told.
        dead: The dead-letter topic.

    Attributes:
        lacks_dead: A plan waits for the dead-letter topic, which is missing.
    """

    def __init__(self, questions: Questions, routes: Routes, *, dead: str) -> None:
        self.lacks_dead = False
        self._questions = questions
        self._routes = routes
        self._dead = dead
        self._at = float("-inf")

    @property
    def looked_at(self) -> float:
        """When topics were looked up last."""
        return self._at

    def look(self, now: float) -> None:
        """Look all topics up.

        Raises:
            InputLostError: no broker answered.
        """
        self._at = now
        self._routes.update(self._questions.partitions(), int(now * 1000))

    def look_now_and_then(self, now: float) -> None:
        """Look when it is time."""
        if now - self._at >= (RIGHTS_S if self._routes.has_refused_topics else FRESH_S):
            self.look(now)

    def forget(self) -> None:
        """Look at the next opportunity."""
        self._at = float("-inf")

    def exists(self, topic: str, now: float) -> bool:
        """Tell whether `topic` is there; looks again when it was missing."""
        if not self._routes.exists(topic) and now - self._at > MISSING_S:
            self.look(now)
        return self._routes.exists(topic)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic that exists has."""
        return self._routes.partitions(topic)

    def must_wait(self, plan: Plan, now: float) -> bool:
        """Tell whether `plan` needs a missing topic: a real one not given up yet, or our own."""
        if not self.exists(self._dead, now):
            if plan.dead or plan.junk or any(map(self._routes.refusal, plan.deliveries)):
                self.lacks_dead = True
                return True
        else:
            self.lacks_dead = False
        if not self._routes.lacks(plan.deliveries):
            return False
        if now - self._at > MISSING_S:  # also where it was given up: it may have come since
            self.look(now)
        return self.awaits(plan, now)

    def awaits(self, plan: Plan, now: float) -> bool:
        """Tell whether `plan` needs a real topic not given up yet, by what is known now."""
        return bool(self._routes.awaited(plan.deliveries, int(now * 1000)))

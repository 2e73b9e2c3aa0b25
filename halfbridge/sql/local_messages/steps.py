"""The steps of a relay's round."""

from __future__ import annotations

from enum import Enum


class RelayStep(str, Enum):
    """A step of a round, for tests and tracing; a relay may die after each of them."""

    LOOKED = "LOOKED"  # rows were found
    SENT = "SENT"  # half messages are durable
    MARKED = "MARKED"  # fence rows and marks are written, but not committed
    COMMITTED = "COMMITTED"  # the database has committed: the first mark stands
    DECIDED = "DECIDED"  # COMMITs are acknowledged
    ACKNOWLEDGED = "ACKNOWLEDGED"  # the second mark stands

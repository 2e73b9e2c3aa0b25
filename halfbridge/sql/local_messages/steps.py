"""Where a round stands."""

from __future__ import annotations

from enum import Enum


class RelayStep(str, Enum):
    """Where a round stands, for whoever watches it; each is a place at which a relay may die."""

    LOOKED = "LOOKED"  # rows were found
    SENT = "SENT"  # half messages are durable
    MARKED = "MARKED"  # fence rows and marks are written, and not committed
    COMMITTED = "COMMITTED"  # the database has committed: the first mark stands
    DECIDED = "DECIDED"  # COMMITs are acknowledged
    ACKNOWLEDGED = "ACKNOWLEDGED"  # the second mark stands

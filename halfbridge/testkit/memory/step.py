"""Where the process of a client may die."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """Where the code of a message transaction may be when its process dies.

    The steps of a local transaction are known of `halfbridge.sql.Fence`; elsewhere the code calls
    `MemoryStack.mark` there.
    """

    BEFORE_HALF = "before a half message is sent"
    AFTER_HALF_ACK = "after a half message is stored"
    BEFORE_LOCAL_COMMIT = "before the local transaction commits"
    AFTER_LOCAL_COMMIT = "after the local transaction has committed"
    BEFORE_DECISION = "before COMMIT or ROLLBACK is sent"
    AFTER_DECISION_SENT = "after COMMIT or ROLLBACK is stored, and before anybody knows"

"""How long commands wait for a database. This module does not import SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long a long-running command waits for its database, in whole seconds.

    Attributes:
        connect_s: Longest wait for a connection; on SQLite, for the lock on the file.
        statement_s: Longest time of a statement on the server, with its waits for locks. Then the
            statement fails, and the connection stays. On MySQL it ends queries and waits for locks,
            but no write that computes for long. Not used on SQLite.
        answer_s: Longest wait for any data from the server. Then the connection is closed. Longer
            than `statement_s`, so that a slow statement does not cost its connection.
        idle_transaction_s: The server ends a transaction that is idle for this long, and so
            releases the locks of a lost client. Longer than a relay waits for half messages while
            rows are locked (BridgeConfig.send_timeout_ms, 10 s).
    """

    # Two waits for an answer are as long as relays.ROUND_S_MAX, after which a relay is unhealthy.
    # Shorter fails on a loaded server, longer notices a lost one late.
    connect_s: int = 10
    statement_s: int = 20
    answer_s: int = 30
    idle_transaction_s: int = 60


RELAY_BOUNDS = Bounds()
# Checks of a relay's own transactions have their own connections: otherwise, when the server does
# not answer, checks would occupy all connections of the rounds. The waits for an answer and for a
# connection end before BridgeConfig.check_timeout_ms, 10 s. A check waits 2 s for locks.
CHECK_BOUNDS = Bounds(connect_s=3, statement_s=4, answer_s=5)

"""How long commands wait for a database. Needs no SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long a command that runs on waits for its database, in whole seconds.

    Attributes:
        connect_s: For a connection. On SQLite for the file's lock.
        statement_s: How long the server works on a statement, waits for locks among it; it ends as
            an error, and the connection stays. (SQLite: no other process can keep it from ending.)
        answer_s: For anything at all from the server; then the connection is given up. Longer than
            `statement_s`, which ends a statement more gently.
        idle_transaction_s: After this long the server ends a transaction whose client says
            nothing, and so lets go of the locks of a client that it has lost. Longer than a relay
            waits for half messages while rows are locked (BridgeConfig.send_timeout_ms, 10 s).
    """

    connect_s: int = 10
    statement_s: int = 20
    answer_s: int = 30
    idle_transaction_s: int = 60


RELAY_BOUNDS = Bounds()
# Checks of a relay's own transactions, on connections of their own: in front of a server that does
# not answer they would take all those of the rounds. An answer and then a connection end before
# BridgeConfig.check_timeout_ms, 10 s; a check waits 2 s for locks.
CHECK_BOUNDS = Bounds(connect_s=3, statement_s=4, answer_s=5)

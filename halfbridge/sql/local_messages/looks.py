"""Ends the transaction of a look so that the server need not plan each look anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

# How long looks of a connection use one plan. A plan fits the table's size at the time of planning.
# With 50,000 done rows, a plan for an empty table reads all rows (3.0 ms; a new plan: 0.7 ms).
# After a plan is dropped, ten looks take 2 ms more each, until the next plan is kept.
PLAN_S_MAX = 5.0
_PLAN_UNTIL = "halfbridge_plan_until"


def end_look(connection: Connection, now_s: float) -> None:
    """End the transaction of a look, which has written nothing, by COMMIT or ROLLBACK.

    At ROLLBACK, and not at COMMIT, psycopg forgets the statements that are prepared on a
    connection. To parse and plan a look takes PostgreSQL three times as long as to run it. The
    other drivers prepare nothing, so for them both ends are the same.

    Args:
        connection: The look's connection; the pool's connection remembers when its plan ends.
        now_s: Monotonic time.
    """
    until = connection.info.setdefault(_PLAN_UNTIL, now_s + PLAN_S_MAX)
    if now_s < until:
        connection.commit()
    else:
        connection.rollback()
        connection.info[_PLAN_UNTIL] = now_s + PLAN_S_MAX

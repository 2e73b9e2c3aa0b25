"""How the transaction of a look ends: so that the server need not plan each look anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

# How long looks of a connection are run by one plan. A plan is made for the table as large as the
# table was then: of 50,000 rows that are done, a plan for an empty table read all (3.0 ms, 0.7 by a
# plan of its own). The ten looks until the next plan is kept take 2 ms more each.
PLAN_S_MAX = 5.0
_PLAN_UNTIL = "halfbridge_plan_until"


def end_look(connection: Connection, now_s: float) -> None:
    """End the transaction of a look, which has written nothing.

    psycopg forgets at ROLLBACK, and not at COMMIT, which statements are prepared on a connection.
    To parse and plan a look takes PostgreSQL three times as long as to run the look. The other
    drivers prepare nothing, and to them both are the same.

    Args:
        connection: On which the look was run; a connection of the pool remembers its plan's end.
        now_s: The monotonic clock.
    """
    until = connection.info.setdefault(_PLAN_UNTIL, now_s + PLAN_S_MAX)
    if now_s < until:
        connection.commit()
    else:
        connection.rollback()
        connection.info[_PLAN_UNTIL] = now_s + PLAN_S_MAX

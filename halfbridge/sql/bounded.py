"""psycopg connections with a time-out for the server's answers.

libpq has no such time-out. TCP keepalives detect a machine that is gone. They do not detect a
device between the two machines that accepts bytes and forwards none, such as a proxy whose
connection to the server is lost.

    engine = create_engine("postgresql+psycopg://...")
    event.listen(engine, "do_connect", connecting(answer_s=30))

Settings are sent when a connection starts, and not with SET: a transaction pooler (PgBouncer)
passes a server connection on to another client with the values of SET. At the start of a connection
such a pooler accepts the settings that it tracks for each client, and refuses or ignores others.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.abc import PQGen

_R = TypeVar("_R")
_LOG = logging.getLogger("halfbridge.sql")
_REFUSED = "unsupported startup parameter"  # PgBouncer's words


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed with an OperationalError when an answer takes too long.

    Attributes:
        answer_s: Longest wait for an answer, seconds. A wait may last 0.1 s longer, which is one
            interval of psycopg's polling.
    """

    answer_s: float = float("inf")

    def wait(self, gen: PQGen[_R], *args: Any, **named: Any) -> _R:
        """Run one operation of the protocol with the time-out."""
        return super().wait(self._bounded(gen), *args, **named)

    def _bounded(self, gen: PQGen[_R]) -> PQGen[_R]:
        """Yield what `gen` yields; raise an error when nothing has arrived in time."""
        deadline = monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    deadline = monotonic() + self.answer_s
                elif monotonic() >= deadline:
                    # Closed at once: a ROLLBACK would wait as long again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"no answer from the server in {self.answer_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            found: _R = end.value
            return found


def connecting(*, answer_s: float, settings: str = "") -> Callable[..., BoundedConnection]:
    """Return a listener for SQLAlchemy's event `do_connect` that makes such connections.

    Args:
        answer_s: `BoundedConnection.answer_s` of each connection.
        settings: Server settings in libpq's form, such as `-c statement_timeout=20s`. Options in
            the URL take precedence. If a pooler refuses the settings, the connection is made
            without them, and a warning is logged once.
    """
    told: list[None] = []

    def connect(_dialect: Any, _record: Any, given: Any, named: Any) -> BoundedConnection:
        options = f"{settings} {named.get('options', '')}".strip()
        try:
            made = BoundedConnection.connect(*given, **{**named, "options": options})
        except psycopg.OperationalError as error:
            if not settings or _REFUSED not in str(error):
                raise
            made = BoundedConnection.connect(*given, **named)
            if not told:
                told.append(None)
                _LOG.warning("a pooler refuses %s: the server's own values apply", settings)
        made.answer_s = answer_s
        return made

    return connect

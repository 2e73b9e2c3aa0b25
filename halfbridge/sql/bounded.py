"""psycopg connections that wait for an answer of the server, and not for ever.

libpq has no time-out for an answer: keepalives tell of a machine that is gone, and of nothing
between two machines that takes bytes and hands none on, such as a proxy whose other end is lost.

    engine = create_engine("postgresql+psycopg://...")
    event.listen(engine, "do_connect", connecting(answer_s=30))

Settings are given at the start of a connection. A pooler of transactions (PgBouncer) hands the
server's connections from one client to the next, with what SET has set; at the start it takes the
settings that it keeps apart, and refuses others, or ignores them.
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
    """A connection that is closed, with an OperationalError, where an answer takes too long.

    Attributes:
        answer_s: How long that is, seconds; one slice of psycopg's waits (0.1 s) more at most.
    """

    answer_s: float = float("inf")

    def wait(self, gen: PQGen[_R], *args: Any, **named: Any) -> _R:
        """Run one operation of the protocol to its end."""
        return super().wait(self._bounded(gen), *args, **named)

    def _bounded(self, gen: PQGen[_R]) -> PQGen[_R]:
        """Hand on what `gen` waits for; end where nothing has come in time."""
        deadline = monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    deadline = monotonic() + self.answer_s
                elif monotonic() >= deadline:
                    # Neither kept nor asked for a ROLLBACK, for which it would wait as long again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"no answer of the server in {self.answer_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            found: _R = end.value
            return found


def connecting(*, answer_s: float, settings: str = "") -> Callable[..., BoundedConnection]:
    """Return a listener to SQLAlchemy's `do_connect` that makes such connections.

    Args:
        answer_s: Of each connection.
        settings: In libpq's form, such as `-c statement_timeout=20s`; those of the URL come behind
            them. Where a pooler refuses them, the connection has none of these, and the log says
            so, once.
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
                _LOG.warning("a pooler refuses %s: those of the server are in force", settings)
        made.answer_s = answer_s
        return made

    return connect

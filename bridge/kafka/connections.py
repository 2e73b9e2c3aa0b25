"""Finds lost connections in the log of a Kafka client, which is the only place that reports them.

With several brokers librdkafka (2.16) does not call the error callback when it loses one
connection: it reconnects, repeats the unanswered requests, and writes only a log line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# For clients whose log is read here; the lines are not shown. `log_level` 6 includes lost
# connections. The second property logs connections that brokers close: many users turn it off.
LISTENED = {"log_level": 6, "log.connection.close": True}
# SESSTMOUT: the group's coordinator has been silent for a whole session time-out, on an open
# connection. A static member may fence itself then (librdkafka #3437).
_LOST = frozenset(("FAIL", "REQTMOUT", "SESSTMOUT"))


class LostConnections:
    """A `logger` for a client: calls `on_lost` after a lost connection, answer or session.

    The client hands over its log lines where it serves its callbacks. It suppresses repetitions of
    a line about one broker for 30 s.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def log(self, _level: int, _text: str, facility: str, *_rest: str) -> None:
        """Take a log line; the client passes its facility, its name and the message."""
        if facility in _LOST:
            self._on_lost()

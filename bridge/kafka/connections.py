"""What a Kafka client says of its connections in its log, and nowhere else.

With several brokers librdkafka (2.16) does not call the error callback when one connection is
lost: it reconnects, repeats what was not answered, and all that tells of it is a line of its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# For clients that are listened to; nothing of it is shown. The level of lost connections, and that
# connections which brokers close are logged at all: many users turn that off.
LISTENED = {"log_level": 6, "log.connection.close": True}
# The last one: the group's coordinator has been silent for the whole session, on a connection that
# stands. A static member may fence itself then (librdkafka #3437).
_LOST = frozenset(("FAIL", "REQTMOUT", "SESSTMOUT"))


class LostConnections:
    """Given to a client as its `logger`: tells when it lost a connection, an answer, its session.

    The client hands its lines over where it serves its callbacks. It keeps the same line of one
    broker back for 30 s.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def log(self, _level: int, _text: str, facility: str, *_rest: str) -> None:
        """Take a line: the client fills in its facility, its name and the message."""
        if facility in _LOST:
            self._on_lost()

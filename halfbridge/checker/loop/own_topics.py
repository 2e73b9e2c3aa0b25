"""Tells that half, op or dead-letter topic are missing: a worker without them does nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# Topics may be made beside a daemon that starts: health turns red after this time.
ILL_S = 30.0
# While they are missing they are looked for at this pace, and the error is logged again at that.
OWN_POLL_S = 2.0
OWN_LOGGED_S = 300.0


class OwnTopics:
    """Whether the topics of this installation are there. Times are monotonic seconds.

    Args:
        config: The daemon's settings.
        status: Told after `ILL_S`.

    Attributes:
        missing: Names of half, op and dead-letter topic that are not there.
    """

    def __init__(self, config: CheckerConfig, status: Status) -> None:
        names = config.names
        prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
        self._create = (
            f"halfbridge topics create --bootstrap-servers {config.bootstrap_servers}{prefix}"
        )
        self._needed = (names.op, names.half, names.dead)
        self._status = status
        self._since = 0.0
        self._told_at = float("-inf")
        self.missing: tuple[str, ...] = ()

    def judge(self, topics: Collection[str], now: float) -> None:
        """Take which topics there are."""
        before, self.missing = self.missing, tuple(t for t in self._needed if t not in topics)
        if not self.missing:
            if before:
                _log.info("the topics of this installation are there now")
                self._told_at = float("-inf")
            self._status.set_ill("own topics", "")
            return
        if not before:
            self._since = now
        what = (
            f"{', '.join(self.missing)}: no such topic, or no right to see it. Nothing is delivered"
            f" until there is. Run: {self._create}"
        )
        if now - self._told_at >= OWN_LOGGED_S:
            self._told_at = now
            _log.error("%s", what)
        self._status.set_ill("own topics", what if now - self._since >= ILL_S else "")

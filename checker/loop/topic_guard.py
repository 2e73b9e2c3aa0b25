"""Stops all pairs of a worker while the half or op topic's settings make what is read untrue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.admin.topic_flaws import SHOWN_MAX, Flaws, find_flaws, told
from halfbridge.checker.loop.topic_settings import LOOK_S

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.topic_settings import TopicSettings
    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# A pair that starts waits so long for the settings; whether brokers answer at all is asked besides.
START_S = 1.0
# While pairs are stopped, or something is wrong, settings are asked for at this pace: all goes on
# soon after it was mended.
FLAWED_S = 5.0
# What is wrong and stops nothing is logged again after this time.
TOLD_S = 3600.0


class TopicGuard:
    """Judges the settings of topics, and tells what is wrong. Times are monotonic seconds.

    Args:
        config: The daemon's settings.
        settings: Asked.
        status: Told.

    Attributes:
        stops: Why no pair may be served; empty while all may be.
    """

    def __init__(self, config: CheckerConfig, settings: TopicSettings, status: Status) -> None:
        self.stops = ""
        self._config = config
        self._settings = settings
        self._status = status
        self._flaws = Flaws()
        self._told = ""
        self._told_at = float("-inf")
        self._unread: frozenset[str] = frozenset()

    def before_start(self, now: float) -> None:
        """Judge by what the settings are now; where nobody answers, by what is known of them."""
        self._settings.read(START_S)
        self._judge(now)

    def look(self, now: float) -> bool:
        """Judge what brokers have answered; never waits.

        Return whether the pairs must begin anew: to stop, or to go on.
        """
        is_flawed = self._flaws.stopping or self._flaws.alarms
        if not self._settings.look(now, FLAWED_S if is_flawed else LOOK_S):
            return False
        before = self.stops
        self._judge(now)
        return before != self.stops

    def _judge(self, now: float) -> None:
        config = self._config
        self._flaws = flaws = find_flaws(
            config.names,
            self._settings.known,
            transaction_age_ms_max=config.transaction_age_ms_max,
            bootstrap_servers=config.bootstrap_servers,
        )
        before, self.stops = self.stops, told(flaws.stopping)
        if self.stops and before != self.stops:
            _log.error(
                "all partitions stopped: %s. Nothing is delivered until then; they go on by"
                " themselves",
                self.stops,
            )
        elif before and not self.stops:
            _log.info("the settings of half and op topic are as they must be: partitions go on")
        self._status.set_ill("topics", told(flaws.alarms))
        self._status.metrics.topic_settings_wrong(
            {(each.subject, each.setting): 1 for each in (*flaws.stopping, *flaws.alarms)}
        )
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Log what stops nothing: when it is new, and then now and then."""
        text = told((*self._flaws.alarms, *self._flaws.advice))
        if text and (text != self._told or now - self._told_at >= TOLD_S):
            self._told_at = now
            _log.warning("settings of topics: %s", text)
        self._told = text
        refused = self._settings.refused
        if unread := sorted(refused.keys() - self._unread):
            more = f" and {len(unread) - SHOWN_MAX} more topics" if len(unread) > SHOWN_MAX else ""
            _log.warning(
                "the settings of %s%s cannot be read (%s): nothing stops for it, and nobody will"
                " notice should they be wrong. The daemon lacks DescribeConfigs",
                *(", ".join(unread[:SHOWN_MAX]), more, refused[unread[0]]),
            )
        self._unread = frozenset(refused)

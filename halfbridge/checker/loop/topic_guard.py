"""Stops all pairs of a worker while settings of the half or op topic make records untrustworthy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.admin.topic_flaws import SHOWN_MAX, Flaws, find_flaws, told
from halfbridge.checker.loop.topic_settings import SETTINGS_POLL_S

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.topic_settings import TopicSettings
    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# How long a start waits for the settings. Whether brokers answer at all is asked separately.
START_S = 1.0
# Interval of questions while pairs are stopped or a setting is wrong, so that a correction takes
# effect soon.
FLAWED_S = 5.0
# A wrong setting that stops nothing is logged again after this time.
FLAWS_LOGGED_S = 3600.0


class TopicGuard:
    """Judges the settings of topics, and reports wrong ones. Times are monotonic seconds.

    Args:
        config: The daemon's settings.
        settings: The known settings of topics.
        status: Shows wrong settings.

    Attributes:
        stops: Why no pair may be served; empty if pairs may be served.
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
        """Ask for the settings and judge them; without an answer, judge the known settings."""
        self._settings.read(START_S)
        self._judge(now)

    def look(self, now: float) -> bool:
        """Judge new answers of brokers; never waits.

        Returns whether the pairs must begin anew, to stop or to go on.
        """
        is_flawed = self._flaws.stopping or self._flaws.alarms
        if not self._settings.look(now, FLAWED_S if is_flawed else SETTINGS_POLL_S):
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
        """Log new wrong settings that stop nothing, and all again every FLAWS_LOGGED_S."""
        text = told((*self._flaws.alarms, *self._flaws.advice))
        if text and (text != self._told or now - self._told_at >= FLAWS_LOGGED_S):
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

"""Tells of two services that use one producer group by mistake."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.kafka.trouble import tell

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Clock
    from halfbridge.serde.records import CheckRequest

_LOG = logging.getLogger("halfbridge.bridge")
# The same topic is told of again after this time, and of so many topics at most: whoever may write
# check requests invents names.
TOLD_S = 300.0
TOPICS_MAX = 20


class SharedGroup:
    """Warns when a member is asked about a topic of its group that the member does not declare.

    Such a request is left to other members. Where two services share the group, the request may
    have been meant for the other one: the daemon asks any member, and each attempt that meets the
    wrong service is lost. It costs nothing before that happens. For one thread.

    Args:
        group: The producer group.
        clock: Tells when it is time to warn of the same topic again.
    """

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._now = clock.monotonic
        self._told: dict[str, float] = {}

    def note(self, request: CheckRequest) -> None:
        """Take a request that is left to other members."""
        topic, now = request.real_topic, self._now()
        if request.producer_group != self._group:
            return
        if now - self._told.get(topic, float("-inf")) < TOLD_S:
            return
        if topic not in self._told and len(self._told) >= TOPICS_MAX:
            return
        self._told[topic] = now
        tell(
            _LOG.warning,
            "a check of transaction %s to topic %s came to this member of group %s, which does not"
            " declare that topic and leaves the check unanswered: where another service uses the"
            " group too, give each service a producer group of its own",
            request.transaction_id,
            topic,
            self._group,
        )

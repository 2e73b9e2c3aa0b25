"""What is wrong with real topics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.shape import (
    Problem,
    Rule,
    SeenTopic,
    TopicShape,
    Wanted,
    setting_problems,
)
from halfbridge.serde.topic_shapes import MESSAGE_RESERVE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.serde.topics import TopicNames


def real_topic_problems(
    seen: Mapping[str, SeenTopic],
    real_topics: Iterable[str],
    *,
    names: TopicNames,
    bootstrap_servers: str,
) -> list[Problem]:
    """Return which real topics take less than the half topic: advice, for it may be meant so.

    A message that only the half topic takes is committed and becomes a dead letter, UNDELIVERABLE.
    """
    half = seen.get(names.half)
    half_bytes = "" if half is None else half.settings.get("max.message.bytes", "")
    if not half_bytes.isdecimal():
        return []
    most = str(int(half_bytes) - MESSAGE_RESERVE_BYTES)
    wanted = (Wanted("max.message.bytes", most, Rule.AT_LEAST, blocking=False),)
    return [
        problem
        for topic in real_topics
        if topic in seen and seen[topic].settings.get("max.message.bytes")
        for problem in setting_problems(
            TopicShape(topic, 1, wanted), seen[topic], bootstrap_servers=bootstrap_servers
        )
    ]

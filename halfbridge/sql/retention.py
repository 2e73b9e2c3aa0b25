"""How long the records of real topics can be read, according to the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from halfbridge.checker.admin.shape import SeenTopic

# Brokers look for segments to delete every 5 minutes (log.retention.check.interval.ms), and remove
# the file a minute later (file.delete.delay.ms). This is twice the sum.
_DELETION_MS = 12 * 60_000


def real_retention_ms(
    topics: Collection[str], *, bootstrap_servers: str, kafka: Mapping[str, str] | None = None
) -> int:
    """Return after how many milliseconds no record of `topics` can be read any more.

    Kafka deletes a whole segment when its newest record is old enough, and closes the active
    segment after `segment.ms`. So the result is retention.ms + segment.ms + the time for deletion.

    Args:
        topics: All real topics that a consumer group reads.
        bootstrap_servers: `host:port`, separated by commas.
        kafka: More properties of the Kafka client (security, say).

    Raises:
        ConfigError: A topic does not exist, or keeps records for ever; the user must act.
        AdminError: No broker answers.
    """
    # Imported here, because it imports the Kafka client, which `Inbox.once` does not need.
    from halfbridge.checker.admin.cluster import Cluster  # noqa: PLC0415

    seen = Cluster(bootstrap_servers, kafka=kafka).describe(topics)
    return max(_kept_ms(topic, seen.get(topic)) for topic in topics)


def _kept_ms(name: str, topic: SeenTopic | None) -> int:
    if topic is None:
        raise _refused(name, "a topic that is there")
    kept_ms = topic.settings.get("retention.ms", "")
    if "delete" not in topic.settings.get("cleanup.policy", "") or not kept_ms.isdecimal():
        raise _refused(
            name, "a topic that deletes by age: this one keeps records for ever, and so must marks"
        )
    return int(kept_ms) + int(topic.settings["segment.ms"]) + _DELETION_MS


def _refused(name: str, allowed: str) -> ConfigError:
    return ConfigError(field="topics", value=name, origin="the call", allowed=allowed)

"""How long retention leaves what is still needed of each partition pair."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.shape import Problem, alter_command
from halfbridge.checker.errors import AdminError
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.shape import SeenTopic

# Less than this is a problem: somebody has to notice, and to act.
LEFT_S_MIN = 24 * 3600.0


def retention_left_s(
    cluster: Cluster,
    seen: Mapping[str, SeenTopic],
    needed: Iterable[tuple[str, int, int]],
    *,
    now_ms: int,
) -> dict[tuple[str, int], float]:
    """Return (topic, partition) -> seconds until the first record that is needed is deleted.

    Kafka deletes whole segments: it may come later, and never sooner. Left out are partitions of
    which nothing is needed, whose topic keeps everything, or whose record cannot be read.

    Args:
        cluster: Where.
        seen: Topics with their settings.
        needed: (topic, partition, committed offset): records from that offset on are needed.
        now_ms: The time, by which brokers delete.
    """
    left_s = {}
    for topic, partition, offset in needed:
        kept_ms = seen[topic].settings.get("retention.ms", "") if topic in seen else ""
        if offset < 0 or not kept_ms.isdecimal():  # -1: for ever
            continue
        append_ms = _append_ms_at(cluster, topic, partition, offset)
        if append_ms >= 0:
            left_s[topic, partition] = (append_ms + int(kept_ms) - now_ms) / MS_PER_S
    return left_s


def retention_problems(
    left_s: Mapping[tuple[str, int], float],
    seen: Mapping[str, SeenTopic],
    *,
    bootstrap_servers: str,
) -> list[Problem]:
    """Return where less than a day is left; to keep everything for now gains the time to act."""
    problems = []
    for (topic, partition), seconds in left_s.items():
        if seconds < LEFT_S_MIN:
            kept_ms = seen[topic].settings["retention.ms"]
            what = (
                f"the oldest record that is needed is deleted in {seconds / 3600:.1f} hours"
                f" (retention.ms is {kept_ms}): find out who does not decide, and keep all for now"
            )
            fix = alter_command(topic, "retention.ms", "-1", bootstrap_servers=bootstrap_servers)
            where = f"{topic} {partition}"
            problems.append(
                Problem(where, what, fix, setting="retention.ms", code="retention-ends")
            )
    return problems


def _append_ms_at(cluster: Cluster, topic: str, partition: int, offset: int) -> int:
    """Return the append time of the first record at or above `offset`; -1 without one."""
    try:
        _, end = cluster.watermarks(topic, partition)
        reading: Any = cluster.read(topic, partition, start=offset, end=end)
        with closing(reading):
            return next((record.append_ms for record in reading), -1)
    except AdminError:  # no right to read, say: there is no line about it then
        return -1

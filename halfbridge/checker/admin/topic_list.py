"""An installation's topics as an operator reads them: internal ones, real ones with a type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.typed_topics import types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.shape import Problem
    from halfbridge.serde.topics import TopicNames


REAL_TOPICS_MAX = 500  # a page is read by a person


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """One topic.

    Attributes:
        name: Of the topic.
        use: What is written there: "half", "op", "dead letters", "check", "settings", "audit" or
            "manifests"; for a real topic its type, "transaction" or "plain".
        partitions: Number of partitions.
        retention_ms: How long records are kept, as Kafka says it, with -1 for ever; None: not told.
        is_compacted: The newest record of each key is kept for ever.
        problems: How many problems are about this topic or a partition of it.
    """

    name: str
    use: str
    partitions: int
    retention_ms: int | None
    is_compacted: bool
    problems: int


def list_topics(
    cluster: Cluster, names: TopicNames, problems: Sequence[Problem]
) -> tuple[ListedTopic, ...]:
    """Return the installation's topics that exist: internal ones, then real ones by name.

    At most `REAL_TOPICS_MAX` real topics are listed. A real topic without a type is not among them:
    nothing says which installation writes there.

    Raises:
        AdminError: brokers do not answer, or refuse; the operator acts.
    """
    uses = _uses(cluster, names)
    seen = cluster.describe(uses)
    about = [problem.subject.split()[0] for problem in problems]
    return tuple(
        ListedTopic(
            name,
            use,
            seen[name].partitions,
            _retention_ms(seen[name].settings.get("retention.ms", "")),
            "compact" in seen[name].settings.get("cleanup.policy", ""),
            about.count(name),
        )
        for name, use in uses.items()
        if name in seen
    )


def _uses(cluster: Cluster, names: TopicNames) -> dict[str, str]:
    known = cluster.topics()
    internal = {
        names.half: "half",
        names.op: "op",
        names.dead: "dead letters",
        names.settings: "settings",
        names.audit: "audit",
        names.manifest: "manifests",
        **{names.check(group): "check" for group in names.groups_of(known)},
    }
    types = types_of(cluster, names) if names.settings in known else {}
    real = sorted(types)[:REAL_TOPICS_MAX]
    return internal | {topic: types[topic].value.lower() for topic in real}


def _retention_ms(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdecimal() else None

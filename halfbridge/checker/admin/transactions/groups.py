"""Reads what is known of producer groups."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.transactions.asked import GROUPS_MAX
from halfbridge.checker.admin.transactions.group_facts import OpCounts, group_facts
from halfbridge.checker.admin.transactions.listing import Filter, list_undecided
from halfbridge.checker.admin.transactions.logs import (
    Scan,
    Span,
    edges,
    leaderless,
    offsets_at,
    partition_counts,
)
from halfbridge.checker.admin.transactions.records import op_read
from halfbridge.checker.admin.transactions.undecided import wanted_partitions
from halfbridge.checker.core.events import OpRead
from halfbridge.checker.errors import AdminError
from halfbridge.kafka.ports import Edge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.group_facts import GroupFacts
    from halfbridge.checker.admin.transactions.undecided import Stopped
    from halfbridge.serde.topics import TopicNames

# Ops that are counted, the newest ones: about two seconds' reading.
OPS_MAX = 500_000
# Groups whose ops are counted; an installation with a hundred services has a hundred.
GROUPS_COUNTED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """What `read_groups` found.

    Attributes:
        groups: Most undecided first, then by name.
        since_ms: Ops were counted from here on.
        is_whole: Whether all ops since then were counted; else the newest OPS_MAX.
        stopped: Pairs of which nobody knows what is undecided.
        at_ms: When this was found, by the operator's clock.
    """

    groups: tuple[GroupFacts, ...]
    since_ms: int
    is_whole: bool
    stopped: tuple[Stopped, ...]
    at_ms: int


def read_groups(cluster: Cluster, names: TopicNames, *, since_ms: int, only: str = "") -> Groups:
    """Return the producer groups that were seen, and what is known of each; change nothing.

    A group is seen if it has a check topic, an undecided transaction, or an op in the range of
    time.

    Args:
        cluster: Where the installation is.
        names: Of its topics.
        since_ms: Count ops from here on.
        only: The only group that is wanted; empty: all.

    Raises:
        AdminError: As `read_pairs`.
    """
    listing = list_undecided(cluster, names, Filter(group=only))
    counts, is_whole = _ops_since(cluster, names, since_ms)
    check_topics = names.groups_of(partition_counts(cluster))
    wanted = [only] if only else sorted(check_topics)
    found = group_facts(
        listing.transactions,
        counts,
        frozenset(check_topics),
        _members(cluster, names, wanted[:GROUPS_MAX]),
    )
    return Groups(
        groups=tuple(each for each in found if not only or each.group == only),
        since_ms=since_ms,
        is_whole=is_whole and not counts.left_out,
        stopped=listing.stopped,
        at_ms=listing.at_ms,
    )


def _ops_since(cluster: Cluster, names: TopicNames, since_ms: int) -> tuple[OpCounts, bool]:
    """Return the ops counted, and whether these are all."""
    known = [(names.op, number) for number in wanted_partitions(cluster, names, None)]
    away = leaderless(cluster)
    places = [place for place in known if place not in away]
    ends = edges(cluster, places, Edge.STABLE_END)
    begins = offsets_at(cluster, dict.fromkeys(places, since_ms))
    share = OPS_MAX // max(1, len(places))
    spans, is_whole = {}, len(places) == len(known)
    for place, begin in begins.items():
        if begin is not None:
            spans[place] = Span(max(begin, ends[place] - share), ends[place])
            is_whole = is_whole and begin >= ends[place] - share
    counts = OpCounts(GROUPS_COUNTED_MAX)
    for batch in Scan(cluster, spans).batches():
        for record in batch:
            read = op_read(record, cluster.signatures.verifier)
            if isinstance(read, OpRead):
                counts.add(read)
    return counts, is_whole


def _members(
    cluster: Cluster, names: TopicNames, groups: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    found = {}
    for group in groups:
        with suppress(AdminError):
            found[group] = tuple(cluster.live_members(names.check_group(group)))
    return found

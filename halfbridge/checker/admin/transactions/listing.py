"""Lists undecided transactions: what the logs say, joined with what is known of checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halfbridge.checker.admin.transactions import asked
from halfbridge.checker.admin.transactions.logs import partition_counts
from halfbridge.checker.admin.transactions.undecided import read_pairs
from halfbridge.checker.admin.transactions.waits import World, undecided_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.undecided import PairState, Stopped
    from halfbridge.checker.admin.transactions.waits import Limits, Undecided
    from halfbridge.checker.core.entries import Entry
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which undecided transactions are wanted.

    Attributes:
        group, topic: Producer group, and real topic of the first message; empty: any.
        older_than_ms: Least age. One whose age is not known is left out if this is above 0.
        partitions: The pairs; None: all.
        limit: Most transactions, the oldest ones; None: all.
    """

    group: str = ""
    topic: str = ""
    older_than_ms: int = 0
    partitions: tuple[int, ...] | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What `list_undecided` found.

    Attributes:
        transactions: Those that are wanted, the oldest first; those of unknown age last.
        undecided: How many are wanted, with those beyond the limit.
        stopped: Pairs of which nobody knows what is undecided.
        at_ms: When this was found, by the operator's clock.
    """

    transactions: tuple[Undecided, ...]
    undecided: int
    stopped: tuple[Stopped, ...]
    at_ms: int


def list_undecided(
    cluster: Cluster,
    names: TopicNames,
    wanted: Filter,
    *,
    on_progress: Callable[[int], None] = lambda _records: None,
) -> Listing:
    """Return the undecided transactions, the oldest first; change nothing.

    Args:
        cluster: Where the installation is.
        names: Of its topics.
        wanted: Which of them.
        on_progress: Called with the number of records that were read so far.

    Raises:
        AdminError: As `read_pairs`.
    """
    limits = asked.daemon_limits(cluster, names)
    pairs, stopped = read_pairs(
        cluster, names, limits, partitions=wanted.partitions, on_progress=on_progress
    )
    now_ms = cluster.ports.clock.time_ms()
    oldest_ms = now_ms - wanted.older_than_ms if wanted.older_than_ms else None
    entries = [
        (entry, pair)
        for pair in pairs
        for entry in pair.ledger.undecided()
        if _is_wanted(entry, wanted, oldest_ms)
    ]
    entries.sort(key=_age_order)
    shown = entries[: wanted.limit]
    answers = {key: op for pair in pairs for key, op in pair.answers.items()}
    world = replace(_world(cluster, names, shown, limits, now_ms), answers=answers)
    waiting = {key: kind for pair in pairs for key, kind in pair.waiting().items()}
    return Listing(
        transactions=tuple(
            undecided_of(
                entry,
                pair.partition,
                world,
                decision=waiting.get(_key(entry), "") if waiting else "",
            )
            for entry, pair in shown
        ),
        undecided=len(entries),
        stopped=tuple(stopped),
        at_ms=now_ms,
    )


def _is_wanted(entry: Entry, wanted: Filter, oldest_ms: int | None) -> bool:
    if wanted.group and entry.group != wanted.group:
        return False
    if oldest_ms is not None and not 0 <= entry.first_append_ms <= oldest_ms:
        return False
    return not wanted.topic or _first_topic(entry) == wanted.topic


def _first_topic(entry: Entry) -> str:
    return entry.messages[min(entry.messages)].metadata.real_topic


def _age_order(found: tuple[Entry, PairState]) -> tuple[bool, int, int, int]:
    entry, pair = found
    return entry.first_append_ms < 0, entry.first_append_ms, pair.partition, entry.last_record


def _key(entry: Entry) -> asked.Key:
    metadata = entry.messages[min(entry.messages)].metadata
    return metadata.transaction_id, metadata.resume_count, entry.group


def _world(
    cluster: Cluster,
    names: TopicNames,
    shown: Sequence[tuple[Entry, PairState]],
    limits: Limits,
    now_ms: int,
) -> World:
    """Ask about the groups with the most undecided transactions."""
    if not shown:
        return World(now_ms=now_ms, limits=limits)
    counts = partition_counts(cluster)
    by_group = Counter(entry.group for entry, _ in shown)
    groups = [
        group for group, _ in by_group.most_common(asked.GROUPS_MAX) if names.check(group) in counts
    ]
    members = asked.members_of(
        cluster, [names.daemon_group, *(names.check_group(group) for group in groups)]
    )
    found = asked.requests(
        cluster,
        [place for group in groups for place in asked.check_places(names, group, counts)],
        since_ms=_oldest_ms(shown),
        records_max=asked.REQUESTS_MAX,
    )
    return World(
        now_ms=now_ms,
        limits=limits,
        workers=members.get(names.daemon_group),
        check_topics=frozenset(group for group in by_group if names.check(group) in counts),
        members={
            group: members[names.check_group(group)]
            for group in groups
            if names.check_group(group) in members
        },
        asked=asked.asked_by_transaction(found),
    )


def _oldest_ms(shown: Sequence[tuple[Entry, PairState]]) -> int:
    return max(0, shown[0][0].first_append_ms)

"""Finds producer groups and their state, from their undecided transactions and recent ops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.transactions.asked import GROUPS_MAX, members_of
from halfbridge.checker.admin.transactions.logs import (
    Scan,
    Span,
    edges,
    leaderless,
    offsets_at,
    op_read,
    partition_counts,
)
from halfbridge.checker.admin.transactions.undecided import (
    Filter,
    list_undecided,
    wanted_partitions,
)
from halfbridge.checker.core.events import OpRead
from halfbridge.kafka.ports import Edge
from halfbridge.serde.records import OpKind, OpSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.undecided import Stopped
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.serde.topics import TopicNames

# Ops that are counted, the newest ones: about two seconds' reading.
OPS_MAX = 500_000
# Groups whose ops are counted; an installation with a hundred services has a hundred.
GROUPS_COUNTED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """What `read_groups` found, most undecided first, then by name."""

    groups: tuple[GroupFacts, ...]
    since_ms: int
    is_whole: bool  # whether all ops since then were counted; else the newest OPS_MAX
    stopped: tuple[Stopped, ...]  # pairs whose undecided transactions are unknown
    at_ms: int  # when this was found, by the operator's clock


def read_groups(cluster: Cluster, names: TopicNames, *, since_ms: int, only: str = "") -> Groups:
    """Return the producer groups of the logs, or `only` one, with their facts.

    A group is seen if it has a check topic, an undecided transaction, or an op since `since_ms`.
    """
    listing = list_undecided(cluster, names, Filter(group=only))
    counts, is_whole = _ops_since(cluster, names, since_ms)
    check_topics = names.groups_of(partition_counts(cluster))
    wanted = ([only] if only else sorted(check_topics))[:GROUPS_MAX]
    members = members_of(cluster, map(names.check_group, wanted))
    found = group_facts(
        listing.transactions,
        counts,
        frozenset(check_topics),
        {group: members[at] for group in wanted if (at := names.check_group(group)) in members},
    )
    return Groups(
        groups=tuple(each for each in found if not only or each.group == only),
        since_ms=since_ms,
        is_whole=is_whole and not counts.left_out,
        stopped=listing.stopped,
        at_ms=listing.at_ms,
    )


def _ops_since(cluster: Cluster, names: TopicNames, since_ms: int) -> tuple[OpCounts, bool]:
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


class Answer(NamedTuple):
    """An answer to a check; `reason` says why a checker gave no resolution."""

    at_ms: int | None
    op: str
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One producer group. Names are as clients wrote them."""

    group: str  # its name
    has_check_topic: bool  # whether the group can be asked
    # Live members of its check responders; None: not asked for, or not to be seen.
    members: tuple[str, ...] | None
    # undecided, undecided_bytes: its undecided transactions, and their bytes.
    undecided: int
    undecided_bytes: int
    # oldest_undecided_age_ms, oldest_undecided_id: the oldest of them whose age is known.
    oldest_undecided_age_ms: int | None
    oldest_undecided_id: str | None
    waits: dict[str, int]  # reason of a wait -> undecided transactions
    real_topics: tuple[str, ...]  # of the undecided transactions, sorted
    # COMMIT, ROLLBACK, UNKNOWN, DISCARD -> ops of the group in the range of time.
    ops: dict[str, int]
    # The last answer to a check in the range of time; None: there was none.
    last_answer: Answer | None


class OpCounts:
    """Counts ops by producer group and kind, and keeps the last answer of each group.

    A writer of ops may name any number of groups; only the first `groups_max` are counted.
    """

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self.by_group: dict[str, Counter[str]] = {}
        self.last_answers: dict[str, Answer] = {}
        self.left_out = 0

    def add(self, read: OpRead) -> None:
        """Count one op."""
        op = read.op
        counter = self.by_group.get(op.producer_group)
        if counter is None:
            if len(self.by_group) >= self._groups_max:
                self.left_out += 1
                return
            counter = self.by_group[op.producer_group] = Counter()
        counter[op.kind.value] += 1
        if op.source is OpSource.CHECK:
            at_ms = None if read.append_ms < 0 else read.append_ms
            before = self.last_answers.get(op.producer_group)
            if before is None or (before.at_ms or 0) <= (at_ms or 0):
                answer = Answer(at_ms, op.kind.value, op.actor, op.reason)
                self.last_answers[op.producer_group] = answer


def group_facts(
    undecided: Iterable[Undecided],
    counts: OpCounts,
    check_topics: Collection[str],
    members: Mapping[str, tuple[str, ...]],
) -> tuple[GroupFacts, ...]:
    """Return the facts of every group: most undecided first, then by name.

    `undecided` has the oldest first; `members` has the check responders of each group.
    """
    by_group: dict[str, list[Undecided]] = {}
    for each in undecided:
        by_group.setdefault(each.producer_group, []).append(each)
    names = {*by_group, *counts.by_group, *check_topics}
    found = [
        _facts(name, by_group.get(name, []), counts, check_topics, members.get(name))
        for name in names
    ]
    return tuple(sorted(found, key=lambda each: (-each.undecided, each.group)))


def _facts(
    group: str,
    undecided: list[Undecided],
    counts: OpCounts,
    check_topics: Collection[str],
    members: tuple[str, ...] | None,
) -> GroupFacts:
    oldest = next((each for each in undecided if each.age_ms is not None), None)
    ops = counts.by_group.get(group, Counter())
    return GroupFacts(
        group=group,
        has_check_topic=group in check_topics,
        members=members,
        undecided=len(undecided),
        undecided_bytes=sum(each.bytes for each in undecided),
        oldest_undecided_age_ms=None if oldest is None else oldest.age_ms,
        oldest_undecided_id=None if oldest is None else oldest.id,
        waits=dict(sorted(Counter(each.wait.value for each in undecided).items())),
        real_topics=tuple(sorted({each.real_topic for each in undecided})),
        ops={kind.value: ops[kind.value] for kind in OpKind},
        last_answer=counts.last_answers.get(group),
    )

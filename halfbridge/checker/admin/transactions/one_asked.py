"""What is known of the checks of one transaction: the requests, the answers, and who is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.transactions import asked
from halfbridge.checker.admin.transactions.trail import after
from halfbridge.checker.admin.transactions.waits import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.waits import Limits
    from halfbridge.serde.records import Op
    from halfbridge.serde.topics import TopicNames

# Check requests of a group that are read for one transaction, the newest ones.
REQUESTS_MAX = 500_000


class OneAsked:
    """Looks for what a transaction's group was asked, and answered.

    Args:
        cluster: Where the installation is.
        names: Of its topics.
        key: Transaction id, resume count and producer group.
        limits: The daemon's.
        counts: Topic -> number of partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        key: asked.Key,
        limits: Limits,
        counts: Mapping[str, int],
    ) -> None:
        self._cluster = cluster
        self._names = names
        self._key = key
        self._id, _, self._group = key
        self._limits = limits
        self._counts = counts

    def requests(self, begun_ms: int, decided_ms: int | None) -> list[asked.Request]:
        """Return the check requests about the transaction that can still be read.

        Args:
            begun_ms: When its first half message was appended.
            decided_ms: When its decision was appended; None: it is undecided.
        """
        places = asked.check_places(self._names, self._group, self._counts)
        due_ms = begun_ms + self._limits.transaction_timeout_ms
        if not places or (decided_ms is not None and decided_ms < after(due_ms)):
            return []  # it was decided before its first check was due
        needle = self._id.encode("utf-8", "surrogatepass")
        found = asked.requests(
            self._cluster,
            places,
            since_ms=after(begun_ms),
            records_max=REQUESTS_MAX,
            is_wanted=lambda value: needle in value,
        )
        return [each for each in found if each.request.transaction_id == self._id]

    def world(self, requests: Sequence[asked.Request], ops: Sequence[Op]) -> World:
        """Return what the transaction waits for is judged by.

        Args:
            requests: As `requests` returned them.
            ops: The readable ops about the transaction id, in op order.
        """
        names, group = self._names, self._group
        members = asked.members_of(self._cluster, [names.daemon_group, names.check_group(group)])
        answers = [
            op for op in ops if (op.transaction_id, op.resume_count, op.producer_group) == self._key
        ]
        group_members = members.get(names.check_group(group))
        return World(
            now_ms=self._cluster.ports.clock.time_ms(),
            limits=self._limits,
            workers=members.get(names.daemon_group),
            check_topics=frozenset([group] if names.check(group) in self._counts else []),
            members={} if group_members is None else {group: group_members},
            asked=asked.asked_by_transaction(requests),
            answers={self._key: answers[-1]} if answers else {},
        )

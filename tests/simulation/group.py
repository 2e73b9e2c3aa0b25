"""A model of a consumer group: static members, generations, and who is fenced when."""

from __future__ import annotations

from typing import NamedTuple


class RefusedError(Exception):
    """The broker refuses a request; the text is Kafka's name of the error."""


class Member(NamedTuple):
    """A member's metadata, as taken in its assignment callback.

    Attributes:
        instance: `group.instance.id`.
        member_id: What the coordinator called this incarnation.
        generation: The generation it took part in.
    """

    instance: str
    member_id: int
    generation: int


class Group:
    """One group with the range assignor; partition numbers stand for half and op partition."""

    def __init__(self, session_ms: int) -> None:
        self.generation = 0
        self.partitions = 0
        self._session_ms = session_ms
        self._ids = 0
        self._members: dict[str, int] = {}
        self._heard_ms: dict[str, int] = {}

    def join(self, instance: str, now_ms: int, *, is_quiet: bool) -> int:
        """Take a member in and return its id; a predecessor of the same instance is fenced.

        A known static member that comes back needs no new generation (`is_quiet`).
        """
        self._ids += 1
        is_known = instance in self._members
        self._members[instance] = self._ids
        self._heard_ms[instance] = now_ms
        if not (is_known and is_quiet):
            self.rebalance()
        return self._ids

    def leave(self, instance: str) -> None:
        """Let a member go."""
        if self._members.pop(instance, None) is not None:
            self.rebalance()

    def rebalance(self) -> None:
        """Begin a new generation; whoever has not heard of it is fenced."""
        self.generation += 1

    def heartbeat(self, instance: str, member_id: int, now_ms: int) -> None:
        """Take a sign of life."""
        if self._members.get(instance) == member_id:
            self._heard_ms[instance] = now_ms

    def is_fenced(self, instance: str, member_id: int) -> bool:
        """Tell whether another incarnation has taken this instance over."""
        return self._members.get(instance, member_id) != member_id

    def is_member(self, instance: str) -> bool:
        """Tell whether the instance is in the group."""
        return instance in self._members

    def assignment(self, instance: str) -> tuple[int, ...]:
        """Return the partition numbers of a member."""
        names = sorted(self._members)
        if instance not in self._members:
            return ()
        rank, count = names.index(instance), len(names)
        each, rest = divmod(self.partitions, count)
        first = rank * each + min(rank, rest)
        return tuple(range(first, first + each + (rank < rest)))

    def check(self, member: Member) -> None:
        """Check a transactional offset commit (KIP-447).

        Raises:
            RefusedError: not a member any more, or of an older generation.
        """
        known = self._members.get(member.instance)
        if known is None:
            raise RefusedError("UNKNOWN_MEMBER_ID")
        if known != member.member_id:
            raise RefusedError("FENCED_INSTANCE_ID")
        if member.generation != self.generation:
            raise RefusedError("ILLEGAL_GENERATION")

    def expire(self, now_ms: int) -> None:
        """Drop members that were not heard of."""
        for instance in list(self._members):
            if now_ms - self._heard_ms[instance] > self._session_ms:
                self.leave(instance)

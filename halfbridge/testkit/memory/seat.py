"""A group's member, as its coordinator knows it, and as it names itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.ports import Place

NO_GENERATION = -1  # Kafka's own: not a member


class Membership(NamedTuple):
    """Id and generation of a member, as transactional offset commits name them.

    Attributes:
        group: The group.
        instance: `group.instance.id`; empty for a dynamic member.
        member_id: What the coordinator called this incarnation; 0: it has not joined.
        generation: The generation it took part in.
    """

    group: str
    instance: str
    member_id: int
    generation: int


class Seat:
    """A member as its coordinator knows it.

    Attributes:
        member_id: What the coordinator called this incarnation.
        instance: Its `group.instance.id`, or empty.
        client_id: For `ask_members`.
        topics: What it subscribes to.
        session_ns: How long the coordinator waits for a sign of life.
        heard_ns: When the last one came.
        has_joined: It takes part in the rebalance at hand.
        is_heard: Tells whether its heartbeats arrive.
        assigned: Its partitions in this generation.
    """

    __slots__ = ("assigned", "client_id", "has_joined", "heard_ns", "instance", "is_heard",
                 "member_id", "session_ns", "topics")  # fmt: skip

    def __init__(
        self,
        member_id: int,
        *,
        instance: str,
        client_id: str,
        topics: frozenset[str],
        session_ns: int,
        is_heard: Callable[[], bool],
    ) -> None:
        self.member_id = member_id
        self.instance = instance
        self.client_id = client_id
        self.topics = topics
        self.session_ns = session_ns
        self.is_heard = is_heard
        self.heard_ns = 0
        self.has_joined = True
        self.assigned: frozenset[Place] = frozenset()

    @property
    def order(self) -> tuple[bool, str, int]:
        """Where it stands among the members when partitions are dealt out."""
        return not self.instance, self.instance, self.member_id

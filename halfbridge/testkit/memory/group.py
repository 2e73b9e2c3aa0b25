"""A consumer group: members, generations, committed offsets and fencing.

A change of members begins a rebalance: each member sees it in its next poll, gives its partitions
up and rejoins. Once all have, or the rebalance time-out has expired, a new generation begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.kafka.errors import Code, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.kafka.ports import TopicPartition

# Kafka's offset.metadata.max.bytes.
METADATA_BYTES_MAX = 4096
_METADATA_TOO_LARGE = 12  # Kafka's error code
Offsets = dict["TopicPartition", "tuple[int, str | None]"]


class Group:
    """One group, with the range assignor.

    Attributes:
        generation: Counts completed rebalances.
        is_rebalancing: Members have yet to rejoin.
        slots: Member id -> member.
        committed: TopicPartition -> (number of the commit, offset, metadata).
    """

    def __init__(self, partitions_of: Callable[[str], int], changed: Callable[[], None]) -> None:
        self._changed = changed
        self.generation = 0
        self.is_rebalancing = False
        self.rebalance_until_ns: int | None = None
        self.slots: dict[int, MemberSlot] = {}
        self.committed: dict[TopicPartition, tuple[int, int, str | None]] = {}
        self.pending: dict[TopicPartition, int] = {}
        self._partitions_of = partitions_of
        self._instances: dict[str, int] = {}
        self._ids = 0
        self._commits = 0

    # --- members ----------------------------------------------------------------------------

    def join(
        self,
        instance: str,
        *,
        client_id: str,
        topics: Iterable[str],
        session_ns: int,
        rebalance_ns: int,
        now_ns: int,
        is_heard: Callable[[], bool],
    ) -> int:
        """Add a member and return its id; a predecessor of the same instance is fenced.

        A static member that returns to a stable group takes its predecessor's place in the
        same generation.
        """
        self._ids += 1
        slot = MemberSlot(
            member_id=self._ids,
            instance=instance,
            client_id=client_id,
            topics=frozenset(topics),
            session_ns=session_ns,
            heard_ns=now_ns,
            is_heard=is_heard,
        )
        before = self.slots.pop(self._instances.get(instance, 0), None) if instance else None
        self.slots[slot.member_id] = slot
        if instance:
            self._instances[instance] = slot.member_id
        if before is not None and not self.is_rebalancing and before.topics == slot.topics:
            slot.assigned = before.assigned
            self._changed()
            return slot.member_id
        self.rebalance(now_ns, rebalance_ns)
        slot.has_joined = True
        self._complete_if_all_are_here()
        return slot.member_id

    def rejoin(self, member_id: int) -> None:
        slot = self.slots.get(member_id)
        if slot is not None and self.is_rebalancing:
            slot.has_joined = True
            self._complete_if_all_are_here()

    def leave(self, member_id: int, now_ns: int) -> None:
        slot = self.slots.pop(member_id, None)
        if slot is None:
            return
        if slot.instance:
            del self._instances[slot.instance]
        if self.slots:
            self.rebalance(now_ns, None)
        else:
            self.generation += 1
            self.is_rebalancing, self.rebalance_until_ns = False, None
        self._complete_if_all_are_here()

    def rebalance(self, now_ns: int, rebalance_ns: int | None) -> None:
        """Begin a rebalance; after `rebalance_ns` it completes without members that are late."""
        if self.is_rebalancing:
            return
        self.is_rebalancing = True
        self.rebalance_until_ns = None if rebalance_ns is None else now_ns + rebalance_ns
        for slot in self.slots.values():
            slot.has_joined = False
        self._changed()

    def complete(self) -> None:
        """Begin a new generation; members that have not rejoined are fenced.

        Of these, dynamic members are removed; static ones keep their place until their session
        expires.
        """
        for slot in [*self.slots.values()]:
            if not slot.has_joined and not slot.instance:
                del self.slots[slot.member_id]
        self.generation += 1
        self.is_rebalancing, self.rebalance_until_ns = False, None
        for slot in self.slots.values():
            slot.assigned = frozenset()
        for topic in sorted({topic for slot in self.slots.values() for topic in slot.topics}):
            self._deal_out(topic)
        self._changed()

    def is_fenced(self, instance: str, member_id: int) -> bool:
        """Return whether another member has taken this instance over."""
        return bool(instance) and self._instances.get(instance, member_id) != member_id

    def expire(self, now_ns: int) -> None:
        """Note heartbeats, expire sessions, and complete an overdue rebalance."""
        for slot in [*self.slots.values()]:
            if slot.is_heard():
                slot.heard_ns = now_ns
            elif now_ns - slot.heard_ns >= slot.session_ns:
                self.leave(slot.member_id, now_ns)
        if self.rebalance_until_ns is not None and now_ns >= self.rebalance_until_ns:
            self.complete()

    def next_moment(self) -> int | None:
        """Return when the next session or rebalance times out (ns); None: never."""
        moments = [
            slot.heard_ns + slot.session_ns for slot in self.slots.values() if not slot.is_heard()
        ]
        if self.rebalance_until_ns is not None:
            moments.append(self.rebalance_until_ns)
        return min(moments, default=None)

    def check(self, member: Membership, *, in_kafka_txn: bool) -> None:
        """Check that a member may commit offsets.

        Raises:
            KafkaFailure: it is fenced, unknown or of an older generation, or it has no member id
                while the group has members, which only a kafka_txn may do; the caller acts as on
                Kafka's error of this code.
        """
        if member.generation == NO_GENERATION:
            if not self.slots:
                return
            if not member.member_id and not member.instance:
                if in_kafka_txn:
                    return
                raise KafkaFailure(Code.UNKNOWN_MEMBER_ID, "Broker: Unknown member")
        known = self._instances.get(member.instance) if member.instance else member.member_id
        if known not in self.slots:
            raise KafkaFailure(Code.UNKNOWN_MEMBER_ID, "Broker: Unknown member")
        if known != member.member_id:
            raise KafkaFailure(
                Code.FENCED_INSTANCE_ID,
                "Broker: Static consumer fenced by other consumer with same group.instance.id",
            )
        if member.generation != self.generation:
            raise KafkaFailure(
                Code.ILLEGAL_GENERATION, "Broker: Specified group generation id is not valid"
            )

    # --- offsets ----------------------------------------------------------------------------

    def fetch(
        self, places: Iterable[TopicPartition], *, is_stable: bool
    ) -> Mapping[TopicPartition, tuple[int, str | None]] | None:
        """Return (offset, metadata) by place; None while a commit to them is pending: retry."""
        places = list(places)
        if is_stable and any(self.pending.get(place) for place in places):
            return None
        return {place: self.committed[place][1:] for place in places if place in self.committed}

    def next_commit(self) -> int:
        """Return the number of a new commit; of two commits, the higher number takes effect."""
        self._commits += 1
        return self._commits

    def store(self, commit: int, offsets: Offsets) -> None:
        """Store a commit, except where a newer one is stored: markers arrive in any order."""
        for place, (offset, metadata) in offsets.items():
            stored = self.committed.get(place)
            if stored is None or stored[0] < commit:
                self.committed[place] = (commit, offset, metadata)

    # --- parts ------------------------------------------------------------------------------

    def _complete_if_all_are_here(self) -> None:
        if self.is_rebalancing and all(slot.has_joined for slot in self.slots.values()):
            self.complete()

    def _deal_out(self, topic: str) -> None:
        slots = sorted(
            (slot for slot in self.slots.values() if topic in slot.topics),
            key=lambda slot: slot.order,
        )
        each, rest = divmod(self._partitions_of(topic), len(slots))
        for rank, slot in enumerate(slots):
            first = rank * each + min(rank, rest)
            numbers = range(first, first + each + (rank < rest))
            slot.assigned |= {(topic, number) for number in numbers}


def check_metadata(offsets: Offsets) -> None:
    """Reject metadata that is too large to be stored beside an offset.

    Raises KafkaFailure: it is too large; the caller acts by its code.
    """
    if any(len((metadata or "").encode()) > METADATA_BYTES_MAX for _, metadata in offsets.values()):
        raise KafkaFailure(
            _METADATA_TOO_LARGE,
            "Broker: Offset metadata string too large",
            name="OFFSET_METADATA_TOO_LARGE",
        )


NO_GENERATION = -1  # Kafka's own: not a member


class Membership(NamedTuple):
    """Id and generation of a member, as transactional offset commits name them.

    A dynamic member has an empty `instance`; a member that has not joined has the id 0.
    """

    group: str
    instance: str
    member_id: int
    generation: int


@dataclass(slots=True, eq=False, kw_only=True)
class MemberSlot:
    """A member as its coordinator knows it, until it leaves, is expelled or is replaced."""

    member_id: int
    instance: str  # `group.instance.id`; empty: a dynamic member
    client_id: str
    topics: frozenset[str]
    session_ns: int
    heard_ns: int  # when the last heartbeat came
    is_heard: Callable[[], bool]  # whether heartbeats arrive now
    has_joined: bool = True  # the current rebalance
    assigned: frozenset[TopicPartition] = frozenset()

    @property
    def order(self) -> tuple[bool, str, int]:
        """The sort key of members in the range assignor."""
        return not self.instance, self.instance, self.member_id

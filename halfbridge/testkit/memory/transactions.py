"""The coordinator of transactional producers: epochs, kafka_txns, and the markers that end them.

Hazards for clients are simulated too. Markers may be written after the commit is acknowledged,
partition by partition in any order. A request that arrives after its time-out applies to the
kafka_txn of that epoch that is open then (KAFKA-17754).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.kafka.errors import Code, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.testkit.memory.group import Group, Offsets
    from halfbridge.testkit.memory.log import Partition, PartitionTxn


@dataclass(slots=True, eq=False)
class KafkaTxn:
    """The state of one kafka_txn until it ends."""

    began_ns: int
    # None: before the first record.
    parts: dict[TopicPartition, PartitionTxn | None] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)  # whose offsets it may commit
    # Group, number of the commit, offsets.
    offsets: list[tuple[str, int, Offsets]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Identity:
    """A transactional id, as its coordinator knows it."""

    producer_id: int
    epoch: int = -1  # of the producer that has the id now
    timeout_ns: int = 0  # how long a kafka_txn of the id may be open
    txn: KafkaTxn | None = None  # the open one
    last: str = ""  # how the last kafka_txn of this epoch ended
    marking: int = 0  # how many of its markers are pending


class Marker(NamedTuple):
    """A pending marker for a partition, or for a group whose offsets are committed."""

    identity: Identity
    place: TopicPartition | str
    txn: KafkaTxn
    is_aborted: bool


class Coordinator:
    """Epochs and kafka_txns of all transactional ids.

    Attributes:
        marks_at_once: Markers are written before the end of a kafka_txn is acknowledged.
        markers: Pending transaction markers.
    """

    def __init__(
        self,
        partition_of: Callable[[TopicPartition], Partition],
        changed: Callable[[], None],
        away: Mapping[TopicPartition, bool] | None = None,
    ) -> None:
        self._away: Mapping[TopicPartition, bool] = {} if away is None else away
        self.marks_at_once = True
        self.identities: dict[str, Identity] = {}
        self.markers: list[Marker] = []
        self._partition_of = partition_of
        self._changed = changed
        self._producer_ids = 0

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def init(self, transactional_id: str, timeout_ns: int) -> tuple[int, int]:
        """Return producer id and a new epoch; the predecessor's open kafka_txn is aborted.

        Raises:
            KafkaFailure: CONCURRENT_TRANSACTIONS while markers are pending; the caller retries.
        """
        identity = self.identities.get(transactional_id)
        if identity is None:
            identity = self.identities[transactional_id] = Identity(self.new_producer_id())
        if identity.txn is not None:
            self._fence(identity)
        if identity.marking:
            raise concurrent_transactions()
        identity.epoch += 1
        identity.last = ""
        identity.timeout_ns = timeout_ns
        return identity.producer_id, identity.epoch

    def add(
        self,
        transactional_id: str,
        epoch: int,
        part: TopicPartition | Group,
        name: str,
        now_ns: int,
    ) -> None:
        """Add a partition, or a group's offsets, to the open kafka_txn; begin one if needed."""
        identity = self._identity(transactional_id, epoch)
        if identity.txn is None:
            if identity.marking:
                raise concurrent_transactions()
            identity.txn = KafkaTxn(now_ns)
        if isinstance(part, tuple):
            identity.txn.parts.setdefault(part, None)
        else:
            identity.txn.groups[name] = part

    def partition_txn(
        self, transactional_id: str, epoch: int, place: TopicPartition
    ) -> PartitionTxn:
        """Return the part of the open kafka_txn to which the next records of a producer belong.

        Raises:
            KafkaFailure: an old epoch, or no open kafka_txn covers the partition (KIP-890); the
                caller makes another producer, as on Kafka's error.
        """
        identity = self.identities[transactional_id]
        if identity.epoch != epoch:
            raise KafkaFailure(
                Code.INVALID_PRODUCER_EPOCH,
                "Broker: Producer attempted an operation with an old epoch",
            )
        txn = identity.txn
        if txn is None or place not in txn.parts:
            raise invalid_state()
        part = txn.parts[place]
        if part is None:
            part = txn.parts[place] = self._partition_of(place).begin()
        return part

    def stage(self, transactional_id: str, epoch: int, group: str, offsets: Offsets) -> None:
        """Stage offsets; they are pending until the kafka_txn ends."""
        txn = self._identity(transactional_id, epoch).txn
        if txn is None or group not in txn.groups:
            raise invalid_state()
        owner = txn.groups[group]
        txn.offsets.append((group, owner.next_commit(), offsets))
        for place in offsets:
            owner.pending[place] = owner.pending.get(place, 0) + 1

    def end(self, transactional_id: str, epoch: int, *, is_commit: bool) -> None:
        """Commit or abort the open kafka_txn of this epoch, if there is one.

        Raises:
            KafkaFailure: fenced, or the last one ended the other way; the caller makes another
                producer, as on Kafka's error.
        """
        identity = self._identity(transactional_id, epoch)
        how = "commit" if is_commit else "abort"
        if identity.txn is None:
            if identity.last != how:
                raise invalid_state()
            return
        identity.last = how
        self._end(identity, is_commit=is_commit)

    @property
    def writable(self) -> list[int]:
        """Return the indexes of the markers whose partitions are available, for `mark`."""
        away = self._away
        return [which for which, each in enumerate(self.markers) if each.place not in away]

    def mark_at_once(self) -> None:
        """Write all writable markers, if `marks_at_once`."""
        while self.marks_at_once and (writable := self.writable):
            self.mark(writable[0])

    def mark(self, which: int) -> None:
        identity, place, txn, is_aborted = self.markers.pop(which)
        identity.marking -= 1
        if isinstance(place, tuple):
            part = txn.parts[place]
            # The topic may have been deleted meanwhile, and another one made of the same name.
            partition = self._partition_of(place) if part is None else part.partition
            partition.mark(part, is_aborted=is_aborted)
            partition.fence(identity.producer_id, identity.epoch)
        else:
            owner = txn.groups[place]
            for group, commit, offsets in txn.offsets:
                if group == place:
                    for at in offsets:
                        owner.pending[at] -= 1
                    if not is_aborted:
                        owner.store(commit, offsets)
        self._changed()

    def expire(self, now_ns: int) -> None:
        """Abort the kafka_txns whose time-out has expired, with a new epoch."""
        for identity in self.identities.values():
            txn = identity.txn
            if txn is not None and now_ns - txn.began_ns >= identity.timeout_ns:
                self._fence(identity)

    def next_moment(self) -> int | None:
        """Return when the next kafka_txn times out (ns); None: none is open."""
        return min(
            (
                identity.txn.began_ns + identity.timeout_ns
                for identity in self.identities.values()
                if identity.txn is not None
            ),
            default=None,
        )

    def _identity(self, transactional_id: str, epoch: int) -> Identity:
        identity = self.identities[transactional_id]
        if identity.epoch != epoch:
            raise KafkaFailure(
                Code.PRODUCER_FENCED,
                "Broker: There is a newer producer with the same transactionalId which fences the"
                " current one",
            )
        return identity

    def _fence(self, identity: Identity) -> None:
        """Fence the producer by a new epoch, and abort its kafka_txn."""
        identity.epoch += 1
        identity.last = ""
        self._end(identity, is_commit=False)

    def _end(self, identity: Identity, *, is_commit: bool) -> None:
        txn, identity.txn = identity.txn, None
        if txn is None:
            return
        places: list[TopicPartition | str] = [*txn.parts, *txn.groups]
        identity.marking += len(places)
        self.markers += [Marker(identity, place, txn, not is_commit) for place in places]
        self.mark_at_once()


def concurrent_transactions() -> KafkaFailure:
    """Return the error while markers are pending."""
    return KafkaFailure(Code.CONCURRENT_TRANSACTIONS, is_retriable=True)


def invalid_state() -> KafkaFailure:
    """Return the error for a request that does not fit the kafka_txn's state."""
    return KafkaFailure(
        Code.INVALID_TXN_STATE, "Broker: Producer attempted a transactional operation in an invalid"
        " state",
    )  # fmt: skip

"""A model of Kafka's brokers: kafka_txns, their offsets, and the group that fences them.

What a client may rely on is here, and what hurts it too: markers arrive later than the commit is
acknowledged, partition by partition in any order; a request that comes after its time-out counts
for whatever kafka_txn of that epoch is open then (KAFKA-17754).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.group import Group, Member, RefusedError
from tests.simulation.log import Fate, Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.serde.headers import Headers

Place = tuple[str, int]
Row = tuple["bytes | None", "bytes | None", "Headers | None"]
Offsets = dict[Place, tuple[int, str]]


class KafkaTxn:
    """What one kafka_txn holds until it ends."""

    __slots__ = ("began_ms", "fates", "has_offsets", "offsets")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.fates: dict[Place, Fate | None] = {}
        self.has_offsets = False
        self.offsets: list[tuple[int, Offsets]] = []


class Identity:
    """A transactional id, as its coordinator knows it."""

    __slots__ = ("epoch", "last", "marking", "txn")

    def __init__(self) -> None:
        self.epoch = -1
        self.txn: KafkaTxn | None = None
        self.last = ""  # how the last kafka_txn of this epoch ended
        self.marking = 0  # markers of it that have not arrived yet


class Broker:
    """All partitions, the transaction coordinator, and one consumer group.

    Args:
        topics: Topic -> number of partitions.
        timeout_ms: A kafka_txn that is open for so long is aborted.
        session_ms: A member not heard of for so long is out.
    """

    def __init__(self, topics: Mapping[str, int], *, timeout_ms: int, session_ms: int) -> None:
        self.now_ms = 0
        self.partitions = {
            (topic, number): Partition(topic, number)
            for topic, count in topics.items()
            for number in range(count)
        }
        self.group = Group(session_ms)
        self.committed: dict[Place, tuple[int, int, str]] = {}
        self.identities: dict[str, Identity] = {}
        self._timeout_ms = timeout_ms
        self._stagings = 0
        self._pending: dict[Place, int] = {}
        # (identity, place or None for the offsets, what is marked, aborted?)
        self.markers: list[tuple[Identity, Place | None, KafkaTxn, bool]] = []

    # --- plain producers, readers, admins ---------------------------------------------------

    def append(
        self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int:
        """Store a record of an idempotent producer and return its offset."""
        return self.partitions[place].append(key, value, headers, self.now_ms)

    def fetch_offsets(
        self, places: Iterable[Place], *, is_stable: bool = True
    ) -> dict[Place, tuple[int, str | None]] | None:
        """Return (offset, metadata) by place, (-1, None) where there is none.

        None while a commit is pending and only stable ones are wanted: ask again.
        """
        places = list(places)
        if is_stable and any(self._pending.get(place) for place in places):
            return None
        found: dict[Place, tuple[int, str | None]] = {}
        for place in places:
            stands = self.committed.get(place)
            found[place] = (-1, None) if stands is None else stands[1:]
        return found

    def commit_offsets(self, offsets: Offsets) -> None:
        """Commit offsets outside of any kafka_txn, and of any generation (an admin's request)."""
        self._stagings += 1
        self._store(self._stagings, offsets)

    # --- transactional producers -----------------------------------------------------------

    def init_producer(self, transactional_id: str) -> int:
        """Return a new epoch; what the predecessor left open is aborted before."""
        identity = self.identities.setdefault(transactional_id, Identity())
        self._fence(identity)
        return identity.epoch

    def add(self, transactional_id: str, epoch: int, place: Place | None) -> None:
        """Have a kafka_txn open that covers a partition; None: the group's offsets.

        Raises:
            RefusedError: fenced, or the last kafka_txn's markers are still under way.
        """
        identity = self._identity(transactional_id, epoch)
        if identity.txn is None:
            if identity.marking:
                raise RefusedError("CONCURRENT_TRANSACTIONS")
            identity.txn = KafkaTxn(self.now_ms)
        if place is None:
            identity.txn.has_offsets = True
        else:
            identity.txn.fates.setdefault(place, None)

    def produce(self, transactional_id: str, epoch: int, place: Place, rows: Sequence[Row]) -> int:
        """Store records of whatever kafka_txn of this epoch is open; return the last offset.

        Raises:
            RefusedError: fenced, or no open kafka_txn covers the partition (KIP-890, part 1).
        """
        txn = self._identity(transactional_id, epoch).txn
        if txn is None or place not in txn.fates:
            raise RefusedError("INVALID_TXN_STATE")
        partition = self.partitions[place]
        fate = txn.fates[place]
        if fate is None:
            fate = txn.fates[place] = partition.begin()
        for key, value, headers in rows:
            partition.append(key, value, headers, self.now_ms, fate)
        return partition.end - 1

    def send_offsets(
        self, transactional_id: str, epoch: int, member: Member, offsets: Offsets
    ) -> None:
        """Stage offsets; they are pending until the kafka_txn ends.

        Raises:
            RefusedError: fenced, or the member is not of this generation any more.
        """
        txn = self._identity(transactional_id, epoch).txn
        if txn is None or not txn.has_offsets:
            raise RefusedError("INVALID_TXN_STATE")
        self.group.check(member)
        self._stagings += 1
        txn.offsets.append((self._stagings, offsets))
        for place in offsets:
            self._pending[place] = self._pending.get(place, 0) + 1

    def end_txn(self, transactional_id: str, epoch: int, *, is_commit: bool) -> None:
        """Commit or abort whatever kafka_txn of this epoch is open; markers follow later.

        Raises:
            RefusedError: fenced, or the last one ended the other way.
        """
        identity = self._identity(transactional_id, epoch)
        how = "commit" if is_commit else "abort"
        if identity.txn is None:
            if identity.last != how:
                raise RefusedError("INVALID_TXN_STATE")
            return
        identity.last = how
        self._end(identity, is_commit=is_commit)

    def is_ending(self, transactional_id: str) -> bool:
        """Tell whether markers of the last kafka_txn are still under way."""
        return self.identities[transactional_id].marking > 0

    # --- what brokers do by themselves ------------------------------------------------------

    def mark(self, which: int) -> None:
        """Have one marker arrive."""
        identity, place, txn, is_aborted = self.markers.pop(which)
        identity.marking -= 1
        if place is not None:
            self.partitions[place].mark(txn.fates[place], is_aborted=is_aborted)
            return
        for staging, offsets in txn.offsets:
            for at in offsets:
                self._pending[at] -= 1
            if not is_aborted:
                self._store(staging, offsets)

    def mark_all(self) -> None:
        """Have all markers arrive."""
        while self.markers:
            self.mark(0)

    def expire(self) -> None:
        """Abort what is open for too long, with a new epoch; drop members not heard of."""
        for identity in self.identities.values():
            txn = identity.txn
            if txn is not None and self.now_ms - txn.began_ms > self._timeout_ms:
                self._fence(identity)
        self.group.expire(self.now_ms)

    # --- parts -----------------------------------------------------------------------------

    def _identity(self, transactional_id: str, epoch: int) -> Identity:
        identity = self.identities[transactional_id]
        if identity.epoch != epoch:
            raise RefusedError("INVALID_PRODUCER_EPOCH")
        return identity

    def _fence(self, identity: Identity) -> None:
        if identity.txn is not None:
            self._end(identity, is_commit=False)
        for which in range(len(self.markers) - 1, -1, -1):
            if self.markers[which][0] is identity:
                self.mark(which)
        identity.epoch += 1
        identity.last = ""

    def _end(self, identity: Identity, *, is_commit: bool) -> None:
        txn, identity.txn = identity.txn, None
        if txn is None:
            return
        places: list[Place | None] = list(txn.fates)
        if txn.has_offsets:
            places.append(None)
        identity.marking += len(places)
        self.markers += [(identity, place, txn, not is_commit) for place in places]

    def _store(self, staging: int, offsets: Offsets) -> None:
        """Let the newer of two commits stand, whatever order their markers arrive in."""
        for place, (offset, metadata) in offsets.items():
            stands = self.committed.get(place)
            if stands is None or stands[0] < staging:
                self.committed[place] = (staging, offset, metadata)

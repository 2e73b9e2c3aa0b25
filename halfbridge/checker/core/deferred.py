"""Committed transactions whose delivery waits for a real topic. Pure.

Ops of a pair apply in order, so a COMMIT that waited at the front for a missing topic or partition
would hold up every later decision. It is deferred instead: the op counts as applied, O moves on,
and the op's offset is committed with the progress (D, `serde.progress`). T stays at or below it, so
a rebuild reads the op again and defers it again. The delivery is written exactly once: in the
kafka_txn whose progress no longer lists the op.

To keep the order per key in each real topic, every later transaction that has a message with the
same key for the same topic is deferred as well.

    op 10 commits A, key 1 to "bills" and to "away"   deferred          D = 10
    op 11 commits B, key 2 to "bills"                 delivered         D = 10
    op 12 commits C, key 1 to "orders"                delivered         D = 10
    op 13 commits E, key 1 to "bills"                 deferred too      D = 10,13
    "away" is back                                    A, E delivered    D empty
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.core.events import NO_KEY, HalfRead
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import OpRead

# Messages of a COMMIT, append time of the op, whether the delivery was deferred before -> whether
# the delivery must wait. The core calls it once for each delivery, and it answers by what is known.
Awaits = Callable[[Sequence[HalfRead], int, bool], bool]

_Key = tuple[int, str]  # number of a message's key, its real topic

# Kafka takes 4,096 bytes of metadata by default (offset.metadata.max.bytes). The other fields of
# the progress, with the first deferred offset, take at most 160.
DEFERRED_CHARS_MAX = 3_500
# Deferred transactions of a pair. Each is judged again after each refresh of topics: about
# 2 us each. Differences of op offsets up to 99 fit, with their commas, into DEFERRED_CHARS_MAX.
DEFERRED_MAX = 1_000
# Different keys of their messages, some 150 bytes each. A transaction may have a thousand.
KEYS_MAX = 20_000
# Their messages, with a key or not: each is judged again, too, at 1 us, and a transaction may have
# a thousand. So a pair takes 50 ms for it, at most every half second.
MESSAGES_MAX = 50_000
# A partition that exists comes back, so it is waited for at least this long: a broker that restarts
# is back sooner, and so is a new leader.
AWAY_MS_MIN = 30_000
# For this time a partition number that is too high may be right: the topic may have grown since it
# was looked up, and brokers learn of new partitions one after the other.
PARTITION_NEW_MS = 2_000
# Why a topic or a partition that does not exist cannot be written.
MISSING = "does not exist"


class Lack(NamedTuple):
    """Why a message cannot be written to its real topic now.

    Attributes:
        partition: PARTITION_BY_KEY: the topic is missing, or any of its partitions.
        why: What is wrong, as in "has no leader".
        limit_ms: The longest wait, measured from the append time of the COMMIT.
        left_ms: The wait does not end before the partition was away for this time.
    """

    topic: str
    partition: int
    why: str
    limit_ms: int = 0
    left_ms: int = 0

    @property
    def is_away(self) -> bool:
        """Whether topic and partition exist, and come back with their brokers."""
        return self.why != MISSING

    def __str__(self) -> str:
        where = "" if self.partition == PARTITION_BY_KEY else f"partition {self.partition} of "
        return f"{where}topic {self.topic} {self.why}"


def missing_topic(topic: str, gone_ms: int) -> Lack:
    """Return the lack of a whole topic; `gone_ms` is the daemon's `topic_gone_ms`."""
    return Lack(topic, PARTITION_BY_KEY, MISSING, gone_ms)


def missing_partition(topic: str, partition: int) -> Lack:
    """Return the lack of a partition that the topic does not have, or not yet."""
    return Lack(topic, partition, MISSING, PARTITION_NEW_MS)


def away_ms(gone_ms: int) -> int:
    """Return how long a delivery waits for a partition that exists and takes no records."""
    return max(gone_ms, AWAY_MS_MIN)


class Deferred:
    """The deferred transactions of a pair with their COMMITs, in op order."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._keys: Counter[_Key] = Counter()
        self._messages = 0
        self._chars = 0  # of the differences of `offsets`, each with its comma

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[Entry, OpRead]]:
        return ((each.entry, each.read) for each in self._waiting)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Op offsets of the COMMITs, ascending."""
        return tuple(each.read.offset for each in self._waiting)

    @property
    def is_over_limit(self) -> bool:
        """Whether the oldest transaction can wait no longer, because there are too many."""
        return (
            len(self._waiting) > DEFERRED_MAX
            or self._chars > DEFERRED_CHARS_MAX
            or len(self._keys) > KEYS_MAX
            or self._messages > MESSAGES_MAX
        )

    def is_older_than(self, op: int) -> bool:
        """Tell whether the oldest COMMIT is below op offset `op`."""
        return bool(self._waiting) and self._waiting[0].read.offset < op

    def holds_key_of(self, entry: Entry) -> bool:
        """Tell whether `entry` must come after a deferred transaction, by a key and a topic."""
        return any(key in self._keys for key in _keys_of(entry))

    def add(self, entry: Entry, read: OpRead) -> None:
        """Add a transaction; op offsets ascend from call to call."""
        added = _Waiting(entry, read, _keys_of(entry), len(entry.messages))
        self._messages += added.messages
        if self._waiting:
            self._chars += _chars(self._waiting[-1], added)
        self._waiting.append(added)
        self._keys.update(added.keys)

    def pop(self) -> tuple[Entry, OpRead]:
        """Remove and return the oldest transaction."""
        taken = self._waiting.popleft()
        self._messages -= taken.messages
        for key in taken.keys:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        if self._waiting:
            self._chars -= _chars(taken, self._waiting[0])
        return taken.entry, taken.read


class _Waiting(NamedTuple):
    entry: Entry
    read: OpRead
    # When it was deferred: a late message may bring others.
    keys: frozenset[_Key]
    messages: int


def _keys_of(entry: Entry) -> frozenset[_Key]:
    return frozenset(
        (half.key_number, half.metadata.real_topic)
        for half in entry.messages.values()
        if half.key_number != NO_KEY
    )


def _chars(before: _Waiting, after: _Waiting) -> int:
    return len(str(after.read.offset - before.read.offset)) + 1

"""Finds what a broker refuses for good: everything on a topic, or one transaction.

librdkafka often fails a whole kafka_txn without naming the record. A transaction is blamed only
when nothing else can be meant. A size that a topic refuses is learned for the topic: then dead
letters become stubs, copies are discarded, and larger messages are dead letters. What else the
broker refuses of the daemon's own topics is no transaction's fault, and an operator's to mend.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from halfbridge.checker.loop.sizes import bytes_alone
from halfbridge.serde.limits import STUB_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.core.plan import Delivery, Plan
    from halfbridge.checker.loop.failures import KafkaTxnFailedError
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.checker.loop.questions import Questions
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.loop.sizes import Sizes
    from halfbridge.serde.topics import TopicNames

# A batch that the broker refuses is cut down by this factor until one transaction is left.
BISECT_FACTOR = 8


class Batch(Enum):
    """How much is sent to a partition at once; on this a topic's limit of sizes is.

    Three steps, since each costs a failed kafka_txn.
    """

    USUAL = "as the client likes"
    SMALL = "some records"
    ONE_RECORD = "each alone"


class Blame:
    """Cuts the batches of a pair down until `routes` knows what is refused.

    Args:
        names: Of the installation's own topics.
        routes: Told what was found.
        sizes: Told what topics refuse for its size.
        questions: Asked for rights.
        limit_max: Records in a batch when all is well.

    Attributes:
        batch: What the client may send to a partition at once.
    """

    def __init__(
        self,
        names: TopicNames,
        routes: Routes,
        sizes: Sizes,
        questions: Questions,
        *,
        limit_max: int,
    ) -> None:
        self._limits: dict[int, int] = {}
        self.batch = Batch.USUAL
        self._limit_max = limit_max
        self._names = names
        self._routes = routes
        self._sizes = sizes
        self._questions = questions
        self._largest: dict[str, int] = {}

    def limit(self, partition: int) -> int:
        """Return how many records a pair's next batch may have."""
        return self._limits.get(partition, self._limit_max)

    def watched(self, records: Iterator[Outgoing]) -> Iterator[Outgoing]:
        """Return `records`, all that are written next; where each goes alone, sizes are noted."""
        self._largest = {}
        return records if self.batch is not Batch.ONE_RECORD else self._measured(records)

    def succeeded(self, plans: Mapping[int, Plan]) -> None:
        """Take that a batch went through: the next may be larger, of pairs that delivered.

        A batch of other things, dead letters say, proves nothing of what was refused: made larger
        by each of them, no batch would ever hold a refused transaction alone.
        """
        for partition in [partition for partition, plan in plans.items() if plan.deliveries]:
            limit = self._limits.pop(partition, self._limit_max) * 2
            if limit < self._limit_max:
                self._limits[partition] = limit

    def failed(self, error: KafkaTxnFailedError, plans: Mapping[int, Plan], now_ms: int) -> None:
        """Take that the broker refuses something in `plans` for good.

        Args:
            error: What it said.
            plans: The batch: partition -> what was to be written for the pair.
            now_ms: Monotonic milliseconds.

        Raises:
            InputLostError: no broker answered; try again.
        """
        if error.too_large and self._takes_less(error.topic, now_ms):
            return
        deliveries = [one for plan in plans.values() for one in plan.deliveries]
        if not deliveries or (error.topic and self._names.is_internal(error.topic)):
            return
        if error.topic_refused:
            refused = [error.topic] if error.topic else self._without_right(deliveries)
            for topic in refused or ():
                self._routes.refuse_topic(topic, str(error), now_ms)
            if refused is not None:
                return
        suspects = [one for one in deliveries if not error.topic or _goes_to(one, error.topic)]
        if len(suspects) == 1 and (error.topic or _is_alone(suspects[0], plans.values())):
            self._routes.refuse(suspects[0], str(error))
            if error.too_large:
                self.batch = Batch.USUAL  # that record was too large, and nothing else
            return
        for partition, plan in plans.items():
            if any(not error.topic or _goes_to(one, error.topic) for one in plan.deliveries):
                self._limits[partition] = max(1, self.limit(partition) // BISECT_FACTOR)

    def _measured(self, records: Iterator[Outgoing]) -> Iterator[Outgoing]:
        largest = self._largest
        for record in records:
            size_bytes = bytes_alone(record.key, record.value, record.headers)
            largest[record.topic] = max(size_bytes, largest.get(record.topic, 0))
            yield record

    def _takes_less(self, topic: str, now_ms: int) -> bool:
        """Send less at once, or learn what a topic takes; tell whether either is of use."""
        if self.batch is not Batch.ONE_RECORD:
            # Perhaps no record is too large, but several that were sent at once.
            self.batch = Batch.SMALL if self.batch is Batch.USUAL else Batch.ONE_RECORD
            return True
        if not self._learn(topic, now_ms):
            return False
        self.batch = Batch.USUAL  # a record was too large, and nothing else
        return True

    def _learn(self, topic: str, now_ms: int) -> bool:
        """Learn what a topic takes; tell whether the next kafka_txn is another one by that.

        Each record went alone and one was refused, so the largest is refused too. A dead letter
        becomes a stub, and loses nothing but room, so that half of its size is tried next; of other
        records no size is refused that the topic may take.
        """
        largest = self._largest.get(topic)
        if largest is None:
            return False
        if topic != self._names.dead:
            self._sizes.learn(topic, largest - 1, now_ms)
            return topic != self._names.op
        self._sizes.learn(topic, largest // 2, now_ms)
        return largest > STUB_BYTES_MAX

    def _without_right(self, deliveries: Sequence[Delivery]) -> list[str] | None:
        """Return the real topics that may not be written; None when no broker can tell."""
        named = {half.metadata.real_topic for one in deliveries for half in one.messages}
        topics = sorted(filter(self._routes.exists, named))
        may_write = self._questions.may_write(topics)
        if None in may_write.values():
            return None
        return [topic for topic, allowed in may_write.items() if not allowed]


def _goes_to(delivery: Delivery, topic: str) -> bool:
    return any(half.metadata.real_topic == topic for half in delivery.messages)


def _is_alone(delivery: Delivery, plans: Iterable[Plan]) -> bool:
    """Tell whether nothing is in the batch but what became of this transaction's decision."""
    return not any(
        plan.junk
        or plan.put_backs
        or plan.discards
        or any(dead.op_offset != delivery.op_offset for dead in plan.dead)
        for plan in plans
    )

"""Finds what a broker refuses permanently: all records of a topic, or one transaction.

librdkafka often fails a whole kafka_txn without naming the record. A transaction is blamed only if
no other record can be the cause. A refused size is remembered for its topic: then dead letters
become stubs, copies discards, and larger messages dead letters. For other refusals by the daemon's
own topics no transaction is blamed; an operator corrects the topic.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from halfbridge.serde.limits import STUB_BYTES_MAX
from halfbridge.serde.record_size import bytes_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.checker.core.plan import Delivery, Plan
    from halfbridge.checker.loop.clients import Questions
    from halfbridge.checker.loop.failures import KafkaTxnFailedError
    from halfbridge.checker.loop.publish import Outgoing, Sizes
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.serde.topics import TopicNames

# A refused batch is divided by this factor until one transaction is left: four times from 5,000
# (batch_records_max), where halving would repeat the batch twelve times.
BISECT_FACTOR = 8
# After a refusal without a reason, records go alone for this many kafka_txns. The refused records
# are read again at once, and come in the first kafka_txns; later ones need not be slow.
DOUBTFUL_MAX = 100


class SendSize(Enum):
    """How much is sent to a partition at once. Few steps: each costs a failed kafka_txn."""

    USUAL = "as the client likes"
    SMALL = "some records"
    ONE_RECORD = "each alone"


class Blame:
    """Makes the batches of a pair smaller until `routes` knows what is refused."""

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
        self.send_size = SendSize.USUAL
        self._limit_max = limit_max
        self._names = names
        self._routes = routes
        self._sizes = sizes
        self._questions = questions
        self._largest: dict[str, int] = {}
        self._doubtful = 0  # kafka_txns for which records still go alone, to tell a reason

    def limit(self, partition: int) -> int:
        """Return the most records of a pair's next batch."""
        return self._limits.get(partition, self._limit_max)

    def watch(self, records: Iterable[Outgoing]) -> None:
        """Note the largest record of each topic of the next kafka_txn if each is sent alone."""
        self._largest = {}
        largest = self._largest
        if self.send_size is not SendSize.ONE_RECORD:
            return
        for record in records:
            size_bytes = bytes_alone(record.key, record.value, record.headers)
            largest[record.topic] = max(size_bytes, largest.get(record.topic, 0))

    def succeeded(self, plans: Mapping[int, Plan]) -> None:
        """Record that `plans` were committed: pairs that delivered get a larger next batch.

        A batch without deliveries, such as one of dead letters, does not count: otherwise no batch
        would ever hold a refused transaction alone.
        """
        for partition in [partition for partition, plan in plans.items() if plan.deliveries]:
            limit = self._limits.pop(partition, self._limit_max) * 2
            if limit < self._limit_max:
                self._limits[partition] = limit
        if self._doubtful == 1:
            self._end_doubt()
        self._doubtful = max(0, self._doubtful - 1)

    def failed(self, error: KafkaTxnFailedError, plans: Mapping[int, Plan], now_ms: int) -> None:
        """Record that the broker permanently refuses something in `plans` (by partition).

        No transaction is blamed for a refused timestamp. InputLostError: no broker answered; try
        again.
        """
        if error.is_vague and self.send_size is not SendSize.ONE_RECORD:
            # The client reports the broker's reason only for a record that is sent alone.
            self.send_size, self._doubtful = SendSize.ONE_RECORD, DOUBTFUL_MAX
            return
        self._end_doubt()
        if not error.untimely:
            self._find(error, plans, now_ms)

    def _find(self, error: KafkaTxnFailedError, plans: Mapping[int, Plan], now_ms: int) -> None:
        if error.too_large and self._takes_less(error.topic, now_ms):
            return
        deliveries = [one for plan in plans.values() for one in plan.deliveries]
        if not deliveries or (error.topic and self._names.is_internal(error.topic)):
            return
        if error.topic_refused:
            refused = [error.topic] if error.topic else self._without_right(deliveries)
            for topic in refused or ():
                self._routes.refuse_topic(topic, f"refuses this daemon: {error}", now_ms)
            if refused is not None:
                return
        suspects = [one for one in deliveries if not error.topic or _goes_to(one, error.topic)]
        if len(suspects) == 1 and (error.topic or _is_alone(suspects[0], plans.values())):
            self._routes.refuse(suspects[0], str(error))
            if error.too_large:
                self.send_size = SendSize.USUAL  # the cause is found: this record was too large
            return
        for partition, plan in plans.items():
            if any(not error.topic or _goes_to(one, error.topic) for one in plan.deliveries):
                self._limits[partition] = max(1, self.limit(partition) // BISECT_FACTOR)

    def _end_doubt(self) -> None:
        if self._doubtful:
            self.send_size, self._doubtful = SendSize.USUAL, 0

    def _takes_less(self, topic: str, now_ms: int) -> bool:
        """Change one thing about the next batch of a refused size; tell whether that may help.

        The client sends less at once: 32 KiB, then one record. From a record that is refused alone,
        the topic's limit is learned, and the client sends as much as before.
        """
        if self.send_size is not SendSize.ONE_RECORD:
            # Perhaps no single record is too large, but several records that were sent at once.
            self.send_size = (
                SendSize.SMALL if self.send_size is SendSize.USUAL else SendSize.ONE_RECORD
            )
            return True
        if not self._learn(topic, now_ms):
            return False
        self.send_size = SendSize.USUAL  # the cause is found: a record was too large
        return True

    def _learn(self, topic: str, now_ms: int) -> bool:
        """Learn a topic's limit; tell whether the next kafka_txn will be different.

        Each record was sent alone and one was refused, so the largest is refused too. The limit is
        one byte less, so that no size is refused that the topic may take; half of it for the
        dead-letter topic, because a stub loses only the body. A message of 800,000 bytes sets
        799,999, a dead letter 400,000.
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
        """Return the real topics without a right to write; None if no broker can tell."""
        named = {half.metadata.real_topic for one in deliveries for half in one.messages}
        topics = sorted(filter(self._routes.exists, named))
        may_write = self._questions.may_write(topics)
        if None in may_write.values():
            return None
        return [topic for topic, allowed in may_write.items() if not allowed]


def _goes_to(delivery: Delivery, topic: str) -> bool:
    return any(half.metadata.real_topic == topic for half in delivery.messages)


def _is_alone(delivery: Delivery, plans: Iterable[Plan]) -> bool:
    """Tell whether the batch holds only the records of this transaction's decision."""
    return not any(
        plan.junk
        or plan.put_backs
        or plan.discards
        or any(dead.op_offset != delivery.op_offset for dead in plan.dead)
        for plan in plans
    )

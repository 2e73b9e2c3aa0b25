"""From the ledger's plan to the records of one kafka_txn. Pure: says what, not how.

The body of a half record is the consumed message itself (`key()`, `value()`, `headers()`): it is
handed from consumer to producer untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from checker.core.plan import Check, DeadHalf, DeadJunk, Delivery, Plan, PutBack
from serde import headers as names
from serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from serde.records import NO_OFFSET, NO_TIMESTAMP, CheckRequest, DeadLetter, DeadReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from serde.topics import TopicNames

ANY_PARTITION = -1
_NO_CHECK_TIMES = -1


class Body(Protocol):
    """What a consumed record offers."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value."""

    def headers(self) -> names.Headers | None:
        """Return the headers."""


class Outgoing(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: names.Headers
    timestamp_ms: int
    is_copy: bool = False


class Publisher:
    """Turns the plans of one partition pair into records.

    Args:
        topics: Names of the installation's topics.
        partition: Number of the pair.
        refusal: Delivery -> why the broker refuses it for good; empty when it does not.
    """

    def __init__(
        self, topics: TopicNames, partition: int, refusal: Callable[[Delivery], str]
    ) -> None:
        self._topics = topics
        self._partition = partition
        self._refusal = refusal
        self.undeliverable = 0

    def records(self, plan: Plan, now_ms: int) -> Iterator[Outgoing]:
        """Yield what `plan` writes, in order: deliveries, dead letters, copies, discards.

        Timestamps are partition time, which comes from the brokers, as long as these take it
        (`Stamps`): a worker's wall clock decides nothing.
        """
        for delivery in plan.deliveries:
            refused = self._refusal(delivery)
            if refused:
                self.undeliverable += len(delivery.messages)
                yield from self._undeliverable(delivery, refused, now_ms)
            else:
                yield from self._deliver(delivery, now_ms)
        for dead in plan.dead:
            yield self._bury(dead, now_ms)
        for junk in plan.junk:
            yield self._bury_junk(junk, now_ms)
        for put_back in plan.put_backs:
            yield self._put_back(put_back, now_ms)
        for op in plan.discards:
            key = op.transaction_id.encode()
            yield Outgoing(self._topics.op, self._partition, key, OP.encode(op), [], now_ms)

    def check(self, check: Check, now_ms: int) -> Outgoing:
        """Return the request that asks about a transaction."""
        metadata = check.half.metadata
        request = CheckRequest(
            transaction_id=metadata.transaction_id,
            sent_timestamp=now_ms,
            half_offset=check.half.offset,
            half_partition=self._partition,
            resume_count=metadata.resume_count,
            message_index=metadata.message_index,
            producer_group=metadata.producer_group,
            real_topic=metadata.real_topic,
            real_partition=metadata.real_partition,
            check_number=check.check_number,
            attempt=check.attempt,
            born_timestamp=metadata.born_timestamp,
            last_half_offset=check.last_offset,
        )
        body: Any = check.half.body
        return Outgoing(
            self._topics.check(metadata.producer_group),
            ANY_PARTITION,
            body.key(),
            body.value(),
            [*(body.headers() or ()), (names.CHECK, CHECK_REQUEST.encode(request))],
            now_ms,
        )

    def _deliver(self, delivery: Delivery, now_ms: int) -> Iterator[Outgoing]:
        for half in delivery.messages:
            body: Any = half.body
            metadata = half.metadata
            yield Outgoing(
                metadata.real_topic,
                metadata.real_partition,
                body.key(),
                body.value(),
                names.real_headers(
                    names.user_headers(body.headers()),
                    metadata.transaction_id,
                    metadata.born_timestamp,
                ),
                now_ms,
            )

    def _undeliverable(self, delivery: Delivery, refused: str, now_ms: int) -> Iterator[Outgoing]:
        for half in delivery.messages:
            yield self._bury(
                DeadHalf(
                    half,
                    DeadReason.UNDELIVERABLE,
                    refused,
                    delivery.check_times,
                    delivery.op_offset,
                    delivery.op_append_ms,
                ),
                now_ms,
            )

    def _bury(self, dead: DeadHalf, now_ms: int) -> Outgoing:
        letter = DeadLetter(
            reason=dead.reason,
            detail=dead.detail,
            check_times=dead.check_times,
            decided_timestamp=dead.op_append_ms,
            op_offset=dead.op_offset,
            source_topic=self._topics.half,
            source_partition=self._partition,
            source_offset=dead.half.offset,
        )
        return self._dead_letter(dead.half.body, letter, now_ms)

    def _bury_junk(self, junk: DeadJunk, now_ms: int) -> Outgoing:
        letter = DeadLetter(
            reason=DeadReason.INVALID,
            detail=junk.record.detail,
            check_times=_NO_CHECK_TIMES,
            decided_timestamp=NO_TIMESTAMP,
            op_offset=NO_OFFSET,
            source_topic=self._topics.op if junk.is_op else self._topics.half,
            source_partition=self._partition,
            source_offset=junk.record.offset,
        )
        return self._dead_letter(junk.record.body, letter, now_ms)

    def _dead_letter(self, body: Any, letter: DeadLetter, now_ms: int) -> Outgoing:
        return Outgoing(
            self._topics.dead,
            ANY_PARTITION,
            body.key(),
            body.value(),
            [*(body.headers() or ()), (names.DEAD, DEAD_LETTER.encode(letter))],
            now_ms,
        )

    def _put_back(self, put_back: PutBack, now_ms: int) -> Outgoing:
        body: Any = put_back.half.body
        return Outgoing(
            self._topics.half,
            self._partition,
            body.key(),
            body.value(),
            [
                *names.without_half(body.headers()),
                (names.HALF, HALF_METADATA.encode(put_back.metadata)),
            ],
            now_ms,
            is_copy=True,
        )

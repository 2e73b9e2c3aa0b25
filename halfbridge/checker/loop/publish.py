"""Makes the records of a kafka_txn from the ledgers' plans. Pure.

The body of a half record is the consumed message itself (`key()`, `value()`, `headers()`): it goes
from consumer to producer unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.core.plan import Check, DeadHalf, DeadJunk, Delivery, Plan, PutBack
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.sizes import bytes_alone, bytes_at_most
from halfbridge.serde import headers as names
from halfbridge.serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.errors import NoSigningKeyError
from halfbridge.serde.limits import shortened
from halfbridge.serde.records import (
    NO_OFFSET,
    NO_TIMESTAMP,
    CheckRequest,
    DeadDecision,
    DeadLetter,
    DeadReason,
    HalfMetadata,
    Op,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.loop.sizes import Sizes
    from halfbridge.serde.signer import Signer
    from halfbridge.serde.topics import TopicNames

ANY_PARTITION = -1
_NO_CHECK_TIMES = -1
# By how much a real record may be larger than its half record: three headers of 117 bytes replace
# RMQ_HALF.
_REAL_GROWTH_BYTES = 120


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
        routes: Where deliveries go, and which are refused.
        sizes: The size limits of topics.
        signer: Signs copies and discards; None: they are written without signatures.

    Attributes:
        refused: Messages of the plan at hand that became dead letters here, without their bodies.
        stubs: Dead letters of the plan at hand that only refer to their records.
    """

    def __init__(
        self,
        topics: TopicNames,
        partition: int,
        routes: Routes,
        sizes: Sizes,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer
        self._topics = topics
        self._partition = partition
        self._routes = routes
        self._sizes = sizes
        self.refused: list[DeadHalf] = []
        self.stubs = 0

    def records(
        self, plan: Plan, now_ms: int, partition_ms: int | None = None
    ) -> Iterator[Outgoing]:
        """Yield the records of `plan`, in order: deliveries, dead letters, copies, discards.

        Args:
            plan: What to write.
            now_ms: Timestamps: partition time, which comes from the brokers, unless brokers refuse
                it (`Stamps`). A worker's wall clock decides nothing.
            partition_ms: Partition time, of signatures; None: `now_ms`.

        Raises:
            KafkaTxnFailedError: no key may sign a copy or a discard now. Nothing is written then,
                and nothing lost: a copy without a signature would not be believed.
        """
        signed_ms = now_ms if partition_ms is None else partition_ms
        self.refused, self.stubs = [], 0
        for delivery in plan.deliveries:
            refused = self._routes.refusal(delivery) or self._too_large(delivery)
            if refused:
                yield from self._undeliverable(delivery, refused, now_ms)
            else:
                yield from self._deliver(delivery, now_ms)
        for dead in plan.dead:
            yield self._bury(dead, now_ms)
        for junk in plan.junk:
            yield self._bury_junk(junk, now_ms)
        for put_back in plan.put_backs:
            yield self._put_back(put_back, now_ms, signed_ms)
        for op in plan.discards:
            yield self._discard(op, now_ms, signed_ms)

    def check(self, check: Check, now_ms: int) -> Outgoing:
        """Return the request of a check."""
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
            yield self._real_record(half, now_ms)

    def _real_record(self, half: HalfRead, now_ms: int) -> Outgoing:
        body: Any = half.body
        metadata = half.metadata
        key = body.key()
        return Outgoing(
            metadata.real_topic,
            self._routes.place(metadata, key),
            key,
            body.value(),
            names.real_headers(
                names.user_headers(body.headers()),
                metadata.transaction_id,
                metadata.born_timestamp,
                metadata.message_index,
            ),
            now_ms,
        )

    def _too_large(self, delivery: Delivery) -> str:
        """Return in words which message is too large for its real topic; empty for none."""
        for half in delivery.messages:
            topic = half.metadata.real_topic
            limit = self._sizes.limit(topic)
            if limit is None or half.size_bytes + _REAL_GROWTH_BYTES <= limit:
                continue
            record = self._real_record(half, 0)
            size_bytes = bytes_alone(record.key, record.value, record.headers)
            if size_bytes > limit:
                index = half.metadata.message_index
                return f"message {index} of {size_bytes} bytes; topic {topic} takes {limit}"
        return ""

    def _undeliverable(self, delivery: Delivery, refused: str, now_ms: int) -> Iterator[Outgoing]:
        for half in delivery.messages:
            dead = DeadHalf(
                half,
                DeadReason.UNDELIVERABLE,
                refused,
                delivery.check_times,
                delivery.op_offset,
                delivery.op_append_ms,
                DeadDecision.COMMIT,
            )
            self.refused.append(replace(dead, half=half._replace(body=None)))
            yield self._bury(dead, now_ms)

    def _bury(self, dead: DeadHalf, now_ms: int) -> Outgoing:
        letter = DeadLetter(
            reason=dead.reason,
            detail=shortened(dead.detail),
            check_times=dead.check_times,
            decided_timestamp=dead.op_append_ms,
            op_offset=dead.op_offset,
            source_topic=self._topics.half,
            source_partition=self._partition,
            source_offset=dead.half.offset,
            decision=dead.decision,
        )
        if dead.by_reference:
            return self._stub(letter, dead.half.metadata, now_ms)
        return self._dead_letter(dead.half.body, letter, dead.half.metadata, now_ms)

    def _bury_junk(self, junk: DeadJunk, now_ms: int) -> Outgoing:
        letter = DeadLetter(
            reason=DeadReason.INVALID,
            detail=shortened(junk.record.detail),
            check_times=_NO_CHECK_TIMES,
            decided_timestamp=NO_TIMESTAMP,
            op_offset=NO_OFFSET,
            source_topic=self._topics.op if junk.is_op else self._topics.half,
            source_partition=self._partition,
            source_offset=junk.record.offset,
        )
        return self._dead_letter(junk.record.body, letter, None, now_ms)

    def _dead_letter(
        self, body: Any, letter: DeadLetter, metadata: HalfMetadata | None, now_ms: int
    ) -> Outgoing:
        """Return the unchanged record with RMQ_DEAD added, or a stub if that does not fit."""
        key, value = body.key(), body.value()
        headers = [*(body.headers() or ()), (names.DEAD, DEAD_LETTER.encode(letter))]
        if self._sizes.fits(self._topics.dead, bytes_at_most(key, value, headers)):
            at = self._routes.any_partition(self._topics.dead, key)
            return Outgoing(self._topics.dead, at, key, value, headers, now_ms)
        return self._stub(letter, metadata, now_ms)

    def _stub(self, letter: DeadLetter, metadata: HalfMetadata | None, now_ms: int) -> Outgoing:
        """Return a dead letter that refers to its record, with RMQ_HALF if that could be read."""
        self.stubs += 1
        headers: names.Headers = []
        if metadata is not None:
            headers.append((names.HALF, HALF_METADATA.encode(metadata)))
        headers.append((names.DEAD, DEAD_LETTER.encode(letter._replace(is_stub=True))))
        at = self._routes.any_partition(self._topics.dead, None)
        return Outgoing(self._topics.dead, at, None, None, headers, now_ms)

    def _put_back(self, put_back: PutBack, now_ms: int, signed_ms: int) -> Outgoing:
        body: Any = put_back.half.body
        key, value, metadata = body.key(), body.value(), put_back.metadata
        headers = [
            *names.without_half(body.headers()),
            (names.HALF, HALF_METADATA.encode(metadata)),
        ]
        if self._signer is not None:
            group = metadata.producer_group
            try:
                headers = self._signer.half(
                    group, self._partition, headers, key=key, value=value, now_ms=signed_ms
                )
            except NoSigningKeyError as error:
                raise KafkaTxnFailedError(str(error)) from error
        return Outgoing(
            self._topics.half, self._partition, key, value, headers, now_ms, is_copy=True
        )

    def _discard(self, op: Op, now_ms: int, signed_ms: int) -> Outgoing:
        key, value = op.transaction_id.encode(), OP.encode(op)
        headers: names.Headers = []
        if self._signer is not None:
            group = op.producer_group
            try:
                headers = self._signer.op(
                    group, self._partition, key=key, value=value, now_ms=signed_ms
                )
            except NoSigningKeyError as error:
                raise KafkaTxnFailedError(str(error)) from error
        return Outgoing(self._topics.op, self._partition, key, value, headers, now_ms)

"""Makes the records of a kafka_txn from the ledgers' plans. Pure.

The body of a half record, the consumed message itself, goes from consumer to producer unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.core.plan import Check, DeadHalf, DeadJunk, Delivery, Plan, PutBack
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.serde import headers as names
from halfbridge.serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.errors import NoSigningKeyError
from halfbridge.serde.limits import SIGNATURE_BYTES_MAX, shortened
from halfbridge.serde.record_size import HEADER_FRAME_BYTES_MAX, bytes_alone, bytes_at_most
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
    from collections.abc import Callable

    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.serde.signatures import Signer
    from halfbridge.serde.topics import TopicNames

ANY_PARTITION = -1  # the client chooses, as in librdkafka (RD_KAFKA_PARTITION_UA)
_NO_CHECK_TIMES = -1  # 0 is a count: -1 means that none is known
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
    is_stub: bool = False


class PlanRecords(NamedTuple):
    """The records of a plan, and what the plan itself does not tell about them.

    Attributes:
        records: In order: deliveries, dead letters, copies, discards.
        refused: Messages of deliveries that became dead letters, without their bodies.
        stubs: Number of dead letters that only refer to their records.
    """

    records: list[Outgoing]
    refused: list[DeadHalf]
    stubs: int


class Publisher:
    """Turns the plans of one partition pair into records, signed if there is a signer."""

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

    def records(self, plan: Plan, now_ms: int, partition_ms: int | None = None) -> PlanRecords:
        """Return the records of `plan`.

        Timestamps are `now_ms`: partition time, unless brokers refuse it (`TimestampSource`).
        Signatures have `partition_ms`; None: `now_ms`. A worker's wall clock decides nothing.

        Raises:
            KafkaTxnFailedError: no key may sign a copy or a discard now; an operator adds one to
                the key file. Nothing is written then, and nothing lost: a copy without a signature
                would not be believed.
        """
        signed_ms = now_ms if partition_ms is None else partition_ms
        records: list[Outgoing] = []
        refused: list[DeadHalf] = []
        for delivery in plan.deliveries:
            why = self._routes.refusal(delivery) or self._too_large(delivery)
            if why:
                undeliverable = _undeliverable(delivery, why)
                refused += undeliverable
                records += [self._dead_half(dead, now_ms) for dead in undeliverable]
            else:
                records += [self._real_record(half, now_ms) for half in delivery.messages]
        records += [self._dead_half(dead, now_ms) for dead in plan.dead]
        records += [self._dead_junk(junk, now_ms) for junk in plan.junk]
        records += [self._put_back(put_back, now_ms, signed_ms) for put_back in plan.put_backs]
        records += [self._discard(op, now_ms, signed_ms) for op in plan.discards]
        return PlanRecords(
            records,
            [replace(dead, half=dead.half._replace(body=None)) for dead in refused],
            sum(record.is_stub for record in records),
        )

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

    def _dead_half(self, dead: DeadHalf, now_ms: int) -> Outgoing:
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

    def _dead_junk(self, junk: DeadJunk, now_ms: int) -> Outgoing:
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
        headers: names.Headers = []
        if metadata is not None:
            headers.append((names.HALF, HALF_METADATA.encode(metadata)))
        headers.append((names.DEAD, DEAD_LETTER.encode(letter._replace(is_stub=True))))
        at = self._routes.any_partition(self._topics.dead, None)
        return Outgoing(self._topics.dead, at, None, None, headers, now_ms, is_stub=True)

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


def _undeliverable(delivery: Delivery, why: str) -> list[DeadHalf]:
    return [
        DeadHalf(
            half,
            DeadReason.UNDELIVERABLE,
            why,
            delivery.check_times,
            delivery.op_offset,
            delivery.op_append_ms,
            DeadDecision.COMMIT,
        )
        for half in delivery.messages
    ]


# By how much a copy may be longer than its original: 4 bytes for check times, 8 for the time, 8 for
# the offset, and one for each length around them.
COPY_GROWTH_BYTES = 32
# By how much a signature may make it longer: the name RMQ_SIGN, the value, and both lengths.
SIGNATURE_GROWTH_BYTES = 8 + SIGNATURE_BYTES_MAX + HEADER_FRAME_BYTES_MAX
# How long a learned limit counts; an operator may have raised the topic's limit since. Longer keeps
# messages away that now fit, shorter costs a refused batch more often than six times an hour.
LEARNED_MS = 600_000
# Topics whose limit is remembered, because clients choose topics; a new one replaces the oldest.
LEARNED_MAX = 1_000


class Sizes:
    """The size limits of topics; without a known one, every size is tried. Times: monotonic ms."""

    def __init__(self, configured: Callable[[str], int | None]) -> None:
        self._configured = configured
        self._learned: dict[str, tuple[int, int]] = {}
        self._limits: dict[str, int | None] = {}

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a batch of one record; None: not known."""
        try:
            return self._limits[topic]
        except KeyError:
            limit = self._configured(topic)
            if topic in self._learned:
                learned = self._learned[topic][1]
                limit = learned if limit is None else min(limit, learned)
            self._limits[topic] = limit
            return limit

    def fits(self, topic: str, size_bytes: int) -> bool:
        """Tell whether a batch of one record may have this size, as far as is known."""
        limit = self.limit(topic)
        return limit is None or size_bytes <= limit

    def learn(self, topic: str, bytes_max: int, now_ms: int) -> None:
        """Record that a topic refuses more than `bytes_max`, found by a refused record."""
        self._learned.pop(topic, None)
        if len(self._learned) >= LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
        self._learned[topic] = (now_ms + LEARNED_MS, bytes_max)
        self._limits = {}

    def refresh(self, now_ms: int) -> None:
        """Read the configured limits again, and forget limits learned more than LEARNED_MS ago."""
        self._learned = {
            topic: (until_ms, bytes_max)
            for topic, (until_ms, bytes_max) in self._learned.items()
            if until_ms > now_ms
        }
        self._limits = {}


# Tells the Kafka client to use its own clock.
CLIENTS_CLOCK = 0
_CLOCKS = 3  # those of `TimestampSource.ms`


class TimestampSource:
    """Partition time, unless a broker refuses it: then another clock, until that one is refused.

    A broker refuses timestamps too far ahead of its clock (`message.timestamp.after.max.ms`).
    Partition time comes from another broker's clock, or from the same clock before it was set back;
    the client's clock may be wrong as well. The append time of the last record is right as soon as
    the brokers' clocks are. The daemon makes the timestamps, so no transaction is blamed for them.
    """

    def __init__(self) -> None:
        self._turn = 0

    def ms(self, partition_ms: int, latest_ms: int) -> int:
        """Return a record's timestamp; `latest_ms` is the append time of the last record read."""
        return (partition_ms, CLIENTS_CLOCK, latest_ms)[self._turn]

    @property
    def turn(self) -> int:
        """The number of the clock in use."""
        return self._turn

    def refused(self, turn: int) -> None:
        """Record that a broker refuses timestamps of the clock `turn`, and use the next clock."""
        if turn == self._turn:  # else the report is old, and the next clock is in use already
            self._turn = (turn + 1) % _CLOCKS

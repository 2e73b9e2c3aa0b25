"""Writes batches in the mode at-least-once: first the records, then their offsets.

A batch of real records only is written by an idempotent producer and proven; then its offsets are
committed through the group. After a failure between the two steps the batch is written again, with
the same transaction ids and message indices. All other batches (copies, DISCARD ops, dead letters)
are kafka_txns in this mode too, because rebuilds and operators read them (ADR 21).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from halfbridge.checker.loop.blame import SendSize
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import (
    STALL_S,
    BatchWriter,
    DeliveryReports,
    Transactor,
    shared_properties,
)
from halfbridge.kafka.errors import MEMBER_FENCED, Code, KafkaFailure, RetriableError, bridge_error
from halfbridge.kafka.ports import Writer
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import Member, Ports, SeenTopic

# The first batches of a new outlet are kafka_txns. Outlets are new after each failure, so a record
# that brokers refuse is searched for batch by batch, without repeating the others each time. At
# least one is needed, since nothing else finds the record. Refused records are read again first, so
# a few suffice; more would pay for markers in vain.
FIRST_KAFKA_TXNS = 4
# The client never gives up a single record, because it would continue with the next ones. A
# batch that takes too long fails as a whole, and its remaining records are purged.
_NEVER_MS = 0
# Pause before a commit of unknown outcome is repeated. All pairs wait for it; without a pause the
# client would repeat the request as fast as brokers refuse it.
_PAUSE_S = 0.05
_FENCED = MEMBER_FENCED | {Code.FATAL}


class BoundMember:
    """A member of the group, bound to the generation in which it was assigned its partitions.

    Attributes:
        must_be_replaced: A commit's outcome was unknown, or a connection was lost during a commit.
            The request may arrive after a later commit, and set the offsets back; brokers refuse it
            once another member has replaced this one.
    """

    def __init__(self, member: Member, membership: object) -> None:
        self._member = member
        self.membership = membership
        self.must_be_replaced = False
        self._is_committing = self._is_in_doubt = False

    def commit(
        self,
        offsets: Sequence[tuple[str, int, int, str]],
        *,
        is_over: Callable[[], bool],
        pause: Callable[[], None],
    ) -> None:
        """Commit all or none; repeat after a `pause` until the outcome is known, or `is_over`.

        Raises KafkaFailure: failed, or outcome unknown; the caller turns it into
        KafkaTxnFailedError.
        """
        wanted = {(topic, number): (offset, text) for topic, number, offset, text in offsets}
        self._is_committing, self._is_in_doubt = True, False
        try:
            while True:
                try:
                    self._member.commit_as(wanted, self.membership)
                except RuntimeError as error:  # the loop has replaced the member meanwhile
                    raise KafkaFailure(Code.STATE, "the consumer is closed") from error
                except KafkaFailure as failure:
                    if not isinstance(bridge_error(failure), RetriableError):
                        raise
                    self._is_in_doubt = True
                    if is_over():
                        raise
                else:
                    return
                pause()
        finally:
            self._is_committing = False
            self.must_be_replaced = self.must_be_replaced or self._is_in_doubt

    def connection_lost(self) -> None:
        """Take note that the client has lost a connection or an answer."""
        if self._is_committing:
            self._is_in_doubt = True


def commits_with(member: Member, delivery: str) -> object:
    """Return what an outlet commits offsets with, in the member's present generation."""
    membership = member.membership()
    is_exact = delivery == Delivery.EXACTLY_ONCE
    return membership if is_exact else BoundMember(member, membership)


class AtLeastOnce:
    """An outlet as `Transactor` is; real records do not go through its kafka_txns."""

    def __init__(
        self,
        config: CheckerConfig,
        transactional_id: str,
        *,
        ports: Ports,
        send_size: SendSize = SendSize.USUAL,
    ) -> None:
        self.send_size = send_size
        self._names = config.names
        self._kafka_txns_left = FIRST_KAFKA_TXNS
        self._transactor = Transactor(config, transactional_id, ports=ports, send_size=send_size)
        self._plain = PlainOutlet(config, ports=ports, send_size=send_size)
        self._is_plain = False

    def start(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id, as `Transactor.start`."""
        self._transactor.start(timeout_s)

    @property
    def transactional_id(self) -> str:
        """The transactional id."""
        return self._transactor.transactional_id

    def write(self, records: Iterable[Outgoing], stall_s: float = STALL_S) -> dict[int, int]:
        """Hand `records` over as `Transactor.write`, in a kafka_txn if they need one."""
        batch = [*records]
        self._is_plain = self._may_be_plain(batch)
        if self._is_plain:
            self._plain.write(batch, stall_s)
            return {}
        self._kafka_txns_left = max(0, self._kafka_txns_left - 1)
        return self._transactor.write(batch, stall_s)

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], membership: object) -> None:
        """Commit `offsets` once the written records are proven.

        Raises KafkaTxnFailedError: failed, or outcome unknown; the worker replaces its producers
        and repeats.
        """
        if self._is_plain:
            self._plain.commit(offsets, membership)
        else:
            self._transactor.commit(offsets, cast("BoundMember", membership).membership)

    def must_be_replaced(self) -> bool:
        """As `Transactor.must_be_replaced`."""
        return self._transactor.must_be_replaced()

    @property
    def is_hung(self) -> bool:
        """As `Transactor.is_hung`."""
        return self._plain.is_hung or self._transactor.is_hung

    def close(self) -> None:
        """Drop the producers, which may be broken, without waiting."""
        self._plain.close()
        self._transactor.close()

    def _may_be_plain(self, batch: Sequence[Outgoing]) -> bool:
        if not batch:
            return True
        if self._kafka_txns_left or self.send_size is not SendSize.USUAL:
            return False
        own = (self._names.half, self._names.op, self._names.dead)
        return not any(record.topic in own for record in batch)


class PlainOutlet(BatchWriter[Writer]):
    """An idempotent producer: writes batches of real records without kafka_txns.

    In each partition, the stored records are a prefix of the batch. So a consumer that deduplicates
    sees messages in the order of the decisions, however often batches are written again:

    - Brokers take a producer's batches of a partition in their order only, from the second one on
      (`FirstWrites`).
    - After a refusal the client sends nothing more (`enable.gapless.guarantee`).
    - No record is given up alone, for its age (`_NEVER_MS`).
    """

    def __init__(
        self, config: CheckerConfig, *, ports: Ports, send_size: SendSize = SendSize.USUAL
    ) -> None:
        reports = DeliveryReports()
        writer = ports.kafka.writer(
            {
                **shared_properties(config, reports, send_size),
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "message.timeout.ms": _NEVER_MS,
            }
        )
        super().__init__(writer, reports, timeout_ms=config.kafka_txn_timeout_ms, clock=ports.clock)
        self._first_writes = FirstWrites(writer)

    def write(self, records: Iterable[Outgoing], stall_s: float = STALL_S) -> dict[int, int]:
        """Hand `records` over, in order, without copies.

        Raises KafkaTxnFailedError: no more are taken; the worker replaces its producers and
        repeats.
        """
        self._reports.begin()
        self._stall_s = stall_s
        try:
            is_first = True
            for piece in self._first_writes.pieces([*records]):
                if not is_first:
                    self._prove_all()
                self._produce(piece)
                is_first = False
        except KafkaFailure as failure:
            raise self._given_up(failure) from failure
        return {}

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], membership: object) -> None:
        """Prove the records, then commit `offsets`; raises as `AtLeastOnce.commit`."""
        try:
            self._prove_all()
        except KafkaFailure as failure:
            raise self._given_up(failure) from failure
        self._sending_since = self._clock.monotonic()
        try:
            self._commit_offsets(offsets, cast("BoundMember", membership))
        finally:
            self._sending_since = None

    def _prove_all(self) -> None:
        self._prove()
        refused = self._reports.refused
        if refused is not None:
            raise self._given_up(refused[0])

    def _commit_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: BoundMember
    ) -> None:
        until = self._clock.monotonic() + self._timeout_s
        try:
            member.commit(
                offsets, is_over=lambda: self._clock.monotonic() > until, pause=self._pause
            )
        except KafkaFailure as failure:
            raise KafkaTxnFailedError(
                f"the offsets were not committed: {failure.text}", fenced=failure.code in _FENCED
            ) from failure

    def _pause(self) -> None:
        with suppress(KafkaFailure):
            self._writer.poll(_PAUSE_S)

    def _given_up(self, cause: KafkaFailure) -> KafkaTxnFailedError:
        """Return the error of an unproven batch.

        FIRST_KAFKA_TXNS find the cause: the client cannot.
        """
        named, topic = self._reports.refused or (cause, "")
        where = f" for {topic}" if topic else ""
        return KafkaTxnFailedError(
            f"a record{where} was not stored: {named.text}", places=self._places()
        )


# For one question for the topics of the cluster, once for each real topic: as `clients.QUESTION_S`.
_QUESTION_S = 10.0


class FirstWrites:
    """Cuts a batch where its producer writes to a partition for the first time.

    A broker accepts any first sequence number of a producer that it does not know. Example: of two
    requests to a partition that are in flight, the broker refuses the first one because too few
    replicas are in sync, and accepts the second one a moment later. So the first record of a
    producer in a partition is proven alone, and the broker knows the producer from then on.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._left: dict[str, set[int]] = {}  # topic -> partitions that were not written to
        self._counts: dict[str, int] = {}

    def pieces(self, batch: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
        """Yield pieces of the batch, each to be proven before the next.

        Raises KafkaFailure: the client has failed; the caller turns it into KafkaTxnFailedError.
        """
        topics = {record.topic for record in batch}
        if not [topic for topic in topics if not self._is_open(topic)]:
            yield [*batch]
            return
        piece: list[Outgoing] = []
        for record in batch:
            left = self._left.get(record.topic)
            number = self._place(record, left) if left else -1
            if left and number in left:
                left.discard(number)
                piece.append(
                    record if record.key is not None else record._replace(partition=number)
                )
                yield piece
                piece = []
            else:
                piece.append(record)
        yield piece

    def _is_open(self, topic: str) -> bool:
        """Tell whether all partitions of a topic were written to; ask for a new topic."""
        if topic not in self._left:
            seen: Mapping[str, SeenTopic] = self._writer.topics(_QUESTION_S)
            count = seen[topic].partitions if topic in seen else 0
            self._counts[topic], self._left[topic] = count, set(range(count))
        return not self._left[topic]

    def _place(self, record: Outgoing, left: set[int]) -> int:
        """Return the partition of a record; a record that may go anywhere opens another one."""
        if record.partition >= 0:
            return record.partition
        if record.key is None:
            return min(left)
        return partition_of(record.key, self._counts[record.topic])

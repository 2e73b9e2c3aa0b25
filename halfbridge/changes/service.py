"""Reads a change topic and writes messages, exactly once: messages and offsets in one kafka_txn.

Several relays of one topic share its partitions, as members of one consumer group. The broker
refuses the kafka_txn of a relay that has lost its partitions (KIP-447). Whatever fails, the answer
is the same: abort, drop the clients, read again from the committed offsets.

A real topic that is unavailable for now does not delay others: its events are held, and a restart
reads them again (`held`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.changes.decide import Event
from halfbridge.changes.held import Position, position_of
from halfbridge.changes.writing import METADATA_S, ChangesMetrics, ChangesSetup, Learned, Writing
from halfbridge.checker.loop.clients import QUESTION_S, client_config, member_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.producers import TransactionalProducers
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    MEMBER_FENCED,
    UNREACHABLE,
    BridgeError,
    Code,
    ConfigError,
    FatalError,
    KafkaFailure,
    RetriableError,
    bridge_error,
)
from halfbridge.kafka.ports import NO_COMMITTED_OFFSET
from halfbridge.relays import RelayRunner
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.kafka.ports import Member, Ports, Record, TopicPartition

_LOG = logging.getLogger("halfbridge.changes")
_PRODUCERS = 2  # which take turns: the markers of one are written while the other one is used
_POLL_S = 0.5  # how soon `stop` is noticed


class PositionLostError(BridgeError):
    """Events were deleted before they were relayed, or the change topic was created again.

    An operator finds the missing events, and runs the relay once with `--accept-lost`.

    Attributes:
        topic: The change topic.
        partition: The partition whose events are missing; None: every one, the topic is new.
        offset: Where the partition was to be read from; None: not known, or every partition.
    """

    def __init__(
        self, why: str, *, topic: str, partition: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(
            f"{why}. Events may be missing: compare the table and the real topics. --accept-lost"
            " continues at the topic's beginning"
        )
        self.topic, self.partition, self.offset = topic, partition, offset


class ChangesRelay(RelayRunner):
    """Relays one change topic until `stop`. `run` is called once."""

    metrics: ChangesMetrics

    def __init__(self, setup: ChangesSetup, ports: Ports) -> None:
        super().__init__(
            ChangesMetrics(),
            _LOG,
            retried=(KafkaTxnFailedError, KafkaFailure, BridgeError),
            fatal=(PositionLostError, ConfigError, FatalError),
        )
        self._setup, self._ports = setup, ports
        self._waits_for = ""
        self.topic_id = ""  # of the change topic, once it is known
        self.learned = Learned(setup.config.batch_records_max)
        # One kafka_txn at a time, each acknowledged before the next one begins.
        exact = replace(
            setup.config, delivery=Delivery.EXACTLY_ONCE.value, transactional_producers=_PRODUCERS
        )
        self.producers = TransactionalProducers(
            exact, setup.transactional_id, self.metrics, ports=ports
        )

    def run(self, *, drain_s: float | None = None) -> None:
        """Relay until `stop`, and end the kafka_txn that was begun, which has its own time-out.

        Raises PositionLostError or ConfigError, after which an operator acts; FatalError if another
        relay has the slot; DrainError as RelayRunner.run.
        """
        super().run(drain_s=drain_s)

    def _work(self) -> None:
        session = _Session(self._setup, self._ports, self)
        try:
            session.run()
        except KafkaFailure as error:
            if error.code not in MEMBER_FENCED:
                raise
            raise FatalError(f"another relay has the slot {self._setup.slot}: {error}") from error
        finally:
            session.close(leaves=self.is_stopping)

    def _close(self) -> None:
        self.producers.close()

    def report_waits(self, why: str) -> None:
        """Report why events wait for their real topics; empty: none waits."""
        if why and why != self._waits_for:
            self.failed("topics", why)
        elif not why:
            self.recovered("topics")
        self._waits_for = why


class _Session:
    """A member of the group and a transactional producer, until one of them fails."""

    def __init__(self, setup: ChangesSetup, ports: Ports, relay: ChangesRelay) -> None:
        self._setup, self._ports, self._relay = setup, ports, relay
        self._admin = ports.kafka.admin(client_config(setup.config))
        self._writing = Writing(
            setup, relay.producers, admin=self._admin, learned=relay.learned, metrics=relay.metrics
        )
        self._assigned: frozenset[TopicPartition] | None = None
        self._places: frozenset[TopicPartition] = frozenset()
        self._membership: object = None
        self._topic_id, self._id_at = "", float("-inf")
        self._has_joined = self._is_paused = False
        self._member: Member | None = None

    def run(self) -> None:
        config = self._setup.config
        self._check_topics()
        self._check_id()
        self._relay.producers.start()
        member = self._ports.kafka.member(
            {
                **member_config(config, self._setup.slot),
                "group.id": self._setup.group,
                "enable.partition.eof": False,
            }
        )
        self._member = member
        member.join([self._setup.topic], self._on_assigned, self._on_revoked)
        while not self._relay.is_stopping:
            self._pause(member)
            first = member.poll(_POLL_S)
            if self._assigned is not None:
                self._begin(member, self._assigned)
                continue
            if monotonic() - self._id_at > METADATA_S:
                self._check_id()
            more = [] if first is None else member.take(config.batch_records_max - 1)
            events = [] if first is None else self._events(first, more)
            # `take` may have called back: then these events are another member's, or come again.
            if self._is_reading:
                self._writing.relay(events)
            if self._has_joined:
                self._relay.succeeded()
                self._relay.report_waits(self._writing.waits_for())

    def _pause(self, member: Member) -> None:
        """Stop reading while nothing more can be held, and no other topic's events continue."""
        is_full = self._writing.is_full
        if is_full != self._is_paused and self._is_reading:
            (member.pause if is_full else member.resume)(self._places)
            self._is_paused = is_full

    @property
    def _is_reading(self) -> bool:
        """Whether an assignment counts, and its partitions are read from the committed offsets."""
        return self._assigned is None and bool(self._places)

    def close(self, *, leaves: bool) -> None:
        """Drop the clients; `leaves`: let other members have the partitions at once."""
        self._relay.producers.discard()
        if self._member is not None:
            if leaves:
                with suppress(KafkaFailure, RuntimeError):
                    self._member.leave()
            self._member.close()

    def _check_topics(self) -> None:
        seen = self._admin.topics(QUESTION_S)
        for topic, remedy in (
            (self._setup.topic, "start the connector that writes it"),
            (self._setup.config.names.dead, "run `halfbridge topics create`"),
        ):
            if topic not in seen:
                raise RetriableError(f"no topic {topic}, or no right to describe it; {remedy}")

    # --- the group ---------------------------------------------------------------------------

    def _on_assigned(self, member: Member, places: frozenset[TopicPartition]) -> None:
        # Called inside poll: an exception would lose records. Kept until the next assignment.
        with suppress(KafkaFailure, RuntimeError):
            self._membership = member.membership()
            member.read_from({})  # else the client reads at once, from where it likes
        self._assigned, self._places = places, frozenset()

    def _on_revoked(self, _member: Member) -> None:
        self._places, self._assigned = frozenset(), None

    def _begin(self, member: Member, places: frozenset[TopicPartition]) -> None:
        self._assigned = None
        committed = member.committed(places, QUESTION_S) if places else {}
        positions = {
            place[1]: self._start(member, place, committed[place].offset, committed[place].metadata)
            for place in places
        }
        self._writing.begin(positions, self._topic_id, self._membership)
        self._places, self._has_joined = places, True
        offsets = {place: positions[place[1]].offset for place in places}
        member.read_from(offsets)
        if self._is_paused:  # a partition that was assigned before may be paused still
            member.resume(places)
            self._is_paused = False
        _LOG.info("relaying %s, from %s", self._setup.topic, _shown(offsets))

    def _start(
        self, member: Member, place: TopicPartition, offset: int, metadata: str | None
    ) -> Position:
        """Return where to begin.

        Raises:
            PositionLostError: the next event was deleted, or belongs to an earlier topic; an
                operator acts.
            RetriableError: the partition ends before the position; the relay tries again.
        """
        low, high = member.ends(place, QUESTION_S)
        if offset == NO_COMMITTED_OFFSET:
            return Position(self._topic_id, low)
        why = ""
        try:
            at = position_of(offset, metadata)
        except ValueError as error:
            at, why = Position(self._topic_id, offset), str(error)
        is_same = at.topic_id in ("", self._topic_id)
        if not is_same:
            why = f"the topic was created again: its id is {self._topic_id}, not {at.topic_id}"
        elif at.end > high:  # a deposed leader may report an old end
            why = f"offset {at.end} comes next, and the topic ends at {high}"
            if not self._setup.accept_lost and at.due:
                raise RetriableError(f"{place[0]}[{place[1]}]: {why}")
            why = why if self._setup.accept_lost else ""
        elif offset < low:
            why = why or f"offset {offset} comes next, and the topic begins at {low} by now"
        if not why:
            return replace(at, topic_id=self._topic_id)
        if not self._setup.accept_lost:
            topic, partition = place
            raise PositionLostError(
                f"{topic}[{partition}]: {why}", topic=topic, partition=partition, offset=offset
            )
        due = tuple(each for each in at.due if is_same and low <= each < high)
        end = max(low, at.end) if is_same and at.end <= high else low
        going_on = Position(self._topic_id, end, due)
        _LOG.warning("%s[%d]: %s; continuing at offset %d", *place, why, going_on.offset)
        return going_on

    def _check_id(self) -> None:
        """Check that the change topic was not created again.

        Raises:
            PositionLostError: it was; an operator acts.
            RetriableError: it was, which is accepted; the relay starts again.
        """
        self._id_at = monotonic()
        known = self._relay.topic_id
        try:
            found = self._setup.topic_id()
        except KafkaFailure as failure:
            if failure.code in UNREACHABLE and self._topic_id:
                return  # the brokers that have the partitions may still answer
            raise
        self._relay.topic_id = self._topic_id = found
        if not known or found == known:
            return
        text = f"{self._setup.topic} was created again: its id is {found}, not {known}"
        if self._setup.accept_lost:
            raise RetriableError(text)
        raise PositionLostError(text, topic=self._setup.topic)

    # --- reading -----------------------------------------------------------------------------

    def _events(self, first: Record, more: list[Record]) -> list[Event]:
        events = []
        for record in (first, *more):
            error = record.error()
            if error is None:
                events.append(_event(record))
            else:
                self._judge(failure_of(error), record.partition())
        return events

    def _judge(self, failure: KafkaFailure, partition: int | None) -> None:
        if failure.code == Code.AUTO_OFFSET_RESET:
            self._check_id()  # names the cause, if the topic was created again
            if self._setup.accept_lost:
                raise RetriableError(str(failure))
            raise PositionLostError(
                f"{self._setup.topic}: the next event was deleted ({failure})",
                topic=self._setup.topic,
                partition=partition,
            )
        if failure.code not in (Code.PARTITION_EOF, Code.TRANSPORT, Code.ALL_BROKERS_DOWN):
            error = bridge_error(failure)
            raise error if isinstance(error, ConfigError) else RetriableError(str(failure))


def _event(record: Record) -> Event:
    try:
        headers = list(headers_of(record) or ())
    except DecodeError:
        headers = []  # a name that is not UTF-8: nothing that Connect writes
    return Event(
        record.partition() or 0,
        record.offset() or 0,
        record.key(),
        record.value(),
        headers,
        max(0, record.timestamp()[1]),
    )


def _shown(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{number}@{at}" for (_, number), at in sorted(offsets.items())) or "nothing"

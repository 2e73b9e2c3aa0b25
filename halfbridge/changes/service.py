"""Reads a change topic and writes messages, exactly once: messages and offsets in one kafka_txn.

Several relays of one topic share its partitions, as members of one consumer group. The broker
refuses the kafka_txn of a relay that has lost its partitions (KIP-447). Whatever fails, the answer
is the same: abort, drop the clients, read again from the committed offsets.

A real topic that cannot take messages for now holds up no other one: its events are held, and a
restart reads them again (`held`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from threading import Event as ThreadEvent
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.changes.decide import Event
from halfbridge.changes.held import Position, position_of
from halfbridge.changes.writing import METADATA_S, ChangesMetrics, ChangesSetup, Learned, Writing
from halfbridge.checker.loop.clients import QUESTION_S, client_config, member_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError, delay_s
from halfbridge.checker.loop.producers import TransactionalProducers
from halfbridge.checker.status import Health
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
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.kafka.ports import Member, Place, Ports, Record

_LOG = logging.getLogger("halfbridge.changes")
_PRODUCERS = 2  # which take turns: the markers of one are written while the other one is used
_POLL_S = 0.5  # how soon `stop` is noticed
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.1, 5.0  # waits after a failure; they double
# Without a turn for so long the relay is not healthy: a turn takes two time-outs of a kafka_txn.
_TURN_S_MAX = 60.0


class PositionLostError(BridgeError):
    """Events were deleted before they were relayed, or the change topic was created again.

    An operator looks for what is missing, and runs the relay once with `--accept-lost`.
    """


class ChangesRelay:
    """Relays one change topic until `stop`. `run` is called once.

    Args:
        setup: What to relay, and how.
        ports: Kafka and the clock.
    """

    def __init__(self, setup: ChangesSetup, ports: Ports) -> None:
        self._setup, self._ports = setup, ports
        self.metrics = ChangesMetrics()
        self._stopping = ThreadEvent()
        self._lock = Lock()
        self._ill, self._is_ready = "", False
        self._turn_at = monotonic()
        self._failures = 0
        self.topic_id = ""  # of the change topic, once it is known
        self.learned = Learned(setup.config.batch_records_max)
        # One kafka_txn at a time, each acknowledged before the next one begins.
        exact = replace(
            setup.config, delivery=Delivery.EXACTLY_ONCE.value, transactional_producers=_PRODUCERS
        )
        self.turns = TransactionalProducers(
            exact, setup.transactional_id, self.metrics, ports=ports
        )
        self.metrics.turn_age_s.set_function(lambda: monotonic() - self._turn_at)

    def health(self) -> Health:
        """Return the present health."""
        with self._lock:
            reason, age_s = self._ill, monotonic() - self._turn_at
        if not reason and age_s > _TURN_S_MAX:
            reason = f"no turn has ended well for {age_s:.0f} s"
        return Health(self._is_ready, not reason, reason or ("" if self._is_ready else "starting"))

    def stop(self) -> None:
        """Make `run` return after its present kafka_txn. Thread-safe."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def run(self) -> None:
        """Relay until `stop`.

        Raises:
            PositionLostError: The position is lost; an operator acts.
            ConfigError: A setting of the Kafka clients is wrong.
            FatalError: Another relay has the slot.
        """
        try:
            self._run()
        finally:
            self.turns.close()

    def _run(self) -> None:
        while not self.is_stopping:
            try:
                self._session()
            except (PositionLostError, ConfigError, FatalError):  # noqa: PERF203  (a session)
                raise
            except (KafkaTxnFailedError, KafkaFailure, BridgeError) as error:
                if isinstance(error, KafkaFailure) and error.code in MEMBER_FENCED:
                    text = f"another relay has the slot {self._setup.slot}: {error}"
                    raise FatalError(text) from error
                self._failures += 1
                self.tell(" ".join(str(error).split()), what="relay")
                self._stopping.wait(delay_s(self._failures, _PAUSE_S_MIN, _PAUSE_S_MAX))

    def tell(self, text: str, *, what: str) -> None:
        """Note a failure, for health, metrics and the log: a warning if it is another one."""
        with self._lock:
            is_news, self._ill = text != self._ill, text
        self.metrics.troubles.labels(what).inc()
        _LOG.log(logging.WARNING if is_news else logging.DEBUG, "%s; again soon", text)

    def well(self, waits_for: str = "") -> None:
        """Note that a turn has ended well, and which real topics are waited for."""
        with self._lock:
            is_news = waits_for not in ("", self._ill)
            self._ill, self._turn_at = waits_for, monotonic()
        self._is_ready, self._failures = True, 0
        if is_news:
            self.metrics.troubles.labels("topics").inc()
            _LOG.warning("%s; other topics go on", waits_for)

    def _session(self) -> None:
        """Read and write with new clients, until `stop` or a failure."""
        session = _Session(self._setup, self._ports, self)
        try:
            session.run()
        finally:
            session.close(leaves=self.is_stopping)


class _Session:
    """A member of the group and a transactional producer, until one of them fails."""

    def __init__(self, setup: ChangesSetup, ports: Ports, relay: ChangesRelay) -> None:
        self._setup, self._ports, self._relay = setup, ports, relay
        self._admin = ports.kafka.admin(client_config(setup.config))
        self._writing = Writing(
            setup, relay.turns, admin=self._admin, learned=relay.learned, metrics=relay.metrics
        )
        self._assigned: frozenset[Place] | None = None
        self._places: frozenset[Place] = frozenset()
        self._membership: object = None
        self._topic_id, self._id_at = "", float("-inf")
        self._has_joined = self._is_paused = False
        self._member: Member | None = None

    def run(self) -> None:
        """Relay until `stop`; raises as ChangesRelay.run, or what makes another session begin."""
        config = self._setup.config
        self._check_topics()
        self._check_id()
        self._relay.turns.start()
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
                self._relay.well(self._writing.waits_for())

    def _pause(self, member: Member) -> None:
        """Read no further where nothing more can be held; read on once there is room.

        Where other topics go on, the oldest events are given up instead (`Writing.relay`).
        """
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
        self._relay.turns.discard()
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

    def _on_assigned(self, member: Member, places: frozenset[Place]) -> None:
        # Called inside poll: an exception would lose records. Kept until the next assignment.
        with suppress(KafkaFailure, RuntimeError):
            self._membership = member.membership()
            member.read_from({})  # else the client reads at once, from where it likes
        self._assigned, self._places = places, frozenset()

    def _on_revoked(self, _member: Member) -> None:
        self._places, self._assigned = frozenset(), None

    def _begin(self, member: Member, places: frozenset[Place]) -> None:
        """Read the assigned partitions from their committed offsets."""
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

    def _start(self, member: Member, place: Place, offset: int, metadata: str | None) -> Position:
        """Return where to begin.

        Raises:
            PositionLostError: What comes next was deleted, or belongs to an earlier topic.
            RetriableError: The partition ends before what was relayed of it.
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
        elif at.end > high:  # a deposed leader may tell an old end
            why = f"offset {at.end} comes next, and the topic ends at {high}"
            if not self._setup.accept_lost and at.due:
                raise RetriableError(f"{place[0]}[{place[1]}]: {why}")
            why = why if self._setup.accept_lost else ""
        elif offset < low:
            why = why or f"offset {offset} comes next, and the topic begins at {low} by now"
        if not why:
            return replace(at, topic_id=self._topic_id)
        if not self._setup.accept_lost:
            raise self._lost(f"{place[0]}[{place[1]}]: {why}")
        due = tuple(each for each in at.due if is_same and low <= each < high)
        end = max(low, at.end) if is_same and at.end <= high else low
        going_on = Position(self._topic_id, end, due)
        _LOG.warning("%s[%d]: %s; going on at %d", *place, why, going_on.offset)
        return going_on

    def _check_id(self) -> None:
        """See whether the change topic is still the one that this process began with.

        Raises:
            PositionLostError: It was created again.
            RetriableError: The same, and its loss is accepted.
        """
        self._id_at = monotonic()
        known = self._relay.topic_id
        try:
            found = self._setup.topic_id()
        except KafkaFailure as failure:
            if failure.code in UNREACHABLE and self._topic_id:
                return  # the brokers that have the partitions may answer all the same
            raise
        self._relay.topic_id = self._topic_id = found
        if not known or found == known:
            return
        text = f"{self._setup.topic} was created again: its id is {found}, not {known}"
        raise RetriableError(text) if self._setup.accept_lost else self._lost(text)

    @staticmethod
    def _lost(why: str) -> PositionLostError:
        return PositionLostError(
            f"{why}. Events may be missing: compare the table and the real topics. --accept-lost"
            " goes on where the topic begins"
        )

    # --- reading -----------------------------------------------------------------------------

    def _events(self, first: Record, more: list[Record]) -> list[Event]:
        """Return the events of one fetch; an error in place of a record is judged."""
        events = []
        for record in (first, *more):
            error = record.error()
            if error is None:
                events.append(_event(record))
            else:
                self._judge(failure_of(error))
        return events

    def _judge(self, failure: KafkaFailure) -> None:
        if failure.code == Code.AUTO_OFFSET_RESET:
            self._check_id()  # names the cause, if the topic was created again
            if self._setup.accept_lost:
                raise RetriableError(str(failure))
            raise self._lost(f"{self._setup.topic}: the next event was deleted ({failure})")
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


def _shown(offsets: Mapping[Place, int]) -> str:
    return ", ".join(f"{number}@{at}" for (_, number), at in sorted(offsets.items())) or "nothing"

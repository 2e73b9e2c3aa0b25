"""Reads a change topic and writes messages, exactly once: messages and offsets in one kafka_txn.

Several relays of one topic share its partitions, as members of one consumer group. The broker
refuses the kafka_txn of a relay that has lost its partitions (KIP-447). Whatever fails, the answer
is the same: abort, drop the clients, read again from the committed offsets.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Event as ThreadEvent
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from halfbridge.bridge.errors import (
    BridgeError,
    ConfigError,
    FatalError,
    RetriableError,
)
from halfbridge.bridge.failure import MEMBER_FENCED, Code, KafkaFailure, bridge_error
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.ports import NO_COMMITTED_OFFSET
from halfbridge.changes.decide import Dead, Event, Message, Skip, decide
from halfbridge.checker.loop.backoff import delay_s
from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.clients import QUESTION_S, client_config, member_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.checker.metrics import build_info
from halfbridge.checker.status import Health
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, headers_of
from halfbridge.serde.limits import shortened
from halfbridge.serde.records import NO_OFFSET, NO_TIMESTAMP, DeadLetter, DeadReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halfbridge.bridge.ports import Member, Place, Ports, Record, SeenTopic
    from halfbridge.changes.mapping import ChangeMapping
    from halfbridge.changes.values import Schemas
    from halfbridge.checker.config import CheckerConfig

_LOG = logging.getLogger("halfbridge.changes")
_POLL_S = 0.5  # how soon `stop` is noticed
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.1, 5.0  # waits after a failure; they double
_BISECT = 8  # a batch that is refused is divided by this factor, until one event is left
# Events that are known to be refused. Each is forgotten with its dead letter.
_BLAMED_MAX = 1_000
_REFUSED_S = 60.0  # after which a topic without a right is tried again
# How long metadata of real topics count, and how often a missing topic is looked for.
_METADATA_S = 10.0
_LOOK_AGAIN_S = 1.0
# How fast the time is earned again for which topics may be waited for: at most a tenth of all time
# is waited.
_PATIENCE_REFILL = 0.1
# Without a turn for so long the relay is not healthy: a turn takes two time-outs of a kafka_txn.
_TURN_S_MAX = 60.0
_MARK = "c1;"  # of the metadata of a committed offset; the id of the change topic follows


class PositionLostError(BridgeError):
    """Events were deleted before they were relayed, or the change topic was created again.

    An operator looks for what is missing, and runs the relay once with `--accept-lost`.
    """


class ChangesSetup(NamedTuple):
    """What a relay of changes is given.

    Attributes:
        topic: The change topic.
        mapping: Which changes become messages.
        config: Brokers, prefix, sizes of batches, time-outs.
        group: The consumer group.
        slot: A stable name of this relay, which no other has at the same time.
        transactional_id: Of this slot, and of no other.
        schemas: Returns a schema of the registry; RetriableError: it does not answer.
        topic_id: Asks for the id of the change topic.
        accept_lost: Whether to go on where the topic begins, if the position is lost.
    """

    topic: str
    mapping: ChangeMapping
    config: CheckerConfig
    group: str
    slot: str
    transactional_id: str
    schemas: Schemas
    topic_id: Callable[[], str]
    accept_lost: bool = False


class ChangesMetrics:
    """The metrics of a relay of changes, on a registry of its own. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build_info(self.registry)
        self.events = Counter(
            "halfbridge_relay_changes",
            "Change events relayed, by outcome: message, dead, or why nothing is sent.",
            ["outcome"],
            registry=self.registry,
        )
        self.troubles = Counter(
            "halfbridge_relay_troubles",
            "Failures of Kafka or of the schema registry, after which the relay tried again.",
            ["what"],
            registry=self.registry,
        )
        self.turn_age_s = Gauge(
            "halfbridge_relay_round_age_seconds",
            "How long ago a turn ended well, or the relay began.",
            registry=self.registry,
        )


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
        self.learned = Learned(setup.config.batch_records_max, setup.config.topic_gone_ms / 1000)
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

    def well(self) -> None:
        """Note that a turn has ended well."""
        with self._lock:
            self._ill, self._turn_at = "", monotonic()
        self._is_ready, self._failures = True, 0

    def _session(self) -> None:
        """Read and write with new clients, until `stop` or a failure."""
        session = _Session(self._setup, self._ports, self)
        try:
            session.run()
        finally:
            session.close(leaves=self.is_stopping)


class Learned:
    """What failed kafka_txns have told: kept over sessions. Times are monotonic seconds.

    Attributes:
        limit: Events in the next kafka_txn.
        batch: How much is sent to a partition at once.
        blamed: (partition, offset) -> why this event is refused.
        stubs: Events whose dead letters are too large.
        refused: Real topic that this relay may not write to -> why, and until when that counts.
        has_failed: Whether the last kafka_txn failed without a record being refused.
    """

    def __init__(self, limit_max: int, patience_s: float) -> None:
        self._limit_max, self._patience_max_s = limit_max, patience_s
        self.limit, self.batch = limit_max, Batch.USUAL
        self.blamed: dict[tuple[int, int], str] = {}
        self.stubs: set[tuple[int, int]] = set()
        self.refused: dict[str, tuple[str, float]] = {}
        self.has_failed = False
        self._left_s, self._at = patience_s, monotonic()

    def succeeded(self, events: Iterable[Event]) -> None:
        """Forget what was known of these events, and make the next batch larger."""
        for each in events:
            self.blamed.pop((each.partition, each.offset), None)
            self.stubs.discard((each.partition, each.offset))
        self.has_failed = False
        self.limit = min(self._limit_max, self.limit * 2)
        if self.limit == self._limit_max:
            self.batch = Batch.USUAL

    def failed(self, error: KafkaTxnFailedError, events: list[Event]) -> None:
        """Note a failed kafka_txn with these events; one that is refused alone is blamed."""
        self.has_failed = not error.permanent or error.untimely
        if self.has_failed:
            return
        if error.topic_refused and error.topic:
            self.refused[error.topic] = (str(error.failure), monotonic() + _REFUSED_S)
            return
        if error.too_large:
            self.batch = Batch.ONE_RECORD
        if len(events) > 1:
            self.limit = max(1, len(events) // _BISECT)
            return
        place = (events[0].partition, events[0].offset)
        if place in self.blamed:
            self.stubs.add(place)  # the dead letter was refused
        elif len(self.blamed) < _BLAMED_MAX:
            self.blamed[place] = str(error.failure or error)

    def may_wait(self) -> bool:
        """Tell whether a topic that is away may be waited for; noted as a wait that begins now."""
        now = monotonic()
        earned_s = (now - self._at) * _PATIENCE_REFILL
        self._left_s, self._at = min(self._patience_max_s, self._left_s + earned_s), now
        return self._left_s > 0

    def waited(self, seconds: float) -> None:
        """Note a wait."""
        self._left_s -= seconds * (1 + _PATIENCE_REFILL)


class _Session:
    """A member of the group and a transactional producer, until one of them fails."""

    def __init__(self, setup: ChangesSetup, ports: Ports, relay: ChangesRelay) -> None:
        self._setup, self._ports, self._relay = setup, ports, relay
        self._names = setup.config.names
        self._dead_topic = self._names.dead
        self._learned = relay.learned
        self._assigned: frozenset[Place] | None = None
        self._places: frozenset[Place] = frozenset()
        self._membership: object = None
        self._seen: dict[str, SeenTopic] = {}
        self._seen_at = float("-inf")
        self._topic_id, self._id_at = "", float("-inf")
        self._has_joined = False
        self._member: Member | None = None
        self._transactor: Transactor | None = None

    def run(self) -> None:
        """Relay until `stop`; raises as ChangesRelay.run, or what makes another session begin."""
        config = self._setup.config
        self._admin = self._ports.kafka.admin(client_config(config))
        self._check_topics()
        self._check_id()
        transactor = self._started()
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
            first = member.poll(_POLL_S)
            if self._assigned is not None:
                self._begin(member, self._assigned)
                continue
            if monotonic() - self._id_at > _METADATA_S:
                self._check_id()
            if first is None:
                if self._has_joined:
                    self._relay.well()
                continue
            events = self._events(first, member.take(config.batch_records_max - 1))
            # `take` may have called back: then these events are another member's, or come again.
            if not self._is_reading:
                continue
            for batch in self._batches(events):
                if transactor.worn or transactor.batch is not self._learned.batch:
                    transactor.close()
                    transactor = self._started()
                if not self._write(transactor, batch):
                    return
                self._relay.well()

    @property
    def _is_reading(self) -> bool:
        """Whether an assignment counts, and its partitions are read from the committed offsets."""
        return self._assigned is None and bool(self._places)

    def close(self, *, leaves: bool) -> None:
        """Drop the clients; `leaves`: let other members have the partitions at once."""
        if self._transactor is not None:
            self._transactor.close()
        if self._member is not None:
            if leaves:
                with suppress(KafkaFailure, RuntimeError):
                    self._member.leave()
            self._member.close()

    def _started(self) -> Transactor:
        self._transactor = Transactor(
            self._setup.config,
            self._setup.transactional_id,
            ports=self._ports,
            batch=self._learned.batch,
        )
        self._transactor.start()
        return self._transactor

    def _check_topics(self) -> None:
        self._look()
        for topic, remedy in (
            (self._setup.topic, "start the connector that writes it"),
            (self._dead_topic, "run `halfbridge topics create`"),
        ):
            if topic not in self._seen:
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
        offsets = {
            place: self._start(member, place, committed[place].offset, committed[place].metadata)
            for place in places
        }
        self._places, self._has_joined = places, True
        member.read_from(offsets)
        _LOG.info("relaying %s, from %s", self._setup.topic, _shown(offsets))

    def _start(self, member: Member, place: Place, offset: int, metadata: str | None) -> int:
        """Return the offset to read from.

        Raises:
            PositionLostError: What comes next was deleted, or belongs to an earlier topic.
        """
        low, high = member.ends(place, QUESTION_S)
        if offset == NO_COMMITTED_OFFSET:
            return low
        mark = (metadata or "").removeprefix(_MARK)
        why = ""
        if mark and mark != self._topic_id:
            why = f"the topic was created again: its id is {self._topic_id}, not {mark}"
        elif offset > high and self._setup.accept_lost:  # a deposed leader may tell an old end
            why = f"offset {offset} comes next, and the topic ends at {high}"
        elif offset < low:
            why = f"offset {offset} comes next, and the topic begins at {low} by now"
        if why and not self._setup.accept_lost:
            raise self._lost(f"{place[0]}[{place[1]}]: {why}")
        if why:
            _LOG.warning("%s[%d]: %s; going on at %d", *place, why, low)
        return low if why else offset

    def _check_id(self) -> None:
        """See whether the change topic is still the one that this process began with.

        Raises:
            PositionLostError: It was created again.
        """
        self._id_at = monotonic()
        found, known = self._setup.topic_id(), self._relay.topic_id
        if known and found != known and not self._setup.accept_lost:
            raise self._lost(
                f"{self._setup.topic} was created again: its id is {found}, not {known}"
            )
        self._relay.topic_id = self._topic_id = found

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

    def _batches(self, fetched: list[Event]) -> Iterator[list[Event]]:
        """Yield events in order, in batches for a kafka_txn each."""
        events: list[Event] = []
        size_bytes, bytes_max = 0, self._setup.config.batch_bytes_max
        for event in fetched:
            events.append(event)
            size_bytes += len(event.key or b"") + len(event.value or b"")
            if len(events) >= self._learned.limit or size_bytes >= bytes_max:
                yield events
                events, size_bytes = [], 0
        if events:
            yield events

    def _judge(self, failure: KafkaFailure) -> None:
        if failure.code == Code.AUTO_OFFSET_RESET:
            self._check_id()  # names the cause, if the topic was created again
            if self._setup.accept_lost:
                raise RetriableError(str(failure))
            raise self._lost(f"{self._setup.topic}: the next event was deleted ({failure})")
        if failure.code not in (Code.PARTITION_EOF, Code.TRANSPORT, Code.ALL_BROKERS_DOWN):
            error = bridge_error(failure)
            raise error if isinstance(error, ConfigError) else RetriableError(str(failure))

    # --- writing -----------------------------------------------------------------------------

    def _write(self, transactor: Transactor, events: list[Event]) -> bool:
        """Write what becomes of events, and their offsets; tell whether to go on.

        Raises:
            KafkaTxnFailedError: Nothing was written, or that is not known.
            RetriableError: The schema registry does not answer, or the group went on without this
                member.
        """
        decided = [(each, self._decided(each)) for each in events]
        away = self._away(decided)
        while away and self._learned.may_wait():
            if self._relay.is_stopping:
                return False
            text = "; ".join(f"{topic} {why}" for topic, why in sorted(away.items()))
            self._relay.tell(f"waiting for real topics: {text}", what="topics")
            ThreadEvent().wait(_LOOK_AGAIN_S)
            self._learned.waited(_LOOK_AGAIN_S)
            away = self._away(decided, is_due=True)
        outcomes: dict[str, int] = {}
        records = []
        for event, wanted in decided:
            decision = wanted
            if isinstance(wanted, Message) and wanted.topic in away:
                text = f"{wanted.topic} {away[wanted.topic]}"
                decision = Dead(DeadReason.UNDELIVERABLE, text)
            outcomes[_outcome(decision)] = outcomes.get(_outcome(decision), 0) + 1
            if isinstance(decision, Message):
                topic, key, value, headers = decision
                records.append(Outgoing(topic, -1, key, value, headers, 0))
            elif isinstance(decision, Dead):
                records.append(self._letter(event, decision))
        offsets = {event.partition: event.offset + 1 for event in events}
        metadata = f"{_MARK}{self._topic_id}"
        try:
            transactor.write(records)
            transactor.commit(
                [(self._setup.topic, number, at, metadata) for number, at in offsets.items()],
                self._membership,
            )
        except KafkaTxnFailedError as error:
            self._learned.failed(error, events)
            raise
        self._learned.succeeded(events)
        for outcome, count in outcomes.items():
            self._relay.metrics.events.labels(outcome).inc(count)
        return True

    def _decided(self, event: Event) -> Message | Skip | Dead:
        refused = self._learned.blamed.get((event.partition, event.offset))
        if refused is not None:
            return Dead(DeadReason.UNDELIVERABLE, refused)
        return decide(
            event,
            self._setup.mapping,
            topic_id=self._topic_id,
            names=self._names,
            schemas=self._setup.schemas,
        )

    def _letter(self, event: Event, dead: Dead) -> Outgoing:
        is_stub = (event.partition, event.offset) in self._learned.stubs
        letter = DeadLetter(
            reason=dead.reason,
            detail=shortened(dead.detail),
            check_times=-1,
            decided_timestamp=NO_TIMESTAMP,
            op_offset=NO_OFFSET,
            source_topic=self._setup.topic,
            source_partition=event.partition,
            source_offset=event.offset,
            is_stub=is_stub,
        )
        mark = (DEAD, DEAD_LETTER.encode(letter))
        if is_stub:
            return Outgoing(self._dead_topic, -1, None, None, [mark], 0)
        return Outgoing(self._dead_topic, -1, event.key, event.value, [*event.headers, mark], 0)

    def _away(
        self, decided: list[tuple[Event, Message | Skip | Dead]], *, is_due: bool = False
    ) -> Mapping[str, str]:
        """Return the real topics that cannot take messages now, with the reason."""
        wanted = {each.topic for _, each in decided if isinstance(each, Message)}
        if not wanted:
            return {}
        found = self._found(wanted)
        is_old = monotonic() - self._seen_at > _METADATA_S
        if is_due or is_old or found or self._learned.has_failed:
            self._look()
            found = self._found(wanted)
        return found

    def _found(self, wanted: set[str]) -> dict[str, str]:
        found = {}
        for topic in wanted:
            seen = self._seen.get(topic)
            why, until = self._learned.refused.get(topic, ("", 0.0))
            if why and monotonic() < until:
                found[topic] = f"refuses this relay: {why}"
            elif seen is None:
                found[topic] = "does not exist, or may not be described"
            elif not seen.is_led:
                found[topic] = "has a partition without a leader"
            elif self._learned.has_failed and seen.out_of_sync:
                found[topic] = "has replicas out of sync, and the last kafka_txn failed"
        return found

    def _look(self) -> None:
        self._seen = self._admin.topics(QUESTION_S)
        self._seen_at = monotonic()


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


def _outcome(decision: Message | Skip | Dead) -> str:
    if isinstance(decision, Message):
        return "message"
    return "dead" if isinstance(decision, Dead) else decision.why


def _shown(offsets: Mapping[Place, int]) -> str:
    return ", ".join(f"{number}@{at}" for (_, number), at in sorted(offsets.items())) or "nothing"

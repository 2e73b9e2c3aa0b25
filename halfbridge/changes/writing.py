"""Writes messages and dead letters for change events, and holds events of unavailable topics.

One kafka_txn has messages, dead letters and offsets. A real topic that is unavailable for now does
not delay others: its events are held, up to limits, and a restart reads them again (`held`).

    relay ── held events whose topics are back, or were away for too long (`_ready`) ──▶ _write
      │
      └─ each fresh event ── decide ── topic away, or holds earlier events? ── yes ──▶ held
                                          │ no, and events held beyond the limits (`_released`)
                                          └──▶ _write: records and offsets in one kafka_txn
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter

from halfbridge.changes.decide import Dead, Event, Message, decide, decide_held
from halfbridge.changes.held import METADATA_CHARS_MAX, REREAD_MAX, Held, Position, size_of
from halfbridge.checker.loop.blame import SendSize
from halfbridge.checker.loop.clients import QUESTION_S
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import STALL_S, TRY_S
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.errors import KafkaFailure, RetriableError
from halfbridge.relays import ServiceMetrics
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD
from halfbridge.serde.limits import shortened
from halfbridge.serde.records import NO_OFFSET, NO_TIMESTAMP, DeadLetter, DeadReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halfbridge.changes.decide import Decision
    from halfbridge.changes.mapping import ChangeMapping
    from halfbridge.changes.values import Schemas
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.producers import TransactionalProducers
    from halfbridge.kafka.ports import Admin, SeenTopic

# A batch that is refused is divided by this factor, until one event is left: in a few attempts, as
# by `checker.loop.blame.BISECT_FACTOR`.
_BISECT = 8
# Events that are known to be refused: bounds memory where nearly all are. Each is forgotten with
# its dead letter, and others are found again.
_BLAMED_MAX = 1_000
# After this time a topic without a right is tried again. A try costs all topics a failed kafka_txn;
# longer delays the topic after the right was granted.
_REFUSED_S = 60.0
# How long metadata of real topics are valid, and the interval of refreshing them for an unavailable
# topic. Longer delays its events, shorter costs brokers answers about all topics.
METADATA_S = 10.0
_REFRESH_AGAIN_S = 1.0  # one request a second, while the topic's owner creates it
# After a topic took no record it is tried again; the pauses double. Each attempt may cost one of
# eight transactional ids until the topic is back (ADR 26).
_SILENT_S_MIN, _SILENT_S_MAX = 5.0, 320.0
_MIN_IN_SYNC = "min.insync.replicas"
_SETTINGS_S = 3.0  # time-out of a question for a topic's settings: nothing is written meanwhile
_SHOWN_MAX = 5  # topics in health
# Where too many events are held, one in this many is given up, the oldest first: the room lasts for
# a while, and most of the held events stay.
_RELEASED = 8


class ChangesSetup(NamedTuple):
    """The settings and clients of a relay of changes.

    Attributes:
        topic: The change topic.
        mapping: Which changes become messages.
        config: Brokers, prefix, sizes of batches, time-outs.
        group: The consumer group.
        slot: A stable name of this relay, which no other has at the same time.
        transactional_id: What this slot's transactional ids begin with, and no other's.
        schemas: Returns a schema of the registry; RetriableError: it does not answer.
        topic_id: Asks for the id of the change topic.
        accept_lost: Whether to continue at the topic's beginning, if the position is lost.
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


class ChangesMetrics(ServiceMetrics):
    """The metrics of a relay of changes, on a registry of its own. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Counter(
            "halfbridge_relay_changes",
            "Change events relayed, by outcome: message, dead, or why nothing is sent.",
            ["outcome"],
            registry=self.registry,
        )
        self.held = self._gauge("changes_held", "Change events that wait for their real topics.")
        self.producer_replaced = Counter(
            "halfbridge_producer_replacements",
            "Transactional producers that were replaced.",
            registry=self.registry,
        ).inc
        self.spare_id_taken = Counter(
            "halfbridge_spare_transactional_ids",
            "Transactional ids left for another one, because their last kafka_txn did not end.",
            registry=self.registry,
        ).inc


class Learned:
    """What the relay knows from failed kafka_txns; outlives sessions. Times are monotonic seconds.

    The worker's `Blame` serves many pairs and learns by transaction; here one member reads one
    topic, and an event is its own record.

    Attributes:
        limit: Events in the next kafka_txn.
        batch: How much is sent to a partition at once.
        blamed: (partition, offset) -> why this event is refused.
        stubs: Events whose dead letters are too large.
        refused: Topic that takes no record for now -> why, and until when that counts.
        since: (partition, offset) -> when this event was found to wait for its topic.
        min_in_sync: Topic -> its min.insync.replicas; None: not known.
    """

    def __init__(self, limit_max: int) -> None:
        self._limit_max = limit_max
        self.limit, self.batch = limit_max, SendSize.USUAL
        self.blamed: dict[tuple[int, int], str] = {}
        self.stubs: set[tuple[int, int]] = set()
        self.refused: dict[str, tuple[str, float]] = {}
        self.since: dict[tuple[int, int], float] = {}
        self.min_in_sync: dict[str, int | None] = {}
        self._pauses: dict[str, float] = {}  # a topic that took no record -> the last pause

    def was_silent(self, topics: Iterable[str]) -> bool:
        """Return whether one of the topics took no record when it was last tried."""
        return any(each in self._pauses for each in topics)

    def succeeded(self, events: Iterable[Event], topics: Iterable[str]) -> None:
        """Forget the failures of these events and topics, and make the next batch larger."""
        for each in events:
            self.blamed.pop(each.place, None)
            self.stubs.discard(each.place)
            self.since.pop(each.place, None)
        for topic in topics:
            self.min_in_sync.pop(topic, None)  # asked again when replicas are missing again
            self._pauses.pop(topic, None)
            self.refused.pop(topic, None)
        self.limit = min(self._limit_max, self.limit * 2)
        if self.limit == self._limit_max:
            self.batch = SendSize.USUAL

    def failed(self, error: KafkaTxnFailedError, events: list[Event], now_s: float) -> None:
        """Note a failed kafka_txn with these events; one that is refused alone is blamed."""
        for topic, number in error.places:
            pause_s = min(2 * self._pauses.get(topic, _SILENT_S_MIN / 2), _SILENT_S_MAX)
            self._pauses[topic] = pause_s
            why = f"partition {number} acknowledges no records"
            self.refused[topic] = (why, now_s + pause_s)
        if not error.permanent or error.untimely:
            return
        if error.topic_refused and error.topic:
            why = f"refuses this relay: {error.failure}"
            self.refused[error.topic] = (why, now_s + _REFUSED_S)
            return
        if error.too_large:
            self.batch = SendSize.ONE_RECORD
        if len(events) > 1:
            self.limit = max(1, len(events) // _BISECT)
            return
        place = events[0].place
        if place in self.blamed:
            self.stubs.add(place)  # the dead letter was refused
        elif len(self.blamed) < _BLAMED_MAX:
            self.blamed[place] = str(error.failure or error)


class Writing:
    """Relays events of the assigned partitions; until a failure, after which another one begins."""

    def __init__(
        self,
        setup: ChangesSetup,
        producers: TransactionalProducers,
        *,
        admin: Admin,
        learned: Learned,
        metrics: ChangesMetrics,
    ) -> None:
        self._setup, self._producers, self._admin = setup, producers, admin
        self._learned, self._metrics = learned, metrics
        self._names = setup.config.names
        self._dead_topic = self._names.dead
        self._gone_s = setup.config.topic_gone_ms / 1000
        self._seen: Mapping[str, SeenTopic] = {}
        self._seen_at = float("-inf")
        self.begin({}, "", None)

    def begin(self, positions: Mapping[int, Position], topic_id: str, membership: object) -> None:
        """Relay the assigned partitions from their committed positions, as this group member."""
        self._topic_id, self._membership = topic_id, membership
        self._held = Held()
        self._committed = dict(positions)
        self._positions_now = dict(positions)
        # Partition -> how far it is relayed; and the offsets below that are due and not read again.
        self._ends = {number: each.end for number, each in positions.items()}
        self._unread = {number: set(each.due) for number, each in positions.items()}
        since = self._learned.since
        self._learned.since = {
            each: since[each] for each in since if each[1] in self._unread.get(each[0], ())
        }

    @property
    def is_full(self) -> bool:
        """Whether no further event may be read: nothing more can be held."""
        return self._held.is_full and not self._held.were_passed

    def waits_for(self) -> str:
        """Return why events wait for their real topics; empty: none waits."""
        shown = [f"{each} {self._why_unavailable(each)}" for each in self._held.topics[:_SHOWN_MAX]]
        more = len(self._held.topics) - len(shown)
        text = "; ".join([*shown, f"{more} more topics"] if more > 0 else shown)
        return f"events wait for their real topics, others continue: {text}" if text else ""

    def relay(self, fresh: list[Event]) -> None:
        """Write held events, then fresh ones; hold those whose topics are unavailable.

        Raises:
            KafkaTxnFailedError: nothing of a batch was written, or that is not known; the relay
                reads again from the committed offsets.
            RetriableError: the schema registry does not answer, or the group went on without this
                member; the relay tries again.
        """
        while ready := self._ready():
            self._write(ready)
        for batch in self._batches(fresh):
            decided = []
            for event in batch:
                is_done = event.offset < self._ends[event.partition]
                if is_done and event.offset not in self._unread[event.partition]:
                    continue
                self._unread[event.partition].discard(event.offset)
                self._ends[event.partition] = max(self._ends[event.partition], event.offset + 1)
                decision = self._decided(event)
                topic = self._topic_of(decision)
                if topic and (self._held.holds(topic) or self._why_unavailable(topic)):
                    self._hold(topic, event)
                    continue
                decided.append((event, decision))
                if topic and len(self._held):
                    self._held.were_passed = True
            decided.extend(self._released())
            if decided:
                self._write(decided)
        self._metrics.held.set(len(self._held))

    def _ready(self) -> list[tuple[Event, Decision]]:
        """Return held events that no longer wait, for one kafka_txn."""
        ready: list[tuple[Event, Decision]] = []
        for topic in self._held.topics:
            why = self._why_unavailable(topic)
            dead_why = self._why_unavailable(self._dead_topic) if why else ""
            while self._held.holds(topic) and len(ready) < self._learned.limit:
                decision = decide_held(
                    self._decided(self._held.first(topic)),
                    f"{topic} {why}" if why else "",
                    waited_s=monotonic() - self._since(topic),
                    gone_s=self._gone_s,
                    letters_fit=topic != self._dead_topic and not dead_why,
                )
                if decision is None:
                    break
                ready.append((self._held.take(topic), decision))
        return ready

    def _released(self) -> list[tuple[Event, Decision]]:
        """Return the oldest held events where too many are held, as dead letters."""
        released: list[tuple[Event, Decision]] = []
        while self._is_over_limit():
            topic = min(self._held.topics, key=self._since)
            if self._why_unavailable(self._dead_topic):
                raise RetriableError(
                    f"too many events wait for {topic}, and {self._dead_topic} takes none either"
                )
            text = f"{topic} {self._why_unavailable(topic)}, and too many events are held"
            for _ in range(1 + len(self._held) // _RELEASED):
                if self._held.holds(topic):
                    event = self._held.take(topic)
                    released.append((event, Dead(DeadReason.UNDELIVERABLE, text)))
        return released

    def _is_over_limit(self) -> bool:
        if not len(self._held):
            return False
        if self._held.is_full and self._held.were_passed:
            return True
        return any(
            len(each.metadata) > METADATA_CHARS_MAX or each.end - each.offset > REREAD_MAX
            for each in self._positions().values()
        )

    def _write(self, decided: list[tuple[Event, Decision]]) -> None:
        """Write the decisions about events, with the offsets, in one kafka_txn."""
        events = [event for event, _ in decided]
        outcomes: dict[str, int] = {}
        records = []
        for event, decision in decided:
            outcomes[_outcome(decision)] = outcomes.get(_outcome(decision), 0) + 1
            if isinstance(decision, Message):
                topic, key, value, headers = decision
                records.append(Outgoing(topic, -1, key, value, headers, 0))
            elif isinstance(decision, Dead):
                records.append(self._letter(event, decision))
        topics = {each.topic for each in records}
        positions = {
            number: each
            for number, each in self._positions().items()
            if each != self._committed[number]
        }
        send_size, was_silent = self._learned.batch, self._learned.was_silent(topics)
        try:
            if was_silent:  # of new producers a partition that is silent again is known by name
                self._producers.discard()
                self._producers.start(send_size)
            self._producers.write(records, send_size, TRY_S if was_silent else STALL_S)
            self._producers.commit(
                [
                    (self._setup.topic, number, each.offset, each.metadata)
                    for number, each in positions.items()
                ],
                self._membership,
                in_background=False,
            )
        except KafkaTxnFailedError as error:
            self._learned.failed(error, events, monotonic())
            raise
        self._committed.update(positions)
        self._learned.succeeded(events, topics)
        for outcome, count in outcomes.items():
            self._metrics.events.labels(outcome).inc(count)

    def _positions(self) -> dict[int, Position]:
        """Return how far each partition is relayed, if the present batch is written."""
        held = self._held.offsets()
        for number, end in self._ends.items():
            due = tuple(sorted({*held.get(number, ()), *self._unread[number]}))
            position = Position(self._topic_id, end, due)
            if position != self._positions_now[number]:  # an equal one has packed its metadata
                self._positions_now[number] = position
        return dict(self._positions_now)

    def _hold(self, topic: str, event: Event) -> None:
        self._held.add(topic, event)
        self._learned.since.setdefault(event.place, monotonic())

    def _since(self, topic: str) -> float:
        """Return when the event that a topic takes first was found to wait."""
        return self._learned.since[self._held.first(topic).place]

    def _topic_of(self, decision: Decision) -> str:
        if isinstance(decision, Message):
            return decision.topic
        return self._dead_topic if isinstance(decision, Dead) else ""

    def _decided(self, event: Event) -> Decision:
        refused = self._learned.blamed.get(event.place)
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
        is_stub = event.place in self._learned.stubs
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

    def _why_unavailable(self, topic: str) -> str:
        """Return why a topic can take no records now; empty if it can."""
        now_s = monotonic()
        why, until = self._learned.refused.get(topic, ("", 0.0))
        if why and now_s < until:
            return why
        if now_s - self._seen_at > METADATA_S:
            self._refresh()
        if self._unavailable(topic) and monotonic() - self._seen_at > _REFRESH_AGAIN_S:
            self._refresh()
        return self._unavailable(topic)

    def _unavailable(self, topic: str) -> str:
        seen = self._seen.get(topic)
        if seen is None:
            return "does not exist, or may not be described"
        away = seen.unavailable(self._min_in_sync(topic) if seen.out_of_sync else None)
        return next((f"partition {number} {why}" for number, why in away.items()), "")

    def _min_in_sync(self, topic: str) -> int | None:
        """Return the topic's min.insync.replicas; None: not known, as the right may be missing."""
        known = self._learned.min_in_sync
        if topic not in known:
            known[topic] = None
            with suppress(KafkaFailure):
                answer = self._admin.ask_settings([topic], _SETTINGS_S)[topic].result()
                known[topic] = int(answer.get(_MIN_IN_SYNC, "1"))
        return known[topic]

    def _batches(self, fetched: list[Event]) -> Iterator[list[Event]]:
        events: list[Event] = []
        size_bytes, bytes_max = 0, self._setup.config.batch_bytes_max
        for event in fetched:
            events.append(event)
            size_bytes += size_of(event)
            if len(events) >= self._learned.limit or size_bytes >= bytes_max:
                yield events
                events, size_bytes = [], 0
        if events:
            yield events

    def _refresh(self) -> None:
        self._seen = self._admin.topics(QUESTION_S)
        self._seen_at = monotonic()


def _outcome(decision: Decision) -> str:
    if isinstance(decision, Message):
        return "message"
    return "dead" if isinstance(decision, Dead) else decision.why

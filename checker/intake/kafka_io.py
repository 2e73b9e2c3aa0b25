"""The input consumer.

Guards against traps of the protocol stand where they are needed, with the trap named.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from halfbridge.bridge.errors import ConfigError
from halfbridge.bridge.kafka.connections import LISTENED, LostConnections
from halfbridge.bridge.kafka_io import made
from halfbridge.bridge.side_thread import let_go
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.bell.kafka_io import Bell
from halfbridge.checker.clients import QUESTION_S, client_config, joined
from halfbridge.checker.errors import SlotTakenError
from halfbridge.checker.failures import InputLostError
from halfbridge.checker.intake.reading import Committed, GroupTrouble, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.slots import SlotIds

_log = logging.getLogger("halfbridge.checker")

EOF_CODE = KafkaError._PARTITION_EOF
# Records handed over by one call: one large fetch; bounds what is parsed before the next plan.
FETCH_MAX = 5_000
_FENCED_CODES = frozenset((KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED))
_FATAL_CODES = _FENCED_CODES | {KafkaError._FATAL}
UNREACHABLE_CODES = frozenset(
    (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
)
# How long after brokers were unreachable a static member may find that it has fenced itself. The
# client reports the same trouble again only every 30 s.
TROUBLE_S = 60.0


class Input:
    """Consumer of half and op topics.

    Nothing is read on assignment: `assigned` says which partitions are ours, and `read_from`
    starts them once their committed offsets were checked.

    Fetches wait only a few milliseconds, so that batches stay large and latency small; on an
    idle topic that would be hundreds of empty fetches a second. When nothing comes, `doze`
    hands the watch over to the bell; `fetch` wakes the real consumer when it rings.

    Attributes:
        assigned: (topic, partition) pairs of the current generation.
        changed: The assignment changed since the caller last cleared this.
        dozing: The bell is on watch; nothing is fetched but by it.
        reading: How far partitions were read, and since when.
        group_trouble: What the group, or a topic, said among the records: nowhere else is it told.
        is_member: The group has said which partitions are ours, be they none.
        group_metadata: Taken in the assignment callback and kept until the next one. Before the
            first join it would carry no generation, and the broker would fence nobody.
    """

    def __init__(self, config: CheckerConfig, ids: SlotIds) -> None:
        self._config = config
        self._ids = ids
        self._trouble_at = -TROUBLE_S
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self.changed = False
        self.group_metadata: Any = None
        self.dozing = False
        self._served: list[Any] = []
        self.reading = Reading()
        self._paused: set[tuple[str, int]] = set()
        self._fatal: KafkaError | None = None
        self._given_up = ""
        self._generation = 0
        self.group_trouble = GroupTrouble()
        self.is_member = False
        self._troubles = Troubles(_log)
        self._consumer = self._open()
        self._bell = Bell(self._config)

    def fetch(self, wait_s: float) -> list[Any]:
        """Return what has been fetched, waiting `wait_s` for the first record.

        Raises:
            InputLostError: read again from the committed offsets.
            SlotTakenError: another worker runs on this slot.
        """
        self._recover_if_broken()
        self.reading.takes(monotonic())
        try:
            if self.dozing:
                if self._bell.rings(wait_s):
                    self.wake()
                wait_s = 0
            first = self._consumer.poll(wait_s)
            if first is None:
                messages: list[Any] = []
            else:
                # consume() alone would wait for all it may return, or in slices of 200 ms.
                messages = [first, *self._consumer.consume(FETCH_MAX, 0)]
        except KafkaException as error:
            self._note_if_fatal(error.args[0])
            self._recover_if_broken()
            raise InputLostError(str(error)) from error
        # A consumer reports its fatal error among the records, without topic or partition, and
        # once only: whoever dropped it there would never learn of it.
        for message in messages:
            if message.error() is not None:
                self._note_not_a_record(message)
        self._recover_if_broken()
        return messages

    def reached(self) -> dict[tuple[str, int], int]:
        """Return how far partitions were read, markers included, of those that are not paused."""
        fetched = [one for one in self._served if (one.topic, one.partition) not in self._paused]
        positions = self._consumer.position(fetched) if fetched else ()
        return {  # a negative one: nothing was read yet
            (one.topic, one.partition): max(one.offset, self.reading.ends[one.topic, one.partition])
            for one in positions
        }

    def renew_bell(self) -> None:
        """Wake up, and listen with a new bell from now on: the old one did not ring."""
        with suppress(ConfigError):  # for now: then the old one goes on
            old, self._bell = self._bell, Bell(self._config)
            let_go(old)
        self.wake()

    def renew(self, why: str) -> NoReturn:
        """Give the consumer up, and have a new one join in its place.

        Raises:
            InputLostError: always; read again from the committed offsets.
        """
        self._given_up = why
        self._renew()

    def committed(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Committed]:
        """Return the committed offsets of the given partitions, stable ones only.

        Raises:
            InputLostError: the coordinator did not answer.
        """
        places = [TopicPartition(topic, partition) for topic, partition in wanted]
        try:
            answered: list[Any] = self._consumer.committed(places, timeout=QUESTION_S)
        except KafkaException as error:
            raise InputLostError(str(error)) from error
        for one in answered:
            if one.error is not None:
                raise InputLostError(str(one.error))
        return {(one.topic, one.partition): Committed(one.offset, one.metadata) for one in answered}

    def read_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Read exactly these partitions, from these offsets."""
        self.wake()
        self._lift_pauses()
        self._served = [
            TopicPartition(topic, partition, at) for (topic, partition), at in offsets.items()
        ]
        self.reading.begin(offsets, monotonic())
        self._consumer.assign(self._served)

    def doze(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let the bell watch from `offsets`, the end of what was read, until something comes."""
        if not self._served or self.dozing:
            return
        self.dozing = True
        self._consumer.pause(self._served)
        self._bell.listen(offsets)

    def wake(self) -> None:
        """Fetch again."""
        if self.dozing:
            self.dozing = False
            self._bell.rest()
            self._consumer.resume(self._served)

    def pause(self, topic: str, partition: int) -> None:
        """Stop fetching a partition until `resume` or `read_from`; what was fetched is dropped."""
        self._paused.add((topic, partition))
        self._consumer.pause([TopicPartition(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        """Go on fetching a partition."""
        self._paused.discard((topic, partition))
        self._consumer.resume([TopicPartition(topic, partition)])

    def close(self, *, leave: bool) -> None:
        """Close; a static member leaves its group only by unsubscribing first."""
        self.wake()  # closing revokes, and nothing can be resumed by then
        if leave:
            with suppress(RuntimeError):  # closed, and no new one could be made
                self._consumer.unsubscribe()
            deadline = monotonic() + 1.0
            while self.assigned and monotonic() < deadline:
                self._consumer.poll(0.1)
        let_go(self._bell, self._consumer)

    # Callbacks run inside poll() and consume(). One that raised would make the client throw away
    # the records it had taken, so they only take note. A consumer that was given up may still call.

    def _on_assign(self, generation: int, consumer: Any, partitions: Sequence[Any]) -> None:
        if generation != self._generation:
            return
        try:
            self.wake()
            self._served = []
            self.assigned = frozenset((one.topic, one.partition) for one in partitions)
            self.group_metadata = consumer.consumer_group_metadata()
            self.is_member = True
            self.group_trouble.end()
            consumer.assign([])
        except Exception as error:  # noqa: BLE001 (see above)
            _log.warning("assignment failed: %s", error)
        self.changed = True

    def _on_revoke(self, generation: int, consumer: Any, _partitions: Sequence[Any]) -> None:
        if generation != self._generation:
            return
        try:
            self.wake()
            self._lift_pauses()
            self._served = []
            self.assigned, self.is_member = frozenset(), False
            with suppress(RuntimeError):  # it is closing: nothing is left to unassign
                consumer.unassign()
        except Exception as error:  # noqa: BLE001 (see above)
            _log.warning("revocation failed: %s", error)
        self.changed = True

    def _lift_pauses(self) -> None:
        """Resume what was paused, while it is ours: the client keeps pauses over assignments."""
        if self._paused:
            self._consumer.resume([TopicPartition(*place) for place in self._paused])
            self._paused.clear()

    def _on_error(self, generation: int, error: KafkaError) -> None:
        if generation != self._generation:
            return
        if error.code() in UNREACHABLE_CODES:
            self._on_lost(generation)
        self._note_if_fatal(error)
        self._troubles.note(error)

    def _on_lost(self, generation: int) -> None:
        if generation == self._generation:
            self._trouble_at = monotonic()

    def _note_not_a_record(self, message: Any) -> None:
        error = message.error()
        if error.code() == EOF_CODE:
            self.reading.ends[message.topic(), message.partition()] = message.offset()
        self._note_if_fatal(error)
        if _is_of_no_partition(message):
            self._troubles.note(error)
            self.group_trouble.note(error.str(), monotonic())

    def _note_if_fatal(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _FATAL_CODES:
            self._fatal = error

    def _recover_if_broken(self) -> None:
        """Join with a new consumer, unless another process has our slot.

        A static member can fence itself: when the answer to its JoinGroup is lost with the
        connection, the group knows it by a member id that it never learned; when its coordinator
        was silent for a session, the client sends a heartbeat without one. So being fenced means
        another worker unless brokers were just unreachable. Should one have come at that very
        time, this takes the slot back and the other one ends.
        """
        if self._fatal is not None:
            text = self._fatal.str()
            was_fenced = "fenced" in text.lower() or self._fatal.code() in _FENCED_CODES
            if was_fenced and monotonic() - self._trouble_at > TROUBLE_S:
                raise SlotTakenError(
                    f"another worker runs on this slot and took its partitions over ({text}):"
                    " stop one of the two, or give each its own --slot"
                )
            self._fatal, self._given_up = None, f"the consumer could not go on ({text})"
            self._trouble_at = -TROUBLE_S  # it excuses one fence, not the next
        if self._given_up:
            self._renew()

    def _renew(self) -> NoReturn:
        self._generation += 1
        let_go(self._consumer, self._bell)
        self._served = []
        self._paused.clear()
        self.assigned, self.is_member, self.dozing = frozenset(), False, False
        self.changed = True
        try:
            self._bell, self._consumer = Bell(self._config), self._open()
        except ConfigError as error:  # it was right at first: a certificate is being replaced, say
            raise InputLostError(f"no new consumer can be made yet: {error}") from error
        why, self._given_up = self._given_up, ""
        raise InputLostError(f"{why}: a new one joins")

    def _open(self) -> Any:
        config, generation = self._config, self._generation
        consumer: Any = made(
            Consumer,
            {
                **client_config(config),
                **joined(config, self._ids.group_instance_id),
                "error_cb": partial(self._on_error, generation),
                **LISTENED,
            },
            logger=LostConnections(partial(self._on_lost, generation)),
        )
        consumer.subscribe(
            [config.names.half, config.names.op],
            on_assign=partial(self._on_assign, generation),
            on_revoke=partial(self._on_revoke, generation),
            on_lost=partial(self._on_revoke, generation),
        )
        return consumer


def _is_of_no_partition(message: Any) -> bool:
    """Tell whether an error is about the group (no topic) or a topic (no partition)."""
    return message.topic() is None or message.partition() in (None, -1)

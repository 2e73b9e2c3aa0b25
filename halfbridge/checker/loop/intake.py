"""The consumer of half and op topic, a member of the daemon's group.

Each guard against a trap of Kafka's protocol names the trap.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from halfbridge.checker.errors import SlotTakenError
from halfbridge.checker.loop.at_least_once import BoundMember, commits_with
from halfbridge.checker.loop.clients import (
    FETCHING,
    QUESTION_S,
    REPLACED_AFTER_S,
    UnansweredTimer,
    client_config,
    member_config,
    unjoined,
)
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import ErrorLog
from halfbridge.kafka.errors import MEMBER_FENCED, UNREACHABLE, Code, ConfigError, KafkaFailure
from halfbridge.kafka.stalls import UNREAD_S
from halfbridge.serde.topics import DEADLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.clients import SlotIds
    from halfbridge.kafka.first_reads import LethalRecord
    from halfbridge.kafka.ports import (
        ClientError,
        Clock,
        Committed,
        Member,
        Ports,
        Reader,
        Record,
        TopicPartition,
    )
    from halfbridge.serde.progress import Progress

    Probe = Callable[[Mapping[str, object], Mapping[TopicPartition, int]], LethalRecord | None]

_log = logging.getLogger("halfbridge.checker")
# Records of one call: one large fetch, and as many as a batch has (batch_records_max). Bounds the
# records that are parsed before the next plan.
FETCH_MAX = 5_000
# How long a member that leaves waits for the end of a rebalance. Workers poll ten times a second:
# a rebalance in which all of them take part needs less than a second.
_REBALANCE_S = 3.0
# How long it then waits for the revocation of its partitions, which takes milliseconds. Together
# with _REBALANCE_S half of the time that a worker has to end (worker_process.DRAIN_S, 8 s).
_LEAVE_S = 1.0
# A consumer that is no member of its group is asked so often whether brokers answer it. The loop
# waits for the answer, and has nothing else to do. A stop is noticed after it.
_ASK_S = 5.0
_ANSWER_S = 3.0  # below _ASK_S, so that one question ends before the next


class Input:
    """Reads half and op topic for a worker.

    An assignment alone starts no reading: `read_from` starts the `assigned` partitions after a
    check of their committed offsets. A consumer that no broker answers for
    `REPLACED_AFTER_S` is replaced if a new client is answered.

    Attributes:
        assigned: (topic, partition) pairs of the current generation.
        changed: The assignment has changed since the caller last cleared this.
        group_trouble: Errors of the group or a topic, which come among the records only.
        is_member: The group has assigned partitions to this member, perhaps none.
        membership: Read in the assignment callback and kept until the next one. Before the first
            join it has no generation, and the broker would fence nobody.
    """

    def __init__(
        self,
        config: CheckerConfig,
        ids: SlotIds,
        ports: Ports,
        on_replaced: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        self._ids = ids
        self._ports = ports
        self._monotonic = ports.clock.monotonic
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.changed = False
        self.membership: object = None
        self._served: list[TopicPartition] = []
        self.reading = Reading()
        self._paused: set[TopicPartition] = set()
        self._generation = 0
        self.group_trouble = GroupTrouble()
        self.is_member = False
        self._troubles = ErrorLog(_log, ports.clock)
        self._failures = MemberFailures(ports.clock)
        self._on_replaced = on_replaced
        self._silence = UnansweredTimer()
        self._ask_at = self._monotonic() + REPLACED_AFTER_S
        self._member = self._open()

    def fetch(self, wait_s: float) -> list[Record]:
        """Return fetched records, waiting `wait_s` for the first one.

        Raises InputLostError: read again from the committed offsets; or SlotTakenError: another
        worker runs on this slot.
        """
        self._replace_if_broken()
        self._replace_if_silent()
        self.reading.takes(self._monotonic())
        try:
            first = self._member.poll(wait_s)
            # Wait for the first record only: a call for many records waits for all of them.
            records = [] if first is None else [first, *self._member.take(FETCH_MAX)]
        except KafkaFailure as failure:
            self._failures.note(failure)
            self._replace_if_broken()
            raise InputLostError(str(failure)) from failure
        # A member reports a fatal error among the records, without topic or partition, and only
        # once.
        for record in records:
            if record.error() is not None:
                self._note_not_a_record(record)
        self._replace_if_broken()
        return records

    def reached(self) -> dict[TopicPartition, int]:
        """Return the positions of partitions that are not paused; markers count as read."""
        fetched = [place for place in self._served if place not in self._paused]
        return {  # a negative position: nothing has been read
            place: max(position, self.reading.ends[place])
            for place, position in self._member.positions(fetched).items()
        }

    def renew(self, why: str) -> NoReturn:
        """Replace the member, and raise InputLostError: read again from the committed offsets."""
        self._failures.give_up(why)
        self._renew(why)

    def committed(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return committed, stable offsets.

        Raises InputLostError: the coordinator did not answer; the worker tries again.
        """
        asked_at = self._monotonic()
        try:
            found = self._member.committed(wanted, QUESTION_S)
        except KafkaFailure as failure:
            self._note_silence(failure, asked_at)
            raise InputLostError(str(failure)) from failure
        self._silence.end()
        return found

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from these offsets."""
        self._lift_pauses()
        self._served = list(offsets)
        self.reading.begin(offsets, self._monotonic())
        self._member.read_from(offsets)

    def pause(self, topic: str, partition: int) -> None:
        """Stop fetching a partition until `resume` or `read_from`; drops its fetched records."""
        self._paused.add((topic, partition))
        self._member.pause([(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        """Fetch a partition again."""
        self._paused.discard((topic, partition))
        self._member.resume([(topic, partition)])

    def close(self, *, leave: bool) -> None:
        """Close; with `leave`, also leave the group: closing alone does not, in a static member."""
        if leave:
            # RuntimeError: closed already, and no new member could be made. KafkaFailure: the
            # client has failed for good, for example since another worker took the slot over.
            with suppress(RuntimeError, KafkaFailure):
                self._leave()
        self._close_member()

    # Callbacks run inside poll() and take(). If one raised, the client would drop the records that
    # it has fetched. So callbacks only take notes. A replaced member may still call them.

    def _on_assigned(
        self, generation: int, member: Member, places: frozenset[TopicPartition]
    ) -> None:
        if generation != self._generation:
            return
        try:
            self._served = []
            self.assigned = places
            self.membership = commits_with(member, self._config.delivery)
            self.is_member = True
            self.group_trouble.end()
            member.read_from({})
        except Exception as error:  # noqa: BLE001 (see above)
            _log.warning("assignment failed: %s", error)
        self.changed = True

    def _on_revoked(self, generation: int, _member: Member) -> None:
        if generation != self._generation:
            return
        try:
            self._lift_pauses()
            self._served = []
            self.assigned, self.is_member = frozenset(), False
        except Exception as error:  # noqa: BLE001 (see above)
            _log.warning("revocation failed: %s", error)
        self.changed = True

    def _lift_pauses(self) -> None:
        """Resume the paused partitions before they are revoked: pauses outlive an assignment."""
        if self._paused:
            self._member.resume(self._paused)
            self._paused.clear()

    def _on_error(self, generation: int, error: ClientError) -> None:
        if generation != self._generation:
            return
        failure = failure_of(error)
        self._failures.reported(failure)
        self._troubles.note(failure)

    def _on_lost(self, generation: int) -> None:
        if generation == self._generation:
            self._failures.connection_lost()
            if isinstance(self.membership, BoundMember):
                self.membership.connection_lost()

    def _note_not_a_record(self, record: Any) -> None:
        failure = failure_of(record.error())
        if failure.code == Code.PARTITION_EOF:
            self.reading.ends[record.topic(), record.partition()] = record.offset()
        self._failures.note(failure)
        if _is_of_no_partition(record):
            self._troubles.note(failure)
            self.group_trouble.note(failure.text, self._monotonic())

    def _replace_if_broken(self) -> None:
        """Join with a new member if the present one cannot continue; raises as `fetch`."""
        bound = self.membership
        if self.assigned and isinstance(bound, BoundMember) and bound.must_be_replaced:
            self._failures.give_up("a commit of offsets may arrive late")
        if why := self._failures.why_replace():
            self._renew(why)

    def _replace_if_silent(self) -> None:
        """Replace the consumer, and raise InputLostError, if only another client is answered."""
        now = self._monotonic()
        if self.is_member:
            self._ask_at = now + REPLACED_AFTER_S
        elif now >= self._ask_at:
            self._ask_at = now + _ASK_S
            self._ask(self._member, now)
        if self._silence.is_over_limit(now):
            self._silence.end()
            if self._is_another_answered():
                self._on_replaced()
                self.renew("brokers did not answer the consumer, but answer another one")

    def _ask(self, reader: Reader, now: float) -> None:
        """Ask for an offset of the group, as `committed` does."""
        try:
            reader.committed([(self._config.names.half, 0)], _ANSWER_S)
        except KafkaFailure as failure:
            self._note_silence(failure, now)
        else:
            self._silence.end()

    def _note_silence(self, failure: KafkaFailure, asked_at: float) -> None:
        if failure.code > 0:  # a broker's answer
            self._silence.end()
        else:
            self._silence.goes_on(asked_at)

    def _is_another_answered(self) -> bool:
        config = self._config
        try:
            reader = self._ports.kafka.reader({**client_config(config), **unjoined(config)})
        except ConfigError:  # for example while a certificate is being replaced
            return False
        try:
            reader.committed([(config.names.half, 0)], _ANSWER_S)
        except KafkaFailure as failure:
            return failure.code > 0
        finally:
            self._ports.run.close_clients(reader)
        return True

    def _leave(self) -> None:
        # Between a revocation and the next assignment librdkafka (2.16) unsubscribes without a
        # LeaveGroup request: the slot's partitions would wait for the end of its session.
        if not self._polled_until(lambda: self.is_member, _REBALANCE_S):
            _log.warning(
                "the slot %s cannot leave its group during a rebalance:"
                " its partitions move in %d ms, when its session ends",
                self._ids.group_instance_id,
                self._config.session_timeout_ms,
            )
        self._member.leave()
        self._polled_until(lambda: not self.assigned, _LEAVE_S)

    def _polled_until(self, is_done: Callable[[], bool], within_s: float) -> bool:
        deadline = self._monotonic() + within_s
        while not is_done() and self._monotonic() < deadline:
            self._member.poll(_LEAVE_S / 10)
        return is_done()

    def _close_member(self) -> None:
        """Close the member; callbacks of its close() change nothing, and it may answer nothing."""
        self._generation += 1
        self._ports.run.close_clients(self._member)

    def _renew(self, why: str) -> NoReturn:
        self._close_member()
        self._served = []
        self._paused.clear()
        self.assigned, self.is_member = frozenset(), False
        self.changed = True
        try:
            self._member = self._open()
        except ConfigError as error:  # for example while a certificate is being replaced
            raise InputLostError(f"no new consumer can be made yet: {error}") from error
        self._failures.replaced()
        self._silence.end()
        self._ask_at = self._monotonic() + REPLACED_AFTER_S
        raise InputLostError(f"{why}: a new one joins")

    def _open(self) -> Member:
        config, generation = self._config, self._generation
        member = self._ports.kafka.member(
            {
                **member_config(config, self._ids.group_instance_id),
                "error_cb": partial(self._on_error, generation),
            },
            on_lost=partial(self._on_lost, generation),
        )
        member.join(
            [config.names.half, config.names.op],
            partial(self._on_assigned, generation),
            partial(self._on_revoked, generation),
        )
        return member


def _is_of_no_partition(record: Record) -> bool:
    """Tell whether an error concerns the group (no topic) or a whole topic (no partition)."""
    return record.topic() is None or record.partition() in (None, -1)


# How long a report about the group counts: the client repeats the same report only every 30 s.
REASON_KEPT_S = 60.0


class Reading:
    """How far a consumer has read. `ends` may lie after markers, which no record shows."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self._taken_at = self._since = 0.0

    def begin(self, offsets: Mapping[tuple[str, int], int], now: float) -> None:
        """Record that these partitions are read from these offsets."""
        self.ends = dict(offsets)
        self._since = now

    def takes(self, now: float) -> None:
        """Record that the consumer is polled."""
        if now - self._taken_at > UNREAD_S:
            self._since = now
        self._taken_at = now

    def since(self, now: float) -> float:
        """Return since when the consumer has been polled without a pause; `now` if it is not."""
        return now if now - self._taken_at > UNREAD_S else self._since


class GroupTrouble:
    """The group's last reason not to let this member join."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0.0

    def note(self, text: str, now: float) -> None:
        """Keep the reason."""
        self._text, self._at = text, now

    def end(self) -> None:
        """Record that the member has joined."""
        self._text = ""

    def text(self, now: float) -> str:
        """Return the reason; empty if there is none or it is older than REASON_KEPT_S."""
        return self._text if now - self._at <= REASON_KEPT_S else ""


_FATAL = MEMBER_FENCED | {Code.FATAL}
# How long after a lost connection a static member may find that it has fenced itself. The client
# reports the same trouble only every 30 s.
TROUBLE_S = 60.0


class MemberFailures:
    """What the present member reported, and what follows from that.

    A static member can fence itself. The answer to its JoinGroup is lost with the connection: the
    group has given it a member id that it does not know. Or the coordinator was silent for a
    session: the client sends a heartbeat without a member id. So a fenced member means another
    worker, unless a connection was lost in the last TROUBLE_S. If another worker came in that time,
    this worker takes the slot back and the other one ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._lost_at = -TROUBLE_S
        self._fatal: KafkaFailure | None = None
        self._why = ""

    def note(self, failure: KafkaFailure) -> None:
        """Take a failure that a call or a record of the member reports."""
        if failure.is_fatal or failure.code in _FATAL:
            self._fatal = failure

    def reported(self, failure: KafkaFailure) -> None:
        """Take a failure that the member reports outside of calls; most end by themselves."""
        if failure.code in UNREACHABLE:
            self.connection_lost()
        self.note(failure)

    def connection_lost(self) -> None:
        """Record that a connection to a broker was lost now."""
        self._lost_at = self._monotonic()

    def give_up(self, why: str) -> None:
        """Record that the member must be replaced, for a reason that it did not report."""
        self._why = why

    def why_replace(self) -> str:
        """Return why the member must be replaced, until `replaced`; empty if it can be used.

        Raises SlotTakenError: another worker runs on this slot; the operator stops one of the two.
        """
        if self._fatal is not None:
            text = self._fatal.text
            was_fenced = "fenced" in text.lower() or self._fatal.code in MEMBER_FENCED
            if was_fenced and self._monotonic() - self._lost_at > TROUBLE_S:
                raise SlotTakenError(
                    f"another worker runs on this slot and took its partitions over ({text}):"
                    " stop one of the two, or give each its own --slot"
                )
            self._fatal, self._why = None, f"the consumer could not go on ({text})"
            self._lost_at = -TROUBLE_S  # one lost connection excuses one fence only
        return self._why

    def replaced(self) -> None:
        """Record that a new member joins; its failures have nothing to do with the former's."""
        self._why = ""


_READING = "reading"


class FirstReads:
    """Marks pairs whose first records are being read, so that a damaged record ends few processes.

    A damaged record may end the process that reads it (`halfbridge.kafka.first_reads`), and the
    pair then moves to the next worker. So a worker leaves a mark in Kafka before it reads a pair,
    and clears the mark once the pair is rebuilt. A worker that finds a mark has the pair's records
    read in a child process first (`probe`). Marks are offsets with a text in a group of their own,
    because workers on different machines share nothing else.
    """

    def __init__(self, config: CheckerConfig, ports: Ports, probe: Probe) -> None:
        self._config = config
        self._ports = ports
        self._probe = probe
        self._troubles = ErrorLog(_log, ports.clock)
        self._marked: set[int] = set()

    def begin(self, pairs: Mapping[int, Progress]) -> dict[int, str]:
        """Mark pairs; return why some must not be read. Blocks. Silent brokers hold up no pair."""
        if not pairs:
            return {}
        unsafe = {
            number: why
            for number in sorted(self._left_behind(pairs) - self._marked)  # not its own marks
            if (why := self._why_not(number, pairs[number]))
        }
        self._marked = set(pairs) - set(unsafe)
        self._write(
            {
                **dict.fromkeys(self._marked, _READING),
                **{number: DEADLY + why for number, why in unsafe.items()},
            }
        )
        return unsafe

    def rebuilt(self, numbers: Iterable[int]) -> None:
        """Clear the marks of pairs that were read to their ends."""
        cleared = self._marked & set(numbers)
        self._marked -= cleared
        self._write(dict.fromkeys(cleared, ""))

    def _left_behind(self, numbers: Iterable[int]) -> set[int]:
        places = [(self._config.names.half, number) for number in numbers]
        reader = self._reader()
        try:
            found = reader.committed(places, QUESTION_S)
        except KafkaFailure as failure:
            self._troubles.note(failure)
            return set()
        finally:
            self._ports.run.close_clients(reader)
        return {number for (_, number), each in found.items() if each.metadata}

    def _why_not(self, number: int, progress: Progress) -> str:
        names = self._config.names
        _log.warning(
            "partition %d: a worker ended, or was stopped, while it read the first records; a child"
            " process reads them first",
            number,
        )
        starts = {(names.half, number): progress.half, (names.op, number): progress.ops_from}
        isolation = {"isolation.level": "read_committed", "group.id": names.daemon_group}
        found = self._probe({**FETCHING, **client_config(self._config), **isolation}, starts)
        if found is None:
            return ""
        return (
            f"{found.topic}[{found.partition}]@{found.offset}: the record there is damaged and ends"
            f" the process that reads it ({found.signal}); repair the partition from another"
            " replica: docs/incidents/damaged-record.md"
        )

    def _write(self, texts: Mapping[int, str]) -> None:
        if not texts:
            return
        half = self._config.names.half
        reader = self._reader()
        try:
            reader.commit({(half, number): (0, text) for number, text in texts.items()})
        except KafkaFailure as failure:
            self._troubles.note(failure)
        finally:
            self._ports.run.close_clients(reader)

    def _reader(self) -> Reader:
        return self._ports.kafka.reader(
            {
                **client_config(self._config),
                "group.id": self._config.names.reading_group,
                "session.timeout.ms": self._config.session_timeout_ms,
                "enable.auto.commit": False,
            }
        )

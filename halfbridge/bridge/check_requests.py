"""Reads the requests of a group's check topic, and notices when the consumer has stalled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.bridge.config import checks_properties
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import LOG_AGAIN_S, log_safely
from halfbridge.kafka.errors import DAMAGED, BridgeError, Code, KafkaFailure, RetriableError
from halfbridge.kafka.stalls import POLL_S, STALLED_S, UNREAD_S, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.daemon_settings import EndAsker
    from halfbridge.bridge.shared import Shared
    from halfbridge.kafka.ends import Ends
    from halfbridge.kafka.ports import Member, Ports, Record, TopicPartition
    from halfbridge.kafka.stalls import LaggingPartition

_LOG = logging.getLogger("halfbridge.bridge")
_BATCH_MAX = 1_000  # at a time: half of check_queue_max's default; each becomes a call of the pool
_POLL_S = 0.2  # how late a stop, and a pool that has room again, is noticed
_NOTHING_READ = -1  # below every offset
# Time-out of a question about a partition that cannot be read; the member must poll within 300 s.
_QUESTION_S = 10.0
# If a new consumer stalls as well, the next one must not make the group rebalance each minute: the
# time doubles four times, to 16 minutes.
PATIENCE_S_MAX = 16 * STALLED_S


class StalledError(RetriableError):
    """A partition had more records, and none was read; `is_again`: a record is unreadable."""

    def __init__(self, place: TopicPartition, patience_s: float, *, is_again: bool) -> None:
        topic, partition = place
        super().__init__(
            f"no record of {topic}[{partition}] came for {patience_s:g} s, but the log has more"
        )
        self.place, self.is_again = place, is_again


class CheckRequests:
    """A member of the group that reads its check topic; after `leave`, `read` joins again.

    Where a record cannot be read, the requests up to the end of its partition are left out, after a
    call of `on_unreadable`: the daemon asks again.
    """

    def __init__(
        self, shared: Shared, ports: Ports, on_unreadable: Callable[[], object] = lambda: None
    ) -> None:
        self._config = shared.config
        self._ports = ports
        self._on_unreadable = on_unreadable
        self._named_at: dict[TopicPartition, float] = {}
        self._member: Member | None = None
        self._watch = RequestWatch(shared.ends)

    @property
    def has_joined(self) -> bool:
        """Return whether this is a member of the group."""
        return self._member is not None

    def join(self) -> None:
        """Join the group. ConfigError: no member can be made; the user corrects the settings."""
        self._joined()

    def read(self) -> list[Record]:
        """Return records after a short wait. RetriableError: stalled; leave and read again."""
        member = self._member or self._joined()
        try:
            self._watch.check(member.assignment, self._ports.clock.monotonic())
        except StalledError as stalled:
            if not stalled.is_again:
                raise
            place = stalled.place
            at = self._watch.reached(place)
            if at == _NOTHING_READ:
                at = member.committed([place], _QUESTION_S)[place].offset
            self._leave_out(member, place, at, str(stalled))
        first = member.poll(_POLL_S)
        records = [] if first is None else [first, *member.take(_BATCH_MAX - 1)]
        taken = []
        damaged: dict[TopicPartition, Record] = {}
        for record in records:
            if self._watch.take(record):
                continue
            spot = _damaged_place(record)
            if spot is None:
                taken.append(record)
            else:
                damaged[spot] = record
        for spot, record in damaged.items():
            self._leave_out(member, spot, record.offset() or 0, str(failure_of(record.error())))
        return taken

    def leave(self) -> None:
        """Leave the group. A failure is logged; waits no longer than `close_clients`."""
        member, self._member = self._member, None
        if member is None:
            return
        try:
            self._ports.run.close_clients(member)
        except BaseException:  # noqa: BLE001  (a consumer that broke may break again)
            log_safely(_LOG.exception, "closing the check consumer failed")

    def _leave_out(self, member: Member, place: TopicPartition, at: int, why: str) -> None:
        """Continue at the end of a partition, after a record that cannot be read."""
        start, end = member.ends(place, _QUESTION_S)
        member.skip_to(place, end)
        self._watch.left_out(place, end)
        self._on_unreadable()
        now = self._ports.clock.monotonic()
        if now - self._named_at.get(place, float("-inf")) < LOG_AGAIN_S:
            return
        self._named_at[place] = now
        text = (
            "%s[%d]@%d: the check request there cannot be read (%s): requests up to offset %d are"
            " left out, and are asked again; docs/incidents/damaged-record.md"
        )
        log_safely(_LOG.error, text, *place, max(at, start), why, end)

    def _joined(self) -> Member:
        config, clock = self._config, self._ports.clock
        self._member = member = self._ports.kafka.member(checks_properties(config, clock))
        member.join_and_read([config.names.check(config.producer_group)])
        self._watch.begin(clock.monotonic())
        return member


class RequestWatch:
    """Compares a consumer's positions with the ends of partitions. Times: monotonic seconds."""

    def __init__(self, asker: EndAsker) -> None:
        self._asker = asker
        self._question: Ends | None = None
        self._asked_at = self._polled_at = 0.0
        self._unanswered = 0  # of the places that were asked about last
        self._reached: dict[TopicPartition, int] = {}
        self._behind: dict[TopicPartition, LaggingPartition] = {}
        self._patience_s: dict[TopicPartition, float] = {}

    def begin(self, now: float) -> None:
        """Record that a new consumer reads."""
        self._reached, self._behind, self._question = {}, {}, None
        self._asked_at = self._polled_at = now

    def reached(self, place: TopicPartition) -> int:
        """Return the offset after the last record that was read; below 0: none was."""
        return self._reached.get(place, _NOTHING_READ)

    def left_out(self, place: TopicPartition, end: int) -> None:
        """Record that the consumer continues at `end`."""
        self._reached[place] = end
        self._behind.pop(place, None)
        self._patience_s.pop(place, None)

    def take(self, record: Record) -> bool:
        """Note the position; return whether `record` is the end of a partition, and no record."""
        error = record.error()
        is_end = error is not None and failure_of(error).code == Code.PARTITION_EOF
        place = record.topic() or "", record.partition() or 0
        if error is None:
            self._patience_s.pop(place, None)
        if error is None or is_end:
            self._reached[place] = (record.offset() or 0) + (not is_end)
        return is_end

    def check(self, assignment: Callable[[], list[TopicPartition]], now: float) -> None:
        """Ask where partitions end, or take answers.

        Raises StalledError: nothing read for STALLED_S; the caller leaves and reads again.
        """
        if now - self._polled_at > UNREAD_S:  # the process itself was suspended
            self._behind = {}
        self._polled_at = now
        if self._question is not None and self._question.is_over:
            ends, self._question = self._question.answers(), None
            self._compare(ends, now)
        elif now - self._asked_at >= POLL_S:
            self._asked_at = now
            self._ask_where_logs_end(assignment())

    def _ask_where_logs_end(self, places: list[TopicPartition]) -> None:
        self._question = None
        if not places:
            return
        # A client remembers a partition's leader for minutes, and stalls follow moved leaders.
        new_client, self._unanswered = self._unanswered > 0, len(places)
        try:
            self._question = self._asker.ask(places, new_client=new_client)
        except (BridgeError, KafkaFailure, RuntimeError) as error:
            log_safely(_LOG.info, "cannot ask where partitions %s end: %s", places, error)

    def _compare(self, ends: dict[TopicPartition, int], now: float) -> None:
        self._unanswered -= len(ends)
        reached = {place: self._reached.get(place, _NOTHING_READ) for place in ends}
        self._behind = compare(self._behind, reached, ends, now)
        for place, at in self._behind.items():
            patience_s = self._patience_s.get(place, STALLED_S)
            if now - at.since >= patience_s:
                is_again = place in self._patience_s
                self._patience_s[place] = min(2 * patience_s, PATIENCE_S_MAX)
                raise StalledError(place, patience_s, is_again=is_again)


def _damaged_place(record: Record) -> TopicPartition | None:
    """Return the partition of an error that says that a record cannot be read."""
    error = record.error()
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    if error is None or topic is None or partition is None or offset is None or offset < 0:
        return None
    return (topic, partition) if failure_of(error).code in DAMAGED else None

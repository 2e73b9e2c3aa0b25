"""A member of a consumer group, as `ports.Member`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.units import NS_PER_MS
from halfbridge.testkit.memory.client import Kind, RequestTimeoutError
from halfbridge.testkit.memory.group import NO_GENERATION, Membership
from halfbridge.testkit.memory.reader import ErrorRecord, MemoryReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.testkit.memory.group import Group, Offsets

# librdkafka's defaults.
_SESSION_MS = 45_000
_REBALANCE_MS = 300_000  # max.poll.interval.ms
_REFRESH_MS = 300_000  # topic.metadata.refresh.interval.ms
_AUTO_COMMIT_MS = 5_000
_ANSWER_S = 60.0
_STORED = -1000  # librdkafka's OFFSET_STORED
_FENCED = (
    "Fatal error: Broker: Static consumer fenced by other consumer with same group.instance.id"
)


class MemoryMember(MemoryReader):
    """A group member, which takes part in the group when polled."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._instance = self.text("group.instance.id")
        self._session_ns = self.number("session.timeout.ms", _SESSION_MS) * NS_PER_MS
        self._rebalance_ns = self.number("max.poll.interval.ms", _REBALANCE_MS) * NS_PER_MS
        self._refresh_ns = (
            self.number("topic.metadata.refresh.interval.ms", _REFRESH_MS) * NS_PER_MS
        )
        self._commits_itself = self.flag("enable.auto.commit", default=True)
        self._commit_every_ns = self.number("auto.commit.interval.ms", _AUTO_COMMIT_MS) * NS_PER_MS
        self._topics: tuple[str, ...] = ()
        self._on_assigned: Callable[[Any, frozenset[TopicPartition]], None] | None = None
        self._on_revoked: Callable[[Any], None] | None = None
        self._member_id = 0
        self._generation = NO_GENERATION
        self._is_assigned = self._is_leaving = False
        self._fatal: KafkaFailure | None = None
        self._stored: dict[TopicPartition, int] = {}
        self._commit_at_ns = self._refresh_at_ns = 0
        self._counts: dict[str, int] = {}
        self._unreported: set[str] = set()

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Any, frozenset[TopicPartition]], None],
        on_revoked: Callable[[Any], None],
    ) -> None:
        self.join_and_read(topics)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked

    def join_and_read(self, topics: Sequence[str]) -> None:
        self._check_open()
        self._topics, self._unreported = tuple(topics), set(topics)
        self._on_assigned = self._on_revoked = None
        self._counts = self._partition_counts()
        self._refresh_at_ns = self._scheduler.now_ns + self._refresh_ns

    def membership(self) -> Membership:
        self._check_open()
        return Membership(self._group, self._instance, self._member_id, self._generation)

    def leave(self) -> None:
        """Leave the group in the next poll."""
        self._check_open()
        if self._fatal is not None:
            raise KafkaFailure(Code.FATAL, "Failed to remove subscription: Local: Fatal error")
        self._is_leaving = bool(self._topics)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str | None]]) -> None:
        if self._fatal is not None:
            raise KafkaFailure(Code.FATAL, "Commit failed: Local: Fatal error")
        super().commit(offsets)

    def commit_as(
        self, offsets: Mapping[TopicPartition, tuple[int, str | None]], membership: object
    ) -> None:
        if self._fatal is not None:
            raise KafkaFailure(Code.FATAL, "Commit failed: Local: Fatal error")
        self._check_open()
        who: Membership = membership  # type: ignore[assignment]  # our own, opaque to users
        self._commit(who, offsets)

    def close(self) -> None:
        """Close: a dynamic member leaves its group; a static one stays, without callbacks."""
        if self.is_closed:
            return
        leaves = not self._instance or self._is_leaving
        if self._topics and self._fatal is None and leaves:
            self._revoke()
            with suppress(RequestTimeoutError):  # its session expires all the same
                self._leave_group()
        super().close()

    # --- parts ------------------------------------------------------------------------------

    def _serve(self) -> None:
        super()._serve()
        if not self._topics or self._fatal is not None or self.is_closed:
            return
        if not self._network.reaches(self.process):
            return
        if self._silent_until_ns > self._scheduler.now_ns:
            return
        try:
            if self._is_leaving:
                self._leave_now()
            else:
                self._take_part(self._broker.group(self._group))
                self._keep_up()
        except RequestTimeoutError:
            self._silent_until_ns = self._deadline(self._backoff_s)

    def _has_news(self) -> bool:
        return super()._has_news() or self._has_group_news()

    def _has_group_news(self) -> bool:
        if not self._topics or self._fatal is not None:
            return False
        if not self._network.reaches(self.process):
            return False
        if self._silent_until_ns > self._scheduler.now_ns:
            return False
        if self._is_leaving or self._unreported or self._scheduler.now_ns >= self._refresh_at_ns:
            return True
        group = self._broker.group(self._group)
        slot = group.slots.get(self._member_id)
        if slot is None:
            return True
        return not slot.has_joined if group.is_rebalancing else self._generation != group.generation

    def _take_part(self, group: Group) -> None:
        if self._member_id and group.is_fenced(self._instance, self._member_id):
            self._fatal = KafkaFailure(Code.FATAL, _FENCED)
            self._next, self._stored = {}, {}
            self._fetched.clear()
            self._fetched.append(ErrorRecord(self._fatal, None, 0))
            return
        self._report_missing_topics()
        slot = group.slots.get(self._member_id)
        if slot is None:
            self._revoke()
            self._join(group)
            slot = group.slots.get(self._member_id)
            if slot is None:
                return  # removed before the answer came
        elif group.is_rebalancing and not slot.has_joined:
            self._revoke()
            self._ask(Kind.JOIN, lambda: group.rejoin(self._member_id))
        if not group.is_rebalancing and self._generation != group.generation:
            self._revoke()
            self._generation = group.generation
            self._assign(slot.assigned)

    def _join(self, group: Group) -> None:
        self._generation = NO_GENERATION
        self._member_id = self._ask(
            Kind.JOIN,
            lambda: group.join(
                self._instance,
                client_id=self.text("client.id", "rdkafka"),
                topics=self._topics,
                session_ns=self._session_ns,
                rebalance_ns=self._rebalance_ns,
                now_ns=self._scheduler.now_ns,
                is_heard=self._is_heard,
            ),
        )

    def _assign(self, places: frozenset[TopicPartition]) -> None:
        self._is_assigned = True
        before = self._next = {}
        if self._on_assigned is not None:
            self._on_assigned(self, places)
        if self._next is before:
            self.read_from(dict.fromkeys(sorted(places), _STORED))
        self._commit_at_ns = self._scheduler.now_ns + self._commit_every_ns

    def _revoke(self) -> None:
        """Give up the assignment, as before every new one."""
        if not self._is_assigned:
            return
        self._commit_stored()
        self._is_assigned = False
        if self._on_revoked is not None:
            self._on_revoked(self)
        self.read_from({})

    def _leave_now(self) -> None:
        self._revoke()
        self._leave_group()
        self._topics, self._is_leaving = (), False
        self._member_id, self._generation = 0, NO_GENERATION

    def _leave_group(self) -> None:
        group, now_ns = self._broker.group(self._group), self._scheduler.now_ns
        self._ask(Kind.LEAVE, lambda: group.leave(self._member_id, now_ns))

    def _is_heard(self) -> bool:
        process = self.process
        return not (self.is_closed or process.is_frozen) and self._network.reaches(process)

    def _ask(self, kind: Kind, do: Callable[[], object]) -> Any:
        return self._network.request(self, kind, self._group, do, _ANSWER_S)

    def _committer(self) -> Membership:
        return self.membership() if self._member_id else super()._committer()

    def _hand_over(self) -> Any:
        record = super()._hand_over()
        if self._commits_itself and record is not None and record.error() is None:
            self._stored[record.topic(), record.partition()] = record.offset() + 1
        return record

    def _keep_up(self) -> None:
        """Auto-commit, and refresh the partition counts, each at its own interval."""
        now_ns = self._scheduler.now_ns
        if self._stored and now_ns >= self._commit_at_ns:
            self._commit_stored()
            self._commit_at_ns = now_ns + self._commit_every_ns
        if now_ns >= self._refresh_at_ns:
            self._refresh_at_ns = now_ns + self._refresh_ns
            counts = self._partition_counts()
            if counts != self._counts:
                self._counts = counts
                self._broker.group(self._group).rebalance(now_ns, self._rebalance_ns)

    def _commit_stored(self) -> None:
        offsets: Offsets = {place: (offset, None) for place, offset in self._stored.items()}
        self._stored = {}
        if offsets:
            try:
                self.commit(offsets)
            except KafkaFailure as failure:
                self.tell(failure)

    def _partition_counts(self) -> dict[str, int]:
        topics = self._broker.topics
        return {name: len(topics[name].partitions) for name in self._topics if name in topics}

    def _report_missing_topics(self) -> None:
        for name in sorted(self._unreported):
            if name not in self._broker.topics:
                text = f"Subscribed topic not available: {name}: Broker: Unknown topic or partition"
                failure = KafkaFailure(Code.UNKNOWN_TOPIC_OR_PART, text)
                self._fetched.append(ErrorRecord(failure, name, -1))
        self._unreported = set()

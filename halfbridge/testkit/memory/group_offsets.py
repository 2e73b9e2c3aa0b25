"""The offsets of a group, and the ends of partitions, as a consumer asks for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import NO_COMMITTED_OFFSET, Committed, Edge
from halfbridge.testkit.memory.client import Client
from halfbridge.testkit.memory.network import Kind
from halfbridge.testkit.memory.seat import NO_GENERATION, Membership

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import Place

# How long a commit waits for its answer (socket.timeout.ms).
_ANSWER_S = 60.0


class GroupOffsets(Client):
    """What a consumer asks for besides records."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = self.text("group.id")
        self._is_committed = self.text("isolation.level", "read_committed") == "read_committed"

    def committed(self, places: Iterable[Place], timeout_s: float) -> dict[Place, Committed]:
        """Return the group's committed offsets, stable ones with read_committed."""
        self._check_open()
        asked, deadline_ns = list(places), self._deadline(timeout_s)
        while True:
            found = self._persist(
                Kind.FETCH_OFFSETS,
                self._group,
                lambda: self._broker.fetch_offsets(
                    self._group, asked, is_stable=self._is_committed
                ),
                deadline_ns,
            )
            if found is not None:
                none = (NO_COMMITTED_OFFSET, None)
                return {place: Committed(*found.get(place, none)) for place in asked}
            left_s = self._left_s(deadline_ns)
            if not left_s:
                raise KafkaFailure(
                    Code.TIMED_OUT, "Failed to get committed offsets: Local: Timed out"
                )
            self._wait_for_change(left_s)

    def commit(self, offsets: Mapping[Place, tuple[int, str | None]]) -> None:
        """Commit offsets of the group outside any kafka_txn, in one request; waits for it."""
        self._check_open()
        self._commit(self._who_commits(), offsets)

    def _commit(self, member: Membership, offsets: Mapping[Place, tuple[int, str | None]]) -> None:
        wanted = dict(offsets)
        self._request(
            Kind.COMMIT_OFFSETS,
            self._group,
            lambda: self._broker.commit_offsets(member, wanted),
            _ANSWER_S,
        )

    def ends(self, place: Place, timeout_s: float) -> tuple[int, int]:
        """Return log start and high watermark, asked now."""
        self._check_open()

        def ask() -> tuple[int, int]:
            return self._broker.end(place, Edge.START), self._broker.end(place, Edge.END)

        try:
            return self._persist(Kind.ENDS, place, ask, self._deadline(timeout_s))
        except KafkaFailure as failure:
            if failure.code != Code.UNKNOWN_TOPIC_OR_PART:
                raise
            raise KafkaFailure(
                Code.UNKNOWN_PARTITION, "Failed to get watermark offsets: Local: Unknown partition"
            ) from failure

    def offsets_at(
        self, times_ms: Mapping[Place, int], timeout_s: float
    ) -> dict[Place, int | None]:
        """Return the first offset whose record is not older than a time; None: there is none."""
        self._check_open()
        deadline_ns = self._deadline(timeout_s)

        def ask(place: Place, at_ms: int) -> int | None:
            partition = self._broker.partition(place)
            return partition.offset_at(at_ms, is_committed=self._is_committed)

        return {
            place: self._persist(Kind.ENDS, place, partial(ask, place, at_ms), deadline_ns)
            for place, at_ms in times_ms.items()
        }

    def topic_failure(self, topic: str, timeout_s: float) -> KafkaFailure | None:
        """Return why a topic cannot be read (missing, no right); None: it can."""
        self._check_open()

        def ask() -> KafkaFailure | None:
            try:
                self._broker.topic(topic)
                self._broker.check_read(self.process.name, topic)
            except KafkaFailure as failure:
                return failure
            return None

        return self._persist(Kind.METADATA, topic, ask, self._deadline(timeout_s))

    def _check_open(self) -> None:
        self._scheduler.check(self.process)
        if self.is_closed:
            raise RuntimeError("Consumer closed")

    def _who_commits(self) -> Membership:
        return Membership(self._group, "", 0, NO_GENERATION)

    def _wait_for_change(self, timeout_s: float) -> None:
        version = self._broker.version
        self._wait(lambda: self._broker.version != version, timeout_s)

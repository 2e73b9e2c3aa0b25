"""Reads the requests of a group's check topic, and notices when no more of them come."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from bridge import kafka_io
from bridge.errors import RetriableError
from bridge.side_thread import let_go
from bridge.stalls import LOOK_S, STALLED_S, UNREAD_S, compare
from bridge.trouble import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridge.inquiry.kafka_io import Ends
    from bridge.shared import Shared
    from bridge.stalls import Behind

_LOG = logging.getLogger("halfbridge.bridge")
_BATCH_MAX = 1_000
_POLL_S = 0.2
_NOTHING_READ = -1


class CheckRequests:
    """A member of the group that reads its check topic; joins again when it has left."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._consumer: Any = None
        self._watch = _StallWatch(shared.ask_ends)

    def join(self) -> None:
        """Join the group.

        Raises:
            ConfigError: no consumer takes these settings; the user corrects them.
        """
        self._consumer = kafka_io.make_check_consumer(self._shared.config)
        self._watch = _StallWatch(self._shared.ask_ends)

    def read(self) -> list[Any]:
        """Return records, and errors of the consumer; waits a moment for the first of them.

        Raises:
            RetriableError: no more come, though there are more. Leave, and read again.
        """
        if self._consumer is None:
            self.join()
        first = self._consumer.poll(_POLL_S)
        records = [] if first is None else [first, *self._consumer.consume(_BATCH_MAX - 1, 0)]
        found = [record for record in records if not self._watch.take(record)]
        self._watch.look(self._consumer.assignment(), monotonic())
        return found

    def leave(self) -> None:
        """Leave the group; tells of what fails, and waits no longer than `let_go`."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            let_go(consumer)
        except BaseException:  # noqa: BLE001  (a consumer that broke may break again)
            tell(_LOG.exception, "closing the check consumer failed")


class _StallWatch:
    """Compares how far one consumer has read with where its partitions end."""

    def __init__(self, ask: Callable[[Iterable[tuple[str, int]]], Ends]) -> None:
        self._ask = ask
        self._question: Ends | None = None
        self._reached: dict[tuple[str, int], int] = {}
        self._behind: dict[tuple[str, int], Behind] = {}
        self._asked_at = self._looked_at = monotonic()

    def take(self, record: Any) -> bool:
        """Note how far was read; return whether this was the end of a partition, no record."""
        error = record.error()
        is_end = error is not None and error.code() == kafka_io.PARTITION_EOF
        if error is None or is_end:
            place = record.topic(), record.partition()
            self._reached[place] = record.offset() + (not is_end)
        return is_end

    def look(self, assigned: Iterable[Any], now: float) -> None:
        """Ask where `assigned` end, or take the answers to that; never waits.

        Raises:
            RetriableError: one went on for STALLED_S, and nothing of it came.
        """
        if now - self._looked_at > UNREAD_S:  # what stood still was the process
            self._behind = {}
        self._looked_at = now
        if self._question is not None and self._question.is_over:
            ends, self._question = self._question.answers(), None
            self._compare(ends, now)
        elif now - self._asked_at >= LOOK_S:
            self._asked_at = now
            self._question = self._ask([(place.topic, place.partition) for place in assigned])

    def _compare(self, ends: dict[tuple[str, int], int], now: float) -> None:
        reached = {place: self._reached.get(place, _NOTHING_READ) for place in ends}
        self._behind = compare(self._behind, reached, ends, now)
        for (topic, partition), at in self._behind.items():
            if now - at.since >= STALLED_S:
                raise RetriableError(
                    f"nothing more of {topic}[{partition}] came for {STALLED_S:g} s, "
                    "although it goes on"
                )

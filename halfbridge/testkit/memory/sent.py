"""A record that a client handed over to be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.testkit.memory.log import Row


class Sent:
    """A record that was handed over, and what `on_delivery` is given of it."""

    __slots__ = ("_offset", "_partition", "_timestamp", "_topic", "deadline_ns", "failure",
                 "on_delivery", "row")  # fmt: skip

    def __init__(
        self, topic: str, partition: int, row: Row, on_delivery: Any, deadline_ns: int
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset: int | None = None
        self._timestamp = (0, -1)
        self.row = row
        self.on_delivery = on_delivery
        self.deadline_ns = deadline_ns
        self.failure: KafkaFailure | None = None

    def put(self, partition: int) -> None:
        """Note its partition."""
        self._partition = partition

    def stored(self, offset: int | None, timestamp: tuple[int, int]) -> None:
        """Note where it stands; None: the client only infers that it does."""
        self._offset, self._timestamp = offset, timestamp

    def topic(self) -> str:
        """Return the topic."""
        return self._topic

    def partition(self) -> int:
        """Return the partition's number."""
        return self._partition

    def offset(self) -> int | None:
        """Return the offset."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of timestamp, and the time, ms since 1970."""
        return self._timestamp

    def key(self) -> bytes | None:
        """Return the key."""
        return self.row.key

    def value(self) -> bytes | None:
        """Return the value."""
        return self.row.value

    def headers(self) -> None:
        """Return None: the client gives them away with the record."""

    def error(self) -> KafkaFailure | None:
        """Return why it is not stored."""
        return self.failure

    def __len__(self) -> int:
        return len(self.row.value or b"")

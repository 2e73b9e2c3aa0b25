"""What a reader finds among the records that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfbridge.kafka.errors import KafkaFailure


class ErrorRecord:
    """An error in place of a record."""

    __slots__ = ("_error", "_offset", "_partition", "_topic")

    def __init__(
        self, error: KafkaFailure, topic: str | None, partition: int, offset: int | None = None
    ) -> None:
        self._error = error
        self._topic = topic
        self._partition = partition
        self._offset = offset

    def topic(self) -> str | None:
        """Return the topic; None in an error about the group."""
        return self._topic

    def partition(self) -> int:
        """Return the partition's number."""
        return self._partition

    def offset(self) -> int | None:
        """Return where that is."""
        return self._offset

    def error(self) -> KafkaFailure:
        """Return the error."""
        return self._error

    def key(self) -> None:
        """Return None."""

    def value(self) -> bytes:
        """Return what the client has in place of a value."""
        return self._error.text.encode()

    def headers(self) -> None:
        """Return None."""

    def timestamp(self) -> tuple[int, int]:
        """Return that there is none."""
        return 0, -1

    def __len__(self) -> int:
        return len(self._error.text)


class MarkerPassed:
    """Stands for the marker that ends what was fetched: nobody sees it, but it is read."""

    __slots__ = ("_offset", "_partition", "_topic")

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset

    def topic(self) -> str:
        """Return the topic."""
        return self._topic

    def partition(self) -> int:
        """Return the partition's number."""
        return self._partition

    def offset(self) -> int:
        """Return the marker's offset."""
        return self._offset

    def error(self) -> None:
        """Return None."""

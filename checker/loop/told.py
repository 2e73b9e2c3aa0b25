"""What its client tells of a transactional producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import INFERRED, PERMANENT, UNREACHABLE
from halfbridge.bridge.kafka.errors import failure_of

if TYPE_CHECKING:
    from halfbridge.bridge.failure import KafkaFailure


class Told:
    """What its client told of a producer: the callbacks, which know nothing of the producer.

    The producer holds them. Were it held by them in turn, it would stay with its threads and
    connections when it is let go: a worker collects no such garbage (`GC_THRESHOLDS`).

    Attributes:
        worn: See `Transactor`.
        copies_end: Half partition -> highest offset of a copy in this kafka_txn plus one.
        refused: What was not stored in this kafka_txn, and its topic.
    """

    def __init__(self) -> None:
        self.worn = False
        self.copies_end: dict[int, int] = {}
        self.refused: tuple[KafkaFailure, str] | None = None

    def on_error(self, error: Any) -> None:
        """Take an error of the client."""
        if failure_of(error).code in UNREACHABLE:
            self.worn = True

    def on_lost(self) -> None:
        """A request on the lost connection and its repetition on the next one may both arrive."""
        self.worn = True

    def on_copy(self, error: Any, record: Any) -> None:
        """Take the outcome of a copy."""
        offset = record.offset()
        if error is None and offset is not None:
            partition = record.partition()
            self.copies_end[partition] = max(offset + 1, self.copies_end.get(partition, 0))
        else:
            self.on_delivery(error, record)

    def on_delivery(self, error: Any, record: Any) -> None:
        """Take the outcome of a record; one that can never be stored counts more than others.

        No broker has said that a record without an offset is stored (`INFERRED`).
        """
        if error is None and record.offset() is not None:
            return
        failure = INFERRED if error is None else failure_of(error)
        if self.refused is None or failure.code in PERMANENT:
            self.refused = (failure, record.topic() or "")

"""The callbacks of a transactional producer's client, and what they have reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import INFERRED, PERMANENT, UNREACHABLE
from halfbridge.bridge.kafka.errors import failure_of

if TYPE_CHECKING:
    from halfbridge.bridge.failure import KafkaFailure


class Told:
    """The reports of a producer's client, and the callbacks that take them.

    The callbacks hold no reference to the producer. Such a cycle would keep a dropped producer,
    with its threads and connections, because a worker hardly collects cycles (`GC_THRESHOLDS`).

    Attributes:
        worn: See `Transactor`.
        copies_end: Half partition -> highest offset of a copy in this kafka_txn plus one.
        refused: The failure of a record of this kafka_txn, and the record's topic.
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
        """Note a lost connection: a request on it, and its repetition, may both arrive."""
        self.worn = True

    def on_copy(self, error: Any, record: Any) -> None:
        """Take the result of a copy."""
        offset = record.offset()
        if error is None and offset is not None:
            partition = record.partition()
            self.copies_end[partition] = max(offset + 1, self.copies_end.get(partition, 0))
        else:
            self.on_delivery(error, record)

    def on_delivery(self, error: Any, record: Any) -> None:
        """Take the result of a record; a permanent refusal replaces other failures.

        A record without an offset is not proven to be stored (`INFERRED`).
        """
        if error is None and record.offset() is not None:
            return
        failure = INFERRED if error is None else failure_of(error)
        if self.refused is None or failure.code in PERMANENT:
            self.refused = (failure, record.topic() or "")

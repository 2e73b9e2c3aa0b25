"""The callbacks of a transactional producer's client, and what they have reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import AWAY, INFERRED, PERMANENT, PURGED, UNREACHABLE, Code

if TYPE_CHECKING:
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import Place


class Told:
    """The reports of a producer's client, and the callbacks that take them.

    The callbacks hold no reference to the producer. Such a cycle would keep a dropped producer,
    with its threads and connections, because a worker hardly collects cycles (`GC_THRESHOLDS`).

    Attributes:
        worn: See `Transactor`.
        copies_end: Half partition -> highest offset of a copy in this kafka_txn plus one.
        refused: The failure of a record of this kafka_txn, and the record's topic.
        has_stored: Brokers have confirmed a record of this kafka_txn.
        away: Partitions that did not take a record of this kafka_txn, and may take it later.
        is_given_up: Records that are not acknowledged are purged: their partitions are away.
    """

    def __init__(self) -> None:
        self.worn = False
        self.copies_end: dict[int, int] = {}
        self.refused: tuple[KafkaFailure, str] | None = None
        self.has_stored = False
        self.away: set[Place] = set()
        self.is_given_up = False

    def begin(self) -> None:
        """Forget what was reported of the batch before."""
        self.copies_end, self.refused = {}, None
        self.has_stored, self.away, self.is_given_up = False, set(), False

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
            self.has_stored = True
        else:
            self.on_delivery(error, record)

    def on_delivery(self, error: Any, record: Any) -> None:
        """Take the outcome of a record; one that can never be stored counts more than others.

        No broker has said that a record without an offset is stored (`INFERRED`). A record that
        is merely called invalid may be one of several with bad timestamps: it does not replace
        another refusal. Example: `beta` refuses a size, then `alpha` two timestamps. The client
        names the size for the kafka_txn; `alpha` must not be blamed.
        """
        if error is None and record.offset() is not None:
            self.has_stored = True
            return
        failure = INFERRED if error is None else failure_of(error)
        is_purged = self.is_given_up and failure.code in PURGED
        if error is not None and (failure.code in AWAY or is_purged) and record.partition() >= 0:
            self.away.add((record.topic(), record.partition()))
        before = None if self.refused is None else self.refused[0].code
        is_vague = failure.code == Code.INVALID_RECORD and before in PERMANENT
        if before is None or (failure.code in PERMANENT and not is_vague):
            self.refused = (failure, record.topic() or "")

"""Handles rows whose message transaction became dead letters.

All messages of a transaction become dead letters together, which do not reliably name the message
that caused it. So all rows of the transaction are sent again after a wait, each in its own message
transaction. Example: of three rows, row 2 is for a topic that the group may not write to. Rows 1
and 3 are delivered at the second attempt. Row 2 becomes a dead letter alone, and so MESSAGE_ERROR.
Each dead letter counts as a failed attempt of its rows, so the number of attempts is bounded.

The relays of a producer group read its dead letters in a consumer group of theirs.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from halfbridge.bridge.config import letters_properties
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import KafkaFailure, bridge_error
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import DEAD, HALF, headers_of
from halfbridge.serde.records import DeadReason
from halfbridge.sql.local_messages.marks import DeadRow
from halfbridge.sql.local_messages.rows import RowState

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Ports, TopicPartition
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.marks import Failed, Marks
    from halfbridge.sql.local_messages.metrics import RelayMetrics
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# Reasons of dead letters of single records: a record that was written late, or in addition, under
# the transaction's id. The transaction itself may have been delivered.
_OF_ONE_RECORD = frozenset((DeadReason.LATE, DeadReason.EXTRA))
# Remembered transactions whose dead letters were handled: each message of a transaction has its own
# dead letter. 200 bytes each. The rows of a forgotten transaction are read again, and
# counted as one without rows.
_TAKEN_MAX = 10_000
# Least time between two log lines about dead letters without rows; the metric counts all.
_ROWLESS_LOG_S = 60.0


class Letter(NamedTuple):
    """A dead letter of the relay's group."""

    transaction_id: str
    reason: DeadReason
    detail: str


def letter_of(record: object, producer_group: str) -> Letter | None:
    """Return the content of a record of the dead-letter topic, for a transaction of this group.

    None: the record is of another group, or unreadable, or the dead letter of a single record.
    Stubs have the same headers as other dead letters.
    """
    try:
        headers = dict(headers_of(record) or ())
        half, dead = headers.get(HALF), headers.get(DEAD)
        if half is None or dead is None:
            return None
        metadata, letter = HALF_METADATA.decode(half), DEAD_LETTER.decode(dead)
    except SerdeError:
        return None
    if metadata.producer_group != producer_group or letter.reason in _OF_ONE_RECORD:
        return None
    return Letter(metadata.transaction_id, letter.reason, letter.detail)


class DeadLetters:
    """Handles dead letters. Only the first dead letter of a transaction has an effect."""

    def __init__(
        self,
        messages: LocalMessages,
        engine: Engine,
        marks: Marks,
        metrics: RelayMetrics,
        config: RelayConfig,
    ) -> None:
        self._table = messages.tables.messages
        self._engine = engine
        self._marks = marks
        self._metrics = metrics
        self._config = config
        self._taken: dict[str, None] = {}
        self._log_rowless_at = 0.0

    def take(self, letter: Letter) -> int:
        """Take the transaction's rows out of GLOBAL_COMMIT; return how many. May be repeated."""
        if letter.transaction_id in self._taken:
            return 0
        cause = f"{letter.reason.value}: {letter.detail}"
        columns = self._table.c
        query = (
            select(columns.id, columns.retries, columns.created_at)
            .where(
                columns.transaction_id == letter.transaction_id,
                columns.state == RowState.GLOBAL_COMMIT.value,
            )
            .order_by(columns.id)
            .with_for_update()
        )
        with self._engine.begin() as connection:
            rows = [DeadRow(*row) for row in connection.execute(query)]
            failed = self._marks.send_again(
                connection,
                *(letter.transaction_id, rows, cause, self._config),
                is_aged=letter.reason is DeadReason.AGE,
            )
        self._taken[letter.transaction_id] = None
        if len(self._taken) > _TAKEN_MAX:
            del self._taken[next(iter(self._taken))]
        if rows:
            self._log_failed(letter.transaction_id, failed, cause)
        else:
            self._report_rowless(letter.transaction_id, cause)
        return len(rows)

    def _log_failed(self, transaction_id: str, failed: Failed, cause: str) -> None:
        self._metrics.dead_letters.inc()
        self._metrics.retries.inc(len(failed.waiting))
        self._metrics.errors.inc(len(failed.given_up))
        for row_id in failed.given_up:
            _LOG.error(
                "local message %d failed for the last time, its state is MESSAGE_ERROR: %s",
                row_id,
                cause,
            )
        if failed.waiting:
            _LOG.warning(
                "transaction %s became dead letters; resending its %d local messages singly: %s",
                *(transaction_id, len(failed.waiting), cause),
            )

    def _report_rowless(self, transaction_id: str, cause: str) -> None:
        self._metrics.rowless_letters.inc()
        now = monotonic()
        if now < self._log_rowless_at:
            return
        self._log_rowless_at = now + _ROWLESS_LOG_S
        _LOG.warning(
            "no local message is in transaction %s, which became dead letters (%s): an earlier run"
            " took its letters, its rows were purged, or another table's relay or another producer"
            " has this producer group; others like it are only counted for %.0f s",
            *(transaction_id, cause, _ROWLESS_LOG_S),
        )


# Records at a time. At 1 MiB each that is 64 MiB, as much as the client reads ahead.
_BATCH_MAX = 64


class LetterReader:
    """A member of the group that reads dead letters. Not thread-safe.

    Offsets are committed after the dead letters have had their effect, so a dead letter may be read
    twice. A group without offsets begins at the start of the topic.
    """

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._producer_group = config.producer_group
        self._reached: dict[TopicPartition, int] = {}  # positions that are not committed yet
        self._member = ports.kafka.member(letters_properties(config, ports.clock))
        self._member.join_and_read([config.names.dead])

    def read(self, timeout_s: float) -> list[Letter]:
        """Return dead letters of the group, waiting up to `timeout_s` for the first record.

        Raises BridgeError: they cannot be read; the relay tries again.
        """
        try:
            first = self._member.poll(timeout_s)
            records = [] if first is None else [first, *self._member.take(_BATCH_MAX - 1)]
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        letters = []
        for record in records:
            error = record.error()
            if error is not None:
                raise bridge_error(failure_of(error))
            self._reached[record.topic() or "", record.partition() or 0] = (
                record.offset() or 0
            ) + 1
            letter = letter_of(record, self._producer_group)
            if letter is not None:
                letters.append(letter)
        return letters

    def commit(self) -> None:
        """Commit the positions, past other groups' records too; a failure does no harm."""
        if not self._reached:
            return
        with suppress(KafkaFailure):  # another member has the partitions now
            mine = set(self._member.assignment())
            ahead = {place: (at, "") for place, at in self._reached.items() if place in mine}
            if ahead:
                self._member.commit(ahead)
            self._reached.clear()

    def close(self) -> None:
        """Leave the group."""
        self._member.close()

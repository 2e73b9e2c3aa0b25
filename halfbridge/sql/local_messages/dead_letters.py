"""What becomes of rows whose message transaction ended as dead letters.

A transaction becomes dead letters as a whole, and which of its messages is to blame is told in
words at most. So all its rows are sent again after a wait, each in a transaction of its own: the
innocent ones arrive, and the one to blame ends as a dead letter alone, which makes it
MESSAGE_ERROR. Each such end counts as a failed attempt of all rows, so none goes round for ever.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import DEAD, HALF, headers_of
from halfbridge.serde.records import DeadReason
from halfbridge.sql.local_messages.marks import DeadRow, Failed
from halfbridge.sql.local_messages.states import RowState

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Engine

    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.marks import Marks
    from halfbridge.sql.local_messages.metrics import RelayMetrics
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# These are about one record that somebody wrote under a transaction's id later on or besides: they
# say nothing of the transaction itself, which may well have been delivered.
_OF_ONE_RECORD = frozenset((DeadReason.LATE, DeadReason.EXTRA))
# Transactions whose letters have had their effect: each of their messages is a letter. 200 bytes
# each; a forgotten one is looked for again, and counted as one without rows.
_TAKEN_MAX = 10_000
# Between two lines about letters without rows; the metric counts all of them.
_ROWLESS_LOG_S = 60.0


class Letter(NamedTuple):
    """A dead letter of the relay's group."""

    transaction_id: str
    reason: DeadReason
    detail: str


def letter_of(record: Any, producer_group: str) -> Letter | None:
    """Return what a record of the dead-letter topic says of a transaction of this group.

    None where it is another group's, where nobody can read whose it is, and where it says nothing
    of a whole transaction. Stubs have the same headers.
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
    """Takes dead letters, in any number and order, again and again: the first one has the effect.

    Args:
        messages: The table.
        engine: At the relay's isolation level.
        marks: Writes what follows.
        metrics: Where it counts.
        config: When a row is sent again, and when it is given up.
    """

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
        """Take rows of the letter's transaction out of GLOBAL_COMMIT; return how many.

        Raises:
            SQLAlchemyError: take it again.
        """
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
            # What became too old was not decided or delivered in time, which is no row's fault: it
            # is sent again whatever its age, and as often as others are.
            is_aged = letter.reason is DeadReason.AGE
            if len(rows) == 1 and not is_aged:
                ids = [row.id for row in rows]
                self._marks.give_up(connection, letter.transaction_id, ids, cause)
                told = Failed([], ids)
            else:
                told = self._marks.send_again(
                    connection,
                    *(letter.transaction_id, rows, cause, self._config),
                    ages=not is_aged,
                )
        self._note_taken(letter.transaction_id)
        if rows:
            self._tell(letter.transaction_id, told, cause)
        else:
            self._tell_rowless(letter.transaction_id, cause)
        return len(rows)

    def _note_taken(self, transaction_id: str) -> None:
        self._taken[transaction_id] = None
        if len(self._taken) > _TAKEN_MAX:
            del self._taken[next(iter(self._taken))]

    def _tell(self, transaction_id: str, told: Failed, cause: str) -> None:
        self._metrics.dead_letters.inc()
        self._metrics.retries.inc(len(told.waiting))
        self._metrics.errors.inc(len(told.given_up))
        for row_id in told.given_up:
            _LOG.error("local message %d is MESSAGE_ERROR: %s", row_id, cause)
        if told.waiting:
            _LOG.warning(
                "transaction %s became dead letters, %d local messages are sent again alone: %s",
                *(transaction_id, len(told.waiting), cause),
            )

    def _tell_rowless(self, transaction_id: str, cause: str) -> None:
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

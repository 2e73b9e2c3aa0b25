"""What becomes of rows whose message transaction ended as dead letters.

A transaction becomes dead letters as a whole, and which of its messages is to blame is told in
words at most. So all its rows are sent again, each in a transaction of its own: the innocent ones
arrive, and the one to blame ends as a dead letter alone, which makes it MESSAGE_ERROR.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from halfbridge.sql.local_messages.states import RowState
from serde.avro import DEAD_LETTER, HALF_METADATA
from serde.errors import SerdeError
from serde.headers import DEAD, HALF, headers_of
from serde.records import DeadReason

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Engine

    from halfbridge.sql.local_messages.marks import Marks
    from halfbridge.sql.local_messages.metrics import RelayMetrics
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# These are about one record that somebody wrote under a transaction's id later on or besides: they
# say nothing of the transaction itself, which may well have been delivered.
_OF_ONE_RECORD = frozenset((DeadReason.LATE, DeadReason.EXTRA))


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
    """

    def __init__(
        self, messages: LocalMessages, engine: Engine, marks: Marks, metrics: RelayMetrics
    ) -> None:
        self._table = messages.tables.messages
        self._engine = engine
        self._marks = marks
        self._metrics = metrics

    def take(self, letter: Letter) -> int:
        """Take rows of the letter's transaction out of GLOBAL_COMMIT; return how many.

        Raises:
            SQLAlchemyError: take it again.
        """
        columns = self._table.c
        query = (
            select(columns.id)
            .where(
                columns.transaction_id == letter.transaction_id,
                columns.state == RowState.GLOBAL_COMMIT.value,
            )
            .order_by(columns.id)
            .with_for_update()
        )
        with self._engine.begin() as connection:
            ids = list(connection.execute(query).scalars())
            if not ids:
                return 0
            cause = f"{letter.reason.value}: {letter.detail}"
            # What became too old was not decided or delivered in time, which is no row's fault.
            is_to_blame = len(ids) == 1 and letter.reason is not DeadReason.AGE
            if is_to_blame:
                found = self._marks.give_up(connection, letter.transaction_id, ids, cause)
            else:
                found = self._marks.send_again(connection, letter.transaction_id, ids)
        self._metrics.dead_letters.inc()
        if is_to_blame:
            self._metrics.errors.inc(found)
            _LOG.error("local message %d is MESSAGE_ERROR: %s", ids[0], cause)
        else:
            self._metrics.retries.inc(found)
            _LOG.warning(
                "transaction %s of %d local messages became dead letters, each is sent again"
                " alone: %s",
                *(letter.transaction_id, found, cause),
            )
        return found

"""Sends and repeats the COMMITs of marked rows, and records them in the rows (second mark)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.sql.local_messages.claims import REPEATS_MAX
from halfbridge.sql.local_messages.steps import RelayStep
from halfbridge.sql.local_messages.under_way import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.looked_at import Unacknowledged
    from halfbridge.sql.local_messages.marks import Marks
    from halfbridge.sql.local_messages.metrics import RelayMetrics
    from halfbridge.sql.local_messages.sending import Attempt
    from halfbridge.sql.local_messages.under_way import UnderWay


class Commits:
    """The COMMITs of one relay. Not thread-safe: for the relay's own loop.

    Args:
        producer: The relay's producer.
        marks: Writes the second mark.
        under_way: Waits for acknowledgements.
        metrics: The relay's metrics.
        on_step: Called after the wait for COMMITs, and after the second mark.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        marks: Marks,
        under_way: UnderWay,
        metrics: RelayMetrics,
        *,
        on_step: Callable[[RelayStep], object],
    ) -> None:
        self._producer = producer
        self._marks = marks
        self._under_way = under_way
        self._metrics = metrics
        self._on_step = on_step
        self._acknowledged: set[str] = set()

    @property
    def acknowledged(self) -> set[str]:
        """Transactions with an acknowledged COMMIT and without the second mark."""
        return set(self._acknowledged)

    def decide(self, attempts: Sequence[Attempt]) -> None:
        """Commit message transactions; a later look repeats a COMMIT in doubt."""
        now = monotonic()
        begun = [
            Decision(
                each.tx.id, each.tx.half_partition, each.tx.commit_async(), len(each.rows), now
            )
            for each in attempts
        ]
        self.await_decisions(begun)
        self._metrics.transactions.inc(len(begun))
        self._on_step(RelayStep.DECIDED)

    def repeat(self, found: Sequence[Unacknowledged]) -> set[int]:
        """Repeat COMMITs of dead relays and COMMITs in doubt; return the half partitions that wait.

        A COMMIT under way, or in a half partition with a recent failure, is not repeated.
        """
        known = self._under_way.deciding | self._acknowledged
        resting = self._under_way.resting()
        now = monotonic()
        begun = [
            Decision(
                each.transaction_id,
                each.half_partition,
                self._producer.repeat_commit(
                    each.transaction_id,
                    half_partition=each.half_partition,
                    half_offset=each.half_offset,
                    message_count=each.message_count,
                ),
                0,
                now,
            )
            for each in found
            if each.transaction_id not in known and each.half_partition not in resting
        ]
        if begun:
            self._metrics.repeats.inc(len(begun))
            self.await_decisions(begun)
        if len(found) >= REPEATS_MAX:  # there may be more, in any half partition
            return set(range(self._producer.half_partitions))
        return {
            each.half_partition for each in found if each.transaction_id not in self._acknowledged
        }

    def await_decisions(self, begun: Sequence[Decision]) -> None:
        """Wait for COMMITs, and note the acknowledged ones."""
        for each in self._under_way.await_decisions(begun):
            self._acknowledged.add(each.transaction_id)
            self._metrics.rows.inc(each.rows)

    def acknowledge(self, engine: Engine) -> None:
        """Write the missing second marks.

        Raises:
            SQLAlchemyError: not written; they are written later, or the COMMITs are repeated, which
                does no harm.
        """
        done = self.acknowledged
        if done:
            with engine.begin() as connection:
                self._marks.acknowledge(connection, done)
            self.note_written(done)

    def note_written(self, written: set[str]) -> None:
        """Note the transactions whose second mark is written."""
        if written:
            self._acknowledged -= written
            self._on_step(RelayStep.ACKNOWLEDGED)

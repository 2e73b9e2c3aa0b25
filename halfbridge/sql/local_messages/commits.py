"""COMMITs of message transactions whose rows are marked: sent, repeated, and noted in the rows."""

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
    """COMMITs of one relay. Not thread-safe: for the relay's own loop.

    Args:
        producer: Of the relay.
        marks: Writes the second mark.
        under_way: Waits for acknowledgements.
        metrics: Where it counts.
        on_step: Called where COMMITs were waited for, and where the second mark stands.
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
        """Transactions whose COMMIT is acknowledged, and whose second mark is not written yet."""
        return set(self._acknowledged)

    def decide(self, attempts: Sequence[Attempt]) -> None:
        """Commit message transactions; one in doubt is repeated by a later look."""
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
        """Repeat COMMITs of others and of ours in doubt; return the half partitions that wait.

        Nothing is repeated that is under way, or in a half partition where something has failed.
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
        """Wait for COMMITs, and note those that are acknowledged."""
        for each in self._under_way.await_decisions(begun):
            self._acknowledged.add(each.transaction_id)
            self._metrics.rows.inc(each.rows)

    def acknowledge(self, engine: Engine) -> None:
        """Write the second mark of what it is missing for.

        Raises:
            SQLAlchemyError: it is written later, or the COMMITs are repeated, which does no harm.
        """
        done = self.acknowledged
        if done:
            with engine.begin() as connection:
                self._marks.acknowledge(connection, done)
            self.note_written(done)

    def note_written(self, written: set[str]) -> None:
        """Note of which transactions the second mark stands."""
        if written:
            self._acknowledged -= written
            self._on_step(RelayStep.ACKNOWLEDGED)

"""What a snapshot lets one say of a record: columns that compare it with the snapshot's bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from halfbridge.spark_jobs.snapshot import Range, Snapshot

GRACE_MS = 300_000
# How far the clocks of clients, brokers and partition pairs may be apart (Kerberos tolerates as
# much): so near to a log's start nothing is called missing, for it may have been deleted.
SKEW_MS = 300_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was read, and what must not be judged because of it.

    Attributes:
        snapshot: What was read.
        grace_ms: Where O is not known: a decision younger than this may still be on its way.
            Where it is: from this age on, a decision that waits is shown as overdue.
    """

    snapshot: Snapshot
    grace_ms: int = GRACE_MS

    def is_applied(self, pair: Column, op_at: Column, op_ms: Column) -> Column:
        """Tell whether an op had its effect, and that is visible, before the snapshot."""
        applied = _lookup(self.snapshot.applied, pair, "long")
        return F.when(applied.isNotNull(), op_at < applied).otherwise(self.is_overdue(op_ms))

    def is_overdue(self, op_ms: Column) -> Column:
        """Tell whether an op was appended longer ago than the grace; of one without a time, no."""
        return (op_ms >= 0) & (op_ms <= self.snapshot.taken_ms - self.grace_ms)

    def is_ahead(self, pair: Column, half_to: Column) -> Column:
        """Tell whether an op names half messages beyond those that were read."""
        ends = {number: each.end for number, each in self.snapshot.half.items()}
        return half_to >= F.coalesce(_lookup(ends, pair, "long"), F.lit(0))

    def is_audited(self, topic: Column) -> Column:
        """Tell whether a real topic was read."""
        return (
            topic.isin(*self.snapshot.real_topics)
            if self.snapshot.real_topics
            else F.lit(col=False)
        )

    def may_hide(self, topic: Column) -> Column:
        """Tell whether an open kafka_txn may hide rows of a real topic that were there in time."""
        hidden = [each for each in self.snapshot.hidden if each in self.snapshot.real_topics]
        return topic.isin(*hidden) if hidden else F.lit(col=False)

    def letters_may_hide(self) -> Column:
        """Tell the same of dead letters."""
        return F.lit(self.snapshot.names.dead in self.snapshot.hidden)

    def delivery_may_be_deleted(self, topic: Column, op_ms: Column) -> Column:
        """Tell whether what was delivered at `op_ms` or later may be below the log's start."""
        cut = {each: self.snapshot.cut_until_ms(each) for each in self.snapshot.real_topics}
        cut = {each: until for each, until in cut.items() if until >= 0}
        return _is_near(op_ms, _lookup(cut, topic, "long"))

    def letter_may_be_deleted(self, op_ms: Column) -> Column:
        """Tell the same of a dead letter."""
        return self._is_near_start_of(self.snapshot.names.dead, op_ms)

    def half_may_be_deleted(self, ms: Column) -> Column:
        """Tell whether a half message appended at `ms` or before may be below its log's start."""
        return self._is_near_start_of(self.snapshot.names.half, ms)

    def other_half_may_be_deleted(self, ms: Column) -> Column:
        """Tell the same of half messages of other installations."""
        until = max(map(self.snapshot.cut_until_ms, self.snapshot.others), default=-1)
        return _is_near(ms, F.lit(until)) if until >= 0 else F.lit(col=False)

    def op_may_be_deleted(self, pair: Column, ms: Column) -> Column:
        """Tell whether an op for a half message of that time may be below its log's start."""
        return _is_near(ms, _lookup(_cut_until(self.snapshot.op), pair, "long"))

    def is_half_cut(self, pair: Column) -> Column:
        """Tell whether half messages of a pair were deleted."""
        cut = _lookup(_cut_until(self.snapshot.half), pair, "long")
        return cut.isNotNull()

    def topic_number(self, topic: Column) -> Column:
        """Return the place of a real topic among those that were read, from 1; 0: it was not.

        A number can be aggregated ten times faster than a name.
        """
        names = F.array(*(F.lit(each) for each in self.snapshot.real_topics))
        return F.coalesce(F.array_position(names.cast("array<string>"), topic), F.lit(0))

    def topic_name(self, number: Column) -> Column:
        """Return the real topic of that number."""
        names = F.array(*(F.lit(each) for each in self.snapshot.real_topics))
        return F.get(names.cast("array<string>"), number.cast("int") - 1)

    def is_below_halves(self, pair: Column, half_at: Column) -> Column:
        """Tell whether a half offset is below its log's start."""
        starts = {number: each.start for number, each in self.snapshot.half.items()}
        return half_at < F.coalesce(_lookup(starts, pair, "long"), F.lit(0))

    def is_passed(self, is_op: Column, pair: Column, at: Column, ms: Column) -> Column:
        """Tell whether an unreadable op or half record had its effect before the snapshot."""
        applied = _lookup(self.snapshot.applied, pair, "long")
        passed = F.when(is_op, applied).otherwise(_lookup(self.snapshot.positions, pair, "long"))
        return F.when(passed.isNotNull(), at < passed).otherwise(self.is_overdue(ms))

    @property
    def are_ops_cut(self) -> bool:
        """Whether ops were deleted anywhere."""
        return bool(_cut_until(self.snapshot.op))

    def _is_near_start_of(self, topic: str, ms: Column) -> Column:
        until = self.snapshot.cut_until_ms(topic)
        return _is_near(ms, F.lit(until)) if until >= 0 else F.lit(col=False)


def _is_near(ms: Column, cut_until: Column) -> Column:
    """Tell whether a time is before a log's start, or no clock can tell; null: nothing is cut.

    A record without an append time (NO_APPEND_MS) may be that old.
    """
    return F.coalesce(ms <= cut_until + SKEW_MS, F.lit(col=False))


def _cut_until(ranges: Mapping[int, Range]) -> dict[int, int]:
    return {number: each.first_ms for number, each in ranges.items() if each.is_cut}


def _lookup(values: Mapping[int, int] | Mapping[str, int], key: Column, kind: str) -> Column:
    """Return the value of a key; null for one that is not there."""
    if not values:
        return F.lit(None).cast(kind)
    pairs = [F.lit(each) for pair in values.items() for each in pair]
    return F.try_element_at(F.create_map(*pairs), key).cast(kind)

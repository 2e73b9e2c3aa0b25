"""Columns that compare a record with the bounds of the snapshot.

They distinguish a missing record from one that was deleted or cannot be visible yet, and find the
transactions of other installations that deliver to the same real topic.

A real record carries its transaction id, but not the installation that delivered it. The record
belongs to the installation whose half topic has the id, and only that installation's audit judges
the record. A record whose id is in no half topic is a phantom in every audit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from halfbridge.spark_jobs.reading.offsets import Range, Snapshot

# A decided message that is not delivered within this time is overdue. A worker that is replaced
# rebuilds a million undecided transactions in a tenth of this time (docs/evidence/benchmarks.md).
GRACE_MS = 300_000
# How far the clocks of clients, brokers and partition pairs may differ; Kerberos tolerates as much.
# A record whose time is that close to the start of a log is never called missing, because it may
# have been deleted.
SKEW_MS = 300_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The snapshot, and what cannot be judged because of its bounds."""

    snapshot: Snapshot
    # Where O is known, a decision of this age that is not applied is shown as overdue. Where O is
    # not known, a decision of this age counts as applied.
    grace_ms: int = GRACE_MS
    # The installation delivers at least once: a message that was delivered before is a notice, and
    # no violation.
    may_repeat: bool = False

    def is_applied(self, pair: Column, op_offset: Column, op_append_ms: Column) -> Column:
        """Tell whether an op was applied, and its effect visible, before the snapshot."""
        applied = _lookup(self.snapshot.applied, pair, "long")
        return F.when(applied.isNotNull(), op_offset < applied).otherwise(
            self.is_overdue(op_append_ms)
        )

    def is_overdue(self, op_append_ms: Column) -> Column:
        """Tell whether an op is older than `grace_ms`; False for an op without an append time."""
        return (op_append_ms >= 0) & (op_append_ms <= self.snapshot.taken_ms - self.grace_ms)

    def is_ahead(self, pair: Column, op_half_offset: Column) -> Column:
        """Tell whether an op names a half offset beyond the snapshot."""
        ends = {number: each.end for number, each in self.snapshot.half.items()}
        return op_half_offset >= F.coalesce(_lookup(ends, pair, "long"), F.lit(0))

    def is_audited(self, topic: Column) -> Column:
        """Tell whether a real topic was read."""
        return (
            topic.isin(*self.snapshot.real_topics)
            if self.snapshot.real_topics
            else F.lit(col=False)
        )

    def may_hide(self, topic: Column) -> Column:
        """Tell whether an open kafka_txn may hide records that were in a real topic in time."""
        hidden = [each for each in self.snapshot.hidden if each in self.snapshot.real_topics]
        return topic.isin(*hidden) if hidden else F.lit(col=False)

    def dead_letters_may_hide(self) -> Column:
        """Tell whether an open kafka_txn may hide dead letters that were written in time."""
        return F.lit(self.snapshot.names.dead in self.snapshot.hidden)

    def delivery_may_be_deleted(self, topic: Column, op_append_ms: Column) -> Column:
        """Tell whether the delivery for an op of that time may be below the real topic's start."""
        cut = {each: self.snapshot.cut_until_ms(each) for each in self.snapshot.real_topics}
        cut = {each: until for each, until in cut.items() if until >= 0}
        return _is_near(op_append_ms, _lookup(cut, topic, "long"))

    def dead_letter_may_be_deleted(self, op_append_ms: Column) -> Column:
        """Tell whether the dead letter for an op of that time may be below the topic's start."""
        return self._is_near_start_of(self.snapshot.names.dead, op_append_ms)

    def half_may_be_deleted(self, append_ms: Column) -> Column:
        """Tell whether a half message of that time may be below the half topic's start."""
        return self._is_near_start_of(self.snapshot.names.half, append_ms)

    def other_half_may_be_deleted(self, append_ms: Column) -> Column:
        """Tell whether a half message of that time may be below another half topic's start."""
        until = max(map(self.snapshot.cut_until_ms, self.snapshot.others), default=-1)
        return _is_near(append_ms, F.lit(until)) if until >= 0 else F.lit(col=False)

    def op_may_be_deleted(self, pair: Column, append_ms: Column) -> Column:
        """Tell whether the op for a half message of that time may be below the op topic's start."""
        return _is_near(append_ms, _lookup(_cut_until(self.snapshot.op), pair, "long"))

    def is_half_cut(self, pair: Column) -> Column:
        """Tell whether half messages of a pair were deleted."""
        cut = _lookup(_cut_until(self.snapshot.half), pair, "long")
        return cut.isNotNull()

    def topic_number(self, topic: Column) -> Column:
        """Return the number of a real topic in the snapshot, from 1; 0: the topic was not read.

        A number is aggregated ten times faster than a name.
        """
        numbers = {name: number for number, name in enumerate(self.snapshot.real_topics, start=1)}
        return F.coalesce(_lookup(numbers, topic, "long"), F.lit(0))

    def topic_name(self, number: Column) -> Column:
        """Return the real topic with that number."""
        names = F.array(*(F.lit(each) for each in self.snapshot.real_topics))
        return F.get(names.cast("array<string>"), number.cast("int") - 1)

    def is_below_halves(self, pair: Column, half_offset: Column) -> Column:
        """Tell whether a half offset is below the start of its partition."""
        starts = {number: each.start for number, each in self.snapshot.half.items()}
        return half_offset < F.coalesce(_lookup(starts, pair, "long"), F.lit(0))

    def is_passed(self, is_op: Column, pair: Column, offset: Column, append_ms: Column) -> Column:
        """Tell whether an unreadable op or half record was dead-lettered before the snapshot."""
        applied = _lookup(self.snapshot.applied, pair, "long")
        passed = F.when(is_op, applied).otherwise(_lookup(self.snapshot.positions, pair, "long"))
        return F.when(passed.isNotNull(), offset < passed).otherwise(self.is_overdue(append_ms))

    @property
    def are_ops_cut(self) -> bool:
        """Whether ops of any pair were deleted."""
        return bool(_cut_until(self.snapshot.op))

    def _is_near_start_of(self, topic: str, append_ms: Column) -> Column:
        until = self.snapshot.cut_until_ms(topic)
        return _is_near(append_ms, F.lit(until)) if until >= 0 else F.lit(col=False)


def _is_near(append_ms: Column, cut_until: Column) -> Column:
    """Tell whether a record may have been deleted, as those up to `cut_until` (null: none) are.

    A record without an append time (NO_APPEND_MS) may be of any age.
    """
    return F.coalesce(append_ms <= cut_until + SKEW_MS, F.lit(col=False))


def _cut_until(ranges: Mapping[int, Range]) -> dict[int, int]:
    return {number: each.first_ms for number, each in ranges.items() if each.is_cut}


def _lookup(values: Mapping[int, int] | Mapping[str, int], key: Column, kind: str) -> Column:
    """Return the value of a key; null for an unknown key."""
    if not values:
        return F.lit(None).cast(kind)
    pairs = [F.lit(each) for pair in values.items() for each in pair]
    return F.try_element_at(F.create_map(*pairs), key).cast(kind)


@dataclass(frozen=True, slots=True)
class OtherInstallations:
    """The transactions in the half topics of other installations."""

    # Half topic -> partition -> the offsets that are read.
    ranges: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)
    # Column transaction_id: the transaction ids in these topics; None without such topics.
    ids: DataFrame | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # half topic -> Kafka's id

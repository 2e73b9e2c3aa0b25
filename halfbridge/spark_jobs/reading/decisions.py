"""The table of halfbridge.serde.protocol as columns: which ops decide, and which contradict."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.protocol import DISCARDERS, EFFECTS, STATE_AFTER, YIELDING, State
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource

_DISCARD = OpKind.DISCARD.value
_DECIDING = [kind.value for kind in OpKind if EFFECTS[State.UNDECIDED, kind] in STATE_AFTER]


def decides(kind: Column, source: Column) -> Column:
    """Tell whether an op decides an undecided transaction, as `protocol.decision_of`."""
    may_say = (kind != _DISCARD) | source.isin(*(each.value for each in DISCARDERS))
    return kind.isin(*_DECIDING) & may_say


def contradicts(stands: Column, kind: Column, source: Column) -> Column:
    """Tell whether a decision is a conflict, after a decision of the kind `stands`."""
    return (kind != stands) & (source != YIELDING.value)


def claimed_age_ms(kind: Column, source: Column, age_ms: Column) -> Column:
    """Return the age that an op has to prove, or 0, as `protocol.claimed_age_ms`."""
    is_daemons = (kind == _DISCARD) & (source == OpSource.CHECKER.value)
    return F.when(is_daemons, F.greatest(age_ms, F.lit(0))).otherwise(0)


def proves_its_age(claimed_ms: Column, op_append_ms: Column, first_append_ms: Column) -> Column:
    """Tell whether an op may take effect, as `protocol.proves_its_age`."""
    has_times = (op_append_ms >= 0) & (first_append_ms >= 0)
    return (claimed_ms == 0) | (has_times & (op_append_ms - first_append_ms >= claimed_ms))


def covers_what_is_there(resume: Column, source: Column, count: Column) -> Column:
    """Tell whether a COMMIT delivers what is there, as `protocol.covers_what_is_there`."""
    return (count == COUNT_UNKNOWN) & (resume > 0) & (source == OpSource.OPERATOR.value)

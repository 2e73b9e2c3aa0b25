"""The protocol, as a table: what an op does to a transaction in each state. Pure.

The first decision wins: an op changes a transaction only while the transaction is undecided. The
other effects say how a later op is counted. Ledger, rebuild, `checker init`, the testkit's history
checker and the Spark jobs, as columns (halfbridge.spark_jobs.reading.decisions), judge by it.
"""

from __future__ import annotations

from enum import Enum

from halfbridge.serde.records import COUNT_UNKNOWN, Op, OpKind, OpSource


class State(str, Enum):
    """Whether a transaction is decided, and how."""

    UNDECIDED = "undecided"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"


class Effect(str, Enum):
    """What applying an op does."""

    DELIVER = "deliver the messages"
    DROP = "forget the messages"
    DEAD_LETTER = "dead-letter the messages"
    ANSWER = "count the answer, or ask again later"
    DUPLICATE = "nothing: it repeats the first decision"
    CONFLICT = "nothing: it contradicts the first decision"
    IGNORED = "nothing: an answer or a discard that came too late"
    INVALID = "nothing: this writer may not say this"


S, K, E = State, OpKind, Effect

EFFECTS: dict[tuple[State, OpKind], Effect] = {
    (S.UNDECIDED, K.COMMIT): E.DELIVER,
    (S.UNDECIDED, K.ROLLBACK): E.DROP,
    (S.UNDECIDED, K.UNKNOWN): E.ANSWER,
    (S.UNDECIDED, K.DISCARD): E.DEAD_LETTER,
    (S.COMMITTED, K.COMMIT): E.DUPLICATE,
    (S.COMMITTED, K.ROLLBACK): E.CONFLICT,
    (S.COMMITTED, K.UNKNOWN): E.IGNORED,
    (S.COMMITTED, K.DISCARD): E.CONFLICT,
    (S.ROLLED_BACK, K.COMMIT): E.CONFLICT,
    (S.ROLLED_BACK, K.ROLLBACK): E.DUPLICATE,
    (S.ROLLED_BACK, K.UNKNOWN): E.IGNORED,
    (S.ROLLED_BACK, K.DISCARD): E.CONFLICT,
    (S.DISCARDED, K.COMMIT): E.CONFLICT,
    (S.DISCARDED, K.ROLLBACK): E.CONFLICT,
    (S.DISCARDED, K.UNKNOWN): E.IGNORED,
    (S.DISCARDED, K.DISCARD): E.DUPLICATE,
}

STATE_AFTER: dict[Effect, State] = {
    E.DELIVER: S.COMMITTED,
    E.DROP: S.ROLLED_BACK,
    E.DEAD_LETTER: S.DISCARDED,
}

# `effect_of` runs for every op. Looking up a member of an Enum costs more than the rest of it.
_DISCARD = OpKind.DISCARD
_CONFLICT = Effect.CONFLICT

# Who may write a DISCARD.
DISCARDERS = (OpSource.CHECKER, OpSource.OPERATOR)
# Whose decision may lose without a conflict: the daemon's discard, which other decisions race with.
YIELDING = OpSource.CHECKER
# Append time of a record that has none: its writer set the timestamp (CreateTime).
NO_APPEND_MS = -1

# Check number of an op that answers no check, or must not count.
NO_CHECK = 0

# Reasons that a DISCARD from CHECKER may give.
REASON_CHECK_TIMES = "CHECK_TIMES"
REASON_AGE = "AGE"
REASON_TOO_LARGE = "TOO_LARGE"


def effect_of(op: Op, state: State) -> Effect:
    """Return what `op` does to a transaction in `state`; pure and total."""
    kind = op.kind
    if kind is _DISCARD and op.source not in DISCARDERS:
        return Effect.INVALID
    effect = EFFECTS[state, kind]
    if effect is _CONFLICT and op.source is YIELDING:
        return Effect.IGNORED  # the daemon's discard came after a decision: no conflict
    return effect


def is_failed_attempt(op: Op) -> bool:
    """Tell whether a member of the producer group says by `op` that its checker failed.

    Such an op is not an answer. An op of the daemon, which says that the group has no member, is
    not a failed attempt. The op's `reason` says what the checker raised or returned, or that the
    checker still runs.
    """
    return op.kind is OpKind.UNKNOWN and op.check_number == NO_CHECK and op.source is OpSource.CHECK


def decision_of(op: Op) -> State | None:
    """Return the state of an undecided transaction after `op`; None when `op` does not decide."""
    return STATE_AFTER.get(effect_of(op, State.UNDECIDED))


def state_after(op: Op, state: State, *, op_append_ms: int, first_append_ms: int) -> State | None:
    """Return the state that `op` brings a transaction in `state` to; None when it changes none."""
    after = STATE_AFTER.get(effect_of(op, state))
    return after if after and proves_its_age(op, op_append_ms, first_append_ms) else None


def claimed_age_ms(op: Op) -> int:
    """Return the age that `op` has to prove; 0: none. Only the daemon's DISCARD has to."""
    return op.age_ms if op.kind is _DISCARD and op.source is OpSource.CHECKER else 0


def proves_its_age(op: Op, op_append_ms: int, first_append_ms: int) -> bool:
    """Tell whether an op may take effect. False is possible only for the daemon's discard for age.

    Such a discard names an age, and its append time must prove that age. Example: a discard that
    names 72 h takes effect if it was appended 72 h or more after the transaction's first half
    record. So every reader of the log gets the same answer, whatever the reader's settings
    are. Where one of the two append times is not known (NO_APPEND_MS), the age is not proven.
    """
    age_ms = claimed_age_ms(op)
    if age_ms <= 0:
        return True
    if op_append_ms < 0 or first_append_ms < 0:
        return False
    return op_append_ms - first_append_ms >= age_ms


def covers_what_is_there(op: Op) -> bool:
    """Tell whether a COMMIT delivers what is there, whatever message indices are missing.

    So an operator redelivers dead letters: the messages 0 and 1 of a transaction were delivered,
    and message 2 was EXTRA. Message 2 alone is life 1 of the transaction. It keeps its index, by
    which consumers tell messages apart. Life 0 is its producer's, and must be whole.
    """
    return (
        op.message_count == COUNT_UNKNOWN and op.resume_count > 0 and op.source is OpSource.OPERATOR
    )

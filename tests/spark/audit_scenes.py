"""Handwritten histories, each of one transaction, and the findings that an audit must have.

A scene is a script: each step writes a record. Steps name half records by their number in the
script: the first is 0. Example: `commit(1), real(0, partition=2)` is the COMMIT of half 1, and the
delivery of half 0 to partition 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from halfbridge.serde import headers as names
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.spark.tape import NAMES, Half, Tape

Step = Callable[[Tape, list[Half]], None]

CHECKER = {"source": OpSource.CHECKER, "reason": "CHECK_TIMES"}
BY_AGE = {"source": OpSource.CHECKER, "reason": "AGE", "age_ms": 3_600_000}
AT_AGE = {**BY_AGE, "age_ms": 1}
BY_OPERATOR = {"source": OpSource.OPERATOR, "message_count": -1}
BY_CHECK = {"source": OpSource.CHECK, "message_count": -1}
TRACE = [("name", b"value")]


@dataclass(frozen=True)
class Scene:
    """A history of one transaction, and the findings that an audit must have."""

    name: str
    steps: tuple[Step, ...]
    findings: tuple[str, ...]

    def play(self, tape: Tape) -> Half:
        """Write the scene; return its first half record."""
        halves: list[Half] = []
        for step in self.steps:
            step(tape, halves)
        return halves[0]


def scene(name: str, *steps: Step, finds: str = "") -> Scene:
    """Return a scene; without `finds` it has no findings."""
    return Scene(name, steps, tuple(sorted(finds.split())))


# --- steps ---------------------------------------------------------------------------------


def half(*, days: int | None = None, is_other: bool = False, **given: Any) -> Step:
    """A half message, of another transaction if `is_other`; `days`: its create time is ahead."""

    def play(tape: Tape, halves: list[Half]) -> None:
        txn = None if is_other or not halves else halves[0].txn
        if days is None:
            halves.append(tape.half(txn, **given))
        else:
            with tape.create_time(days=days):
                halves.append(tape.half(txn, **given))

    return play


def several(count: int) -> tuple[Step, ...]:
    """Half messages that differ in their values only."""
    return tuple(half(value=b"%d" % n, message_index=n) for n in range(count))


def copy(of: int = 0) -> Step:
    """A copy of a half message, as the daemon appends it."""
    return lambda tape, halves: halves.append(tape.put_back(halves[of]))


def forged_copy(first_append_timestamp: int) -> Step:
    """A copy with a forged append time of its original."""

    def play(tape: Tape, halves: list[Half]) -> None:
        given = {"check_times": 1, "first_append_timestamp": first_append_timestamp}
        halves.append(tape.half(halves[0].txn, origin_offset=halves[0].at, **given))

    return play


def op(kind: OpKind, of: int = 0, *, days: int | None = None, at: int = -1, **given: Any) -> Step:
    """An op about a half message; `at`: the number of the half message whose offset it names."""

    def play(tape: Tape, halves: list[Half]) -> None:
        place = {} if at < 0 else {"half_offset": halves[at].at}
        if days is None:
            tape.op(kind, halves[of], **{**place, **given})
        else:
            with tape.create_time(days=days):
                tape.op(kind, halves[of], **{**place, **given})

    return play


commit, rollback, discard = (
    partial(op, kind) for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD)
)


def real(of: int = 0, **given: Any) -> Step:
    """The delivery of a half message."""
    return lambda tape, halves: _ignore(tape.real(halves[of], **given))


def dead(reason: str, *of: int, **given: Any) -> Step:
    """Dead letters of half messages; of the first where none is named."""

    def play(tape: Tape, halves: list[Half]) -> None:
        for each in of or (0,):
            tape.dead(halves[each], DeadReason[reason], **given)

    return play


def drop(of: int = 0) -> Step:
    """Remove a half record."""
    return lambda tape, halves: tape.drop(NAMES.half, 0, halves[of].at)


def delivered(**given: Any) -> tuple[Step, ...]:
    """A whole transaction of one message, committed and delivered."""
    return half(**given), commit(), real()


def _ignore(_: object) -> None:
    pass


def _another_life(tape: Tape, halves: list[Half]) -> None:
    tape.delivered(txn=halves[0].txn, resume_count=1)


def _dead_with_another_key(tape: Tape, halves: list[Half]) -> None:
    tape.dead(replace(halves[0], key=b"kez"), DeadReason.CHECK_TIMES)


def _real_in_another_topic(tape: Tape, halves: list[Half]) -> None:
    of = halves[0]
    headers = names.real_headers([], of.txn, of.metadata.born_timestamp)
    tape.write("invoices", 0, key=of.key, value=of.value, headers=headers)


# --- without violations --------------------------------------------------------------------

_FREE = {"key": None}
_HALF_OF_IT = bytes(TRANSACTION_BYTES_MAX // 2)
_IN_VAIN = discard(**AT_AGE), commit(), real()
_STUB = {"is_stub": True}

IN_ORDER = [
    scene("delivered", *delivered(user=[("trace", b"\xff"), ("trace", None)])),
    scene("rolled_back", half(), rollback()),
    scene(
        "undecided_with_answers",
        half(),
        op(OpKind.UNKNOWN, check_number=1, source=OpSource.CHECK),
        copy(),
    ),
    scene("discarded_as_a_copy", half(), copy(), discard(1, **CHECKER), dead("CHECK_TIMES", 1)),
    scene(
        "several_messages_and_partitions",
        *several(3),
        commit(2),
        *(real(n, partition=n % 2) for n in range(3)),
    ),
    scene(
        "messages_all_alike",
        half(real_partition=1),
        half(message_index=1, real_partition=0),
        commit(1),
        real(0, partition=1),
        real(1, partition=0),
    ),
    scene(
        "equals_in_several_partitions",
        half(**_FREE),
        half(value=b"other", message_index=1, **_FREE),
        half(message_index=2, **_FREE),
        commit(2),
        real(0, partition=1),
        real(1, partition=0),
        real(2, partition=0),
    ),
    scene(
        "equals_of_which_one_was_bound",
        half(),
        half(message_index=1, real_partition=1),
        commit(1),
        real(1, partition=1),
        real(0, partition=2),
    ),
    scene("committed_by_a_check_as_a_copy", half(), copy(), commit(1, at=1, **BY_CHECK), real()),
    scene("repeated_half_and_decision", half(), half(value=b"again"), commit(), commit(), real()),
    scene("duplicate_half_behind_the_decision", *delivered(), half(), dead("LATE", 1)),
    scene("checkers_discard_that_lost", *delivered(), discard(**CHECKER)),
    scene("discard_by_a_producer", half(), discard(), commit(), real()),
    scene("decision_of_another_group", half(), rollback(producer_group="others"), commit(), real()),
    scene("discard_before_the_age", half(), discard(**BY_AGE), commit(), real()),
    scene("discard_at_the_age", half(), discard(**AT_AGE), dead("AGE")),
    # Without an append time there is no age, and a discard for age takes no effect.
    scene("discard_for_age_without_append_time", half(), discard(days=4, **BY_AGE), *_IN_VAIN[1:]),
    scene("discard_for_age_of_a_half_without_append_time", half(days=-4), *_IN_VAIN),
    scene("discard_for_age_of_a_copy_that_has_none", half(), forged_copy(-1), *_IN_VAIN),
    scene("discard_for_age_of_a_copy_before_all_times", half(), forged_copy(-(2**63)), *_IN_VAIN),
    scene(
        "discard_for_age_of_what_began_with_an_append_time",
        half(),
        half(days=-4, message_index=1),
        copy(),
        discard(2, at=2, **AT_AGE),
        dead("AGE", 0, 1),
    ),
    scene(
        "discard_for_age_that_only_a_later_message_proves",
        half(days=-4),
        half(message_index=1),
        discard(1, **AT_AGE),
        commit(1),
        real(0),
        real(1),
    ),
    scene("not_allowed", half(), commit(), dead("NOT_ALLOWED")),
    scene(
        "reserved_header", half(user=[(names.BORN_TIMESTAMP, b"0")]), commit(), dead("NOT_ALLOWED")
    ),
    scene("incomplete", *several(3), drop(1), commit(2), dead("INCOMPLETE", 0, 2)),
    scene("extra", *several(2), commit(1, message_count=1), real(0), dead("EXTRA", 1)),
    scene("late", *delivered(), half(message_index=1), dead("LATE", 1), finds="late"),
    scene(
        "an_op_that_named_what_was_stored_later",
        half(),
        commit(half_offset=1 << 40, message_count=2),
        dead("INCOMPLETE"),
        half(message_index=1),
        dead("LATE", 1),
        finds="late",
    ),
    scene(
        "another_life_of_the_same",
        half(),
        discard(source=OpSource.OPERATOR),
        dead("OPERATOR"),
        _another_life,
    ),
    scene(
        "redelivered_after_it_was_refused",
        *several(2),
        commit(1),
        dead("UNDELIVERABLE", 0, 1),
        half(value=b"0", resume_count=1),
        half(value=b"1", message_index=1, resume_count=1),
        commit(3, **BY_OPERATOR),
        real(2),
        real(3),
    ),
    scene(
        "redelivered_and_refused_again",
        half(),
        commit(),
        dead("NOT_ALLOWED"),
        half(resume_count=1),
        commit(1, **BY_OPERATOR),
        dead("UNDELIVERABLE", 1),
        half(resume_count=2),
        commit(2, **BY_OPERATOR),
        real(2),
    ),
    scene(
        "extra_that_was_redelivered",
        *several(2),
        commit(1, message_count=1),
        real(0),
        dead("EXTRA", 1),
        half(value=b"1", message_index=1, resume_count=1),
        commit(2, **BY_OPERATOR),
        real(2),
    ),
    scene("orphan_rollback", half(), drop(), rollback()),
    scene("discarded_with_a_stub", half(), discard(**CHECKER), dead("CHECK_TIMES", **_STUB)),
    scene(
        "too_many_messages",
        half(),
        half(message_index=TRANSACTION_MESSAGES_MAX),
        commit(1),
        dead("TOO_LARGE", 0, 1, **_STUB),
    ),
    scene(
        "excess_of_an_undecided_one",
        half(),
        half(message_index=TRANSACTION_MESSAGES_MAX),
        half(message_index=TRANSACTION_MESSAGES_MAX + 1),
        dead("TOO_LARGE", 2, **_STUB),
    ),
    scene(
        "too_many_bytes",
        half(value=_HALF_OF_IT, **_FREE),
        half(message_index=1, key=b"k", value=_HALF_OF_IT),
        commit(1),
        dead("TOO_LARGE", 0, 1, **_STUB),
    ),
    scene(
        "as_many_bytes_as_may_be",
        *delivered(value=bytes(TRANSACTION_BYTES_MAX - 9), user=TRACE, **_FREE),
    ),
]

# --- with violations -----------------------------------------------------------------------

BROKEN = [
    scene(
        "redelivered_twice",
        half(),
        commit(),
        dead("UNDELIVERABLE"),
        half(resume_count=1),
        commit(1, **BY_OPERATOR),
        real(1),
        real(1),
        finds="duplicate",
    ),
    scene(
        "redelivered_and_not_delivered",
        half(),
        commit(),
        dead("UNDELIVERABLE"),
        half(resume_count=1),
        commit(1, **BY_OPERATOR),
        finds="lost",
    ),
    scene(
        "a_gap_that_no_operator_asked_for",
        half(value=b"1", message_index=1, resume_count=1),
        commit(**BY_CHECK),
        real(),
        finds="torn",
    ),
    scene(
        "delivered_with_a_byte_too_many",
        *delivered(value=bytes(TRANSACTION_BYTES_MAX - 8), user=TRACE, **_FREE),
        finds="phantom",
    ),
    scene("too_large_though_it_is_not", half(), commit(), dead("TOO_LARGE", **_STUB), finds="lost"),
    scene(
        "incomplete_though_it_is_not",
        *several(2),
        commit(1),
        dead("INCOMPLETE", 0, 1),
        finds="lost lost",
    ),
    scene(
        "too_large_without_a_letter",
        half(),
        half(message_index=TRANSACTION_MESSAGES_MAX),
        commit(1),
        dead("TOO_LARGE", **_STUB),
        finds="lost",
    ),
    scene("lost", half(), commit(), finds="lost"),
    scene("lost_half", half(), drop(), commit(), finds="lost"),
    scene("discarded_without_a_letter", half(), discard(**CHECKER), finds="lost"),
    scene("discarded_though_committed", half(), commit(), dead("CHECK_TIMES"), finds="lost"),
    scene("torn", *several(3), commit(2), real(0), real(2), finds="torn"),
    scene(
        "torn_between_topics_of_the_living_and_the_dead",
        *several(2),
        commit(1),
        real(0),
        dead("UNDELIVERABLE", 1),
        finds="torn",
    ),
    scene(
        "delivered_though_incomplete",
        *several(2),
        commit(1, message_count=3),
        real(0),
        real(1),
        finds="torn",
    ),
    scene("delivered_twice", *delivered(), real(partition=1), finds="duplicate"),
    scene("delivered_and_buried", *delivered(), dead("UNDELIVERABLE"), finds="duplicate"),
    scene("buried_twice", half(), discard(**CHECKER), dead("CHECK_TIMES", 0, 0), finds="duplicate"),
    scene("another_value", half(), commit(), real(value=b"valuE"), finds="mismatch"),
    scene("null_became_empty", half(value=None), commit(), real(value=b""), finds="mismatch"),
    scene(
        "another_partition", half(real_partition=0), commit(), real(partition=1), finds="mismatch"
    ),
    scene("another_letter", half(), discard(**CHECKER), _dead_with_another_key, finds="mismatch"),
    scene("another_topic", half(), commit(), _real_in_another_topic, finds="lost phantom"),
    scene("delivered_undecided", half(), real(), finds="phantom"),
    scene("delivered_though_rolled_back", half(), rollback(), real(), finds="phantom"),
    scene("delivered_without_a_half", *delivered(), drop(), finds="phantom"),
    scene(
        "extra_delivered",
        *several(2),
        commit(1, message_count=1),
        real(0),
        real(1),
        finds="phantom",
    ),
    scene("buried_undecided", half(), dead("CHECK_TIMES"), finds="phantom"),
    scene("buried_without_a_half", half(), drop(), dead("CHECK_TIMES"), finds="phantom"),
    scene("contradicted", *delivered(), rollback(), finds="conflict"),
    scene(
        "the_second_decision_won", half(), rollback(), commit(), real(), finds="conflict phantom"
    ),
    scene("messages_in_another_order", *several(2), commit(1), real(1), real(0), finds="reordered"),
    scene(
        "transactions_in_another_order",
        half(key=b"lane"),
        half(key=b"lane", is_other=True),
        commit(0),
        commit(1),
        real(1),
        real(0),
        finds="reordered",
    ),
]
SCENES = [*IN_ORDER, *BROKEN]

"""Histories that are written by hand, each of one transaction, and what must be found in them."""

# ruff: noqa: D103  (the name of a scene says what it is)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.serde import headers as names
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.spark.tape import NAMES, Half, Tape

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKER = {"source": OpSource.CHECKER, "reason": "CHECK_TIMES"}
BY_AGE = {"source": OpSource.CHECKER, "reason": "AGE", "age_ms": 3_600_000}
BY_CHECK = {"source": OpSource.CHECK, "message_count": -1}

Scene = "Callable[[Tape], Half]"
SCENES: list[tuple[str, Callable[[Tape], Half], list[str]]] = []


def scene(*findings: str) -> Callable[[Callable[[Tape], Half]], Callable[[Tape], Half]]:
    """Register a scene and what must be found in it."""

    def register(play: Callable[[Tape], Half]) -> Callable[[Tape], Half]:
        SCENES.append((play.__name__, play, sorted(findings)))
        return play

    return register


def several(tape: Tape, count: int = 3, **given: Any) -> list[Half]:
    """Write a transaction of several messages, alike but for their values."""
    first = tape.half(value=b"0", **given)
    rest = range(1, count)
    return [first, *(tape.half(first.txn, value=b"%d" % n, message_index=n, **given) for n in rest)]


# What is in order.


@scene()
def delivered(tape: Tape) -> Half:
    return tape.delivered(user=[("trace", b"\xff"), ("trace", None)])


@scene()
def rolled_back(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.ROLLBACK, half)
    return half


@scene()
def undecided_with_answers(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.UNKNOWN, half, check_number=1, source=OpSource.CHECK)
    return tape.put_back(half)


@scene()
def discarded_as_a_copy(tape: Tape) -> Half:
    copy = tape.put_back(tape.half())
    tape.op(OpKind.DISCARD, copy, **CHECKER)
    tape.dead(copy, DeadReason.CHECK_TIMES)
    return copy


@scene()
def several_messages_and_partitions(tape: Tape) -> Half:
    halves = several(tape)
    tape.op(OpKind.COMMIT, halves[-1])
    for half in halves:
        tape.real(half, partition=half.metadata.message_index % 2)
    return halves[0]


@scene()
def messages_all_alike(tape: Tape) -> Half:
    first = tape.half(real_partition=1)
    second = tape.half(first.txn, message_index=1, real_partition=0)
    tape.op(OpKind.COMMIT, second)
    tape.real(first, partition=1)
    tape.real(second, partition=0)
    return first


@scene()
def equals_in_several_partitions(tape: Tape) -> Half:
    first = tape.half(key=None)
    other = tape.half(first.txn, key=None, value=b"other", message_index=1)
    last = tape.half(first.txn, key=None, message_index=2)
    tape.op(OpKind.COMMIT, last)
    tape.real(first, partition=1)
    tape.real(other, partition=0)
    tape.real(last, partition=0)
    return first


@scene()
def equals_of_which_one_was_bound(tape: Tape) -> Half:
    free = tape.half()
    bound = tape.half(free.txn, message_index=1, real_partition=1)
    tape.op(OpKind.COMMIT, bound)
    tape.real(bound, partition=1)
    tape.real(free, partition=2)
    return free


@scene()
def committed_by_a_check_as_a_copy(tape: Tape) -> Half:
    half = tape.half()
    copy = tape.put_back(half)
    tape.op(OpKind.COMMIT, copy, half_offset=copy.at, **BY_CHECK)
    tape.real(half)
    return half


@scene()
def repeated_half_and_decision(tape: Tape) -> Half:
    half = tape.half()
    tape.half(half.txn, value=b"again")
    tape.op(OpKind.COMMIT, half)
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def duplicate_half_behind_the_decision(tape: Tape) -> Half:
    half = tape.delivered()
    tape.dead(tape.half(half.txn), DeadReason.LATE)
    return half


@scene()
def checkers_discard_that_lost(tape: Tape) -> Half:
    half = tape.delivered()
    tape.op(OpKind.DISCARD, half, **CHECKER)
    return half


@scene()
def discard_by_a_producer(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half)
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def decision_of_another_group(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.ROLLBACK, half, producer_group="others")
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def discard_before_the_age(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **BY_AGE)
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def discard_at_the_age(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **{**BY_AGE, "age_ms": 1})
    tape.dead(half, DeadReason.AGE)
    return half


# Without an append time there is no age, and a discard for age takes no effect.


def discarded_in_vain(tape: Tape, half: Half) -> Half:
    tape.op(OpKind.DISCARD, half, **{**BY_AGE, "age_ms": 1})
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def discard_for_age_without_append_time(tape: Tape) -> Half:
    half = tape.half()
    with tape.create_time(days=4):
        tape.op(OpKind.DISCARD, half, **BY_AGE)
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene()
def discard_for_age_of_a_half_without_append_time(tape: Tape) -> Half:
    with tape.create_time(days=-4):
        half = tape.half()
    return discarded_in_vain(tape, half)


@scene()
def discard_for_age_of_a_copy_that_has_none(tape: Tape) -> Half:
    half = tape.half()
    tape.half(half.txn, origin_offset=half.at, check_times=1, first_append_timestamp=-1)
    return discarded_in_vain(tape, half)


@scene()
def discard_for_age_of_a_copy_before_all_times(tape: Tape) -> Half:
    half = tape.half()
    tape.half(half.txn, origin_offset=half.at, check_times=1, first_append_timestamp=-(2**63))
    return discarded_in_vain(tape, half)


@scene()
def discard_for_age_of_what_began_with_an_append_time(tape: Tape) -> Half:
    first = tape.half()
    with tape.create_time(days=-4):
        second = tape.half(first.txn, message_index=1)
    copy = tape.put_back(first)
    tape.op(OpKind.DISCARD, copy, half_offset=copy.at, **{**BY_AGE, "age_ms": 1})
    tape.dead(first, DeadReason.AGE)
    tape.dead(second, DeadReason.AGE)
    return first


@scene()
def discard_for_age_that_only_a_later_message_proves(tape: Tape) -> Half:
    with tape.create_time(days=-4):
        first = tape.half()
    second = tape.half(first.txn, message_index=1)
    tape.op(OpKind.DISCARD, second, **{**BY_AGE, "age_ms": 1})
    tape.op(OpKind.COMMIT, second)
    tape.real(first)
    tape.real(second)
    return first


@scene()
def not_allowed(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    tape.dead(half, DeadReason.NOT_ALLOWED)
    return half


@scene()
def reserved_header(tape: Tape) -> Half:
    half = tape.half(user=[(names.BORN_TIMESTAMP, b"0")])
    tape.op(OpKind.COMMIT, half)
    tape.dead(half, DeadReason.NOT_ALLOWED)
    return half


@scene()
def incomplete(tape: Tape) -> Half:
    first, _, third = several(tape)
    tape.drop(NAMES.half, 0, first.at + 1)
    tape.op(OpKind.COMMIT, third)
    tape.dead(first, DeadReason.INCOMPLETE)
    tape.dead(third, DeadReason.INCOMPLETE)
    return first


@scene()
def extra(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second, message_count=1)
    tape.real(first)
    tape.dead(second, DeadReason.EXTRA)
    return first


@scene("late")
def late(tape: Tape) -> Half:
    half = tape.delivered()
    tape.dead(tape.half(half.txn, message_index=1), DeadReason.LATE)
    return half


@scene("late")
def an_op_that_named_what_was_stored_later(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half, half_offset=1 << 40, message_count=2)
    tape.dead(half, DeadReason.INCOMPLETE)
    tape.dead(tape.half(half.txn, message_index=1), DeadReason.LATE)
    return half


@scene()
def another_life_of_the_same(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, source=OpSource.OPERATOR)
    tape.dead(half, DeadReason.OPERATOR)
    tape.delivered(txn=half.txn, resume_count=1)
    return half


@scene()
def orphan_rollback(tape: Tape) -> Half:
    half = tape.half()
    tape.drop(NAMES.half, 0, half.at)
    tape.op(OpKind.ROLLBACK, half)
    return half


@scene()
def discarded_with_a_stub(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **CHECKER)
    tape.dead(half, DeadReason.CHECK_TIMES, is_stub=True)
    return half


@scene()
def too_many_messages(tape: Tape) -> Half:
    first = tape.half()
    last = tape.half(first.txn, message_index=TRANSACTION_MESSAGES_MAX)
    tape.op(OpKind.COMMIT, last)
    for half in (first, last):
        tape.dead(half, DeadReason.TOO_LARGE, is_stub=True)
    return first


@scene()
def excess_of_an_undecided_one(tape: Tape) -> Half:
    first = tape.half()
    tape.half(first.txn, message_index=TRANSACTION_MESSAGES_MAX)
    excess = tape.half(first.txn, message_index=TRANSACTION_MESSAGES_MAX + 1)
    tape.dead(excess, DeadReason.TOO_LARGE, is_stub=True)
    return first


@scene()
def too_many_bytes(tape: Tape) -> Half:
    half_of_it = TRANSACTION_BYTES_MAX // 2
    first = tape.half(key=None, value=bytes(half_of_it))
    last = tape.half(first.txn, message_index=1, key=b"k", value=bytes(half_of_it))
    tape.op(OpKind.COMMIT, last)
    for half in (first, last):
        tape.dead(half, DeadReason.TOO_LARGE, is_stub=True)
    return first


@scene()
def as_many_bytes_as_may_be(tape: Tape) -> Half:
    user = [("name", b"value")]
    return tape.delivered(key=None, value=bytes(TRANSACTION_BYTES_MAX - 9), user=user)


# What breaks the law.


@scene("phantom")
def delivered_with_a_byte_too_many(tape: Tape) -> Half:
    user = [("name", b"value")]
    return tape.delivered(key=None, value=bytes(TRANSACTION_BYTES_MAX - 8), user=user)


@scene("lost")
def too_large_though_it_is_not(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    tape.dead(half, DeadReason.TOO_LARGE, is_stub=True)
    return half


@scene("lost", "lost")
def incomplete_though_it_is_not(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second)
    tape.dead(first, DeadReason.INCOMPLETE)
    tape.dead(second, DeadReason.INCOMPLETE)
    return first


@scene("lost")
def too_large_without_a_letter(tape: Tape) -> Half:
    first = tape.half()
    last = tape.half(first.txn, message_index=TRANSACTION_MESSAGES_MAX)
    tape.op(OpKind.COMMIT, last)
    tape.dead(first, DeadReason.TOO_LARGE, is_stub=True)
    return first


@scene("lost")
def lost(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    return half


@scene("lost")
def lost_half(tape: Tape) -> Half:
    half = tape.half()
    tape.drop(NAMES.half, 0, half.at)
    tape.op(OpKind.COMMIT, half)
    return half


@scene("lost")
def discarded_without_a_letter(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **CHECKER)
    return half


@scene("lost")
def discarded_though_committed(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    tape.dead(half, DeadReason.CHECK_TIMES)
    return half


@scene("torn")
def torn(tape: Tape) -> Half:
    halves = several(tape)
    tape.op(OpKind.COMMIT, halves[-1])
    tape.real(halves[0])
    tape.real(halves[2])
    return halves[0]


@scene("torn")
def torn_between_topics_of_the_living_and_the_dead(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second)
    tape.real(first)
    tape.dead(second, DeadReason.UNDELIVERABLE)
    return first


@scene("torn")
def delivered_though_incomplete(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second, message_count=3)
    tape.real(first)
    tape.real(second)
    return first


@scene("duplicate")
def delivered_twice(tape: Tape) -> Half:
    half = tape.delivered()
    tape.real(half, partition=1)
    return half


@scene("duplicate")
def delivered_and_buried(tape: Tape) -> Half:
    half = tape.delivered()
    tape.dead(half, DeadReason.UNDELIVERABLE)
    return half


@scene("duplicate")
def buried_twice(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **CHECKER)
    tape.dead(half, DeadReason.CHECK_TIMES)
    tape.dead(half, DeadReason.CHECK_TIMES)
    return half


@scene("mismatch")
def another_value(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    tape.real(half, value=b"valuE")
    return half


@scene("mismatch")
def null_became_empty(tape: Tape) -> Half:
    half = tape.half(value=None)
    tape.op(OpKind.COMMIT, half)
    tape.real(half, value=b"")
    return half


@scene("mismatch")
def another_partition(tape: Tape) -> Half:
    half = tape.half(real_partition=0)
    tape.op(OpKind.COMMIT, half)
    tape.real(half, partition=1)
    return half


@scene("mismatch")
def another_letter(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.DISCARD, half, **CHECKER)
    tape.dead(tape_twin(half), DeadReason.CHECK_TIMES)
    return half


@scene("lost", "phantom")
def another_topic(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.COMMIT, half)
    headers = names.real_headers([], half.txn, half.metadata.born_timestamp)
    tape.write("invoices", 0, key=half.key, value=half.value, headers=headers)
    return half


@scene("phantom")
def delivered_undecided(tape: Tape) -> Half:
    half = tape.half()
    tape.real(half)
    return half


@scene("phantom")
def delivered_though_rolled_back(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.ROLLBACK, half)
    tape.real(half)
    return half


@scene("phantom")
def delivered_without_a_half(tape: Tape) -> Half:
    half = tape.delivered()
    tape.drop(NAMES.half, 0, half.at)
    return half


@scene("phantom")
def extra_delivered(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second, message_count=1)
    tape.real(first)
    tape.real(second)
    return first


@scene("phantom")
def buried_undecided(tape: Tape) -> Half:
    half = tape.half()
    tape.dead(half, DeadReason.CHECK_TIMES)
    return half


@scene("phantom")
def buried_without_a_half(tape: Tape) -> Half:
    half = tape.half()
    tape.drop(NAMES.half, 0, half.at)
    tape.dead(half, DeadReason.CHECK_TIMES)
    return half


@scene("conflict")
def contradicted(tape: Tape) -> Half:
    half = tape.delivered()
    tape.op(OpKind.ROLLBACK, half)
    return half


@scene("conflict", "phantom")
def the_second_decision_won(tape: Tape) -> Half:
    half = tape.half()
    tape.op(OpKind.ROLLBACK, half)
    tape.op(OpKind.COMMIT, half)
    tape.real(half)
    return half


@scene("reordered")
def messages_in_another_order(tape: Tape) -> Half:
    first, second = several(tape, 2)
    tape.op(OpKind.COMMIT, second)
    tape.real(second)
    tape.real(first)
    return first


@scene("reordered")
def transactions_in_another_order(tape: Tape) -> Half:
    first, second = tape.half(key=b"lane"), tape.half(key=b"lane")
    tape.op(OpKind.COMMIT, first)
    tape.op(OpKind.COMMIT, second)
    tape.real(second)
    tape.real(first)
    return first


def tape_twin(half: Half) -> Half:
    """Return a half message that differs by one byte of its key."""
    return Half(half.at, half.pair, half.ms, half.metadata, b"kez", half.value, half.user)

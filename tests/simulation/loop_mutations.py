"""Planted defects of the daemon's loop: what it reads, what it asks, and what it plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.loop import collector
from halfbridge.checker.loop.asking import Asker
from halfbridge.checker.loop.assignment import Assignment
from halfbridge.checker.loop.collector import Batch, Collector
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.worker import StallWatch, Worker
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.plan import Check, Plan
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.kafka.ports import Committed, Event, TopicPartition


def _allow(self: Ledger) -> None:
    pass


# --- worker --------------------------------------------------------------------------------

_committed = Worker._committed


def _keep_ledgers(self: Worker, why: str, stop: Event) -> None:
    self._producers.settle()
    for pair in self._assignment.pairs.values():
        pair.held = None
    self._batch = Batch()


def _keep_what_is_written(self: Worker) -> None:
    pairs, plans = self._batch.pairs, self._batch.plans
    _committed(self)
    for pair in pairs:
        plan = plans[pair.partition]
        if plan.records and getattr(pair, "written", None) is not plan:
            pair.held = pair.written = plan  # type: ignore[attr-defined]  # once more


# --- real topics that are away -------------------------------------------------------------

_plan_of = Ledger.plan


def _never_retry(self: Ledger, now_ms: int, **given: Any) -> Plan:
    return _plan_of(self, now_ms, **{**given, "retry": False})


def _wait_without_end(
    self: Routes, messages: Iterable[HalfRead], op_age_ms: int, now_ms: int
) -> bool:
    return any(True for _ in self.lacks(messages, now_ms))


# --- collector -----------------------------------------------------------------------------

_collect = Collector.collect


def _leave_the_last_out(self: Collector, pairs: Mapping[int, Pair], now: float) -> Batch:
    batch = _collect(self, pairs, now)
    for pair in batch.pairs[1:]:
        pair.held = None  # its plan was taken from the ledger
    return Batch(batch.pairs[:1])


def _never_move(pair: Pair, now: float) -> bool:
    return False


# --- assignment ----------------------------------------------------------------------------

_serve = Assignment._serve
_start = Assignment.start


def _read_from_position(self: Assignment, *arguments: Any) -> None:
    _serve(self, *arguments)
    offsets = {}
    for number, pair in self.pairs.items():
        offsets[self._half, number] = pair.began_from.position
        offsets[self._op, number] = pair.began_from.ops_from
    self._input.read_from(offsets)


def _keep_pairs(self: Assignment) -> None:
    before = dict(self.pairs)
    _start(self)
    offsets = {}
    for number in self.pairs:
        pair = self.pairs[number] = before.get(number, self.pairs[number])
        pair.held, pair.paused = None, frozenset()
        progress = pair.ledger.progress() if number in before else pair.began_from
        is_old = number in before
        offsets[self._half, number] = progress.position if is_old else progress.half
        offsets[self._op, number] = pair.ledger._op_position if is_old else progress.ops_from
    if offsets:
        self._input.read_from(offsets)


def _never_resume(self: Assignment, *only: Pair) -> None:
    for pair in only or self.pairs.values():
        not_wanted = pair.paused | self._throttle.not_wanted(pair)
        for topic in not_wanted - pair.paused:
            self._input.pause(topic, pair.partition)
        pair.paused = not_wanted


# --- asking --------------------------------------------------------------------------------

_send_checks = Asker._send


def _ask_nobody_twice(self: Asker, pair: Pair, checks: list[Check], now: float) -> None:
    _send_checks(self, pair, [check for check in checks if check.attempt == 1], now)


def _ask_nobody(self: Asker, pair: Pair, checks: list[Check], now: float) -> None:
    pass


# --- intake --------------------------------------------------------------------------------

_committed_offsets = Input.committed
_read_from = Input.read_from
_on_assigned = Input._on_assigned


def _unstable(self: Input, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
    member: Any = self._member
    member._is_committed = False
    try:
        return _committed_offsets(self, wanted)
    finally:
        member._is_committed = True


def _go_on_reading(self: Input, offsets: Mapping[TopicPartition, int]) -> None:
    places = [place for place in self._served if place in offsets]
    reached = {at: end for at, end in self._member.positions(places).items() if end >= 0}
    _read_from(self, {**offsets, **reached})


def _keep_the_first_membership(self: Input, *arguments: Any) -> None:
    before = self.membership
    _on_assigned(self, *arguments)
    self.membership = before or self.membership


# --- stall watch ---------------------------------------------------------------------------


def _never_give_up(self: StallWatch, stalled: Mapping[TopicPartition, float]) -> None:
    pass


LOOP = (
    # Of the worker.
    # In two of them the ledger would refuse the second plan by itself: the judge is tested here.
    Mutation(
        "ledger kept after a failed kafka_txn",
        300,
        ((Worker, "_recover", _keep_ledgers), (Ledger, "_refuse_a_second_plan", _allow)),
    ),
    Mutation("deferred deliveries are never retried", 100, ((Ledger, "plan", _never_retry),)),
    Mutation("waits never end", 100, ((Routes, "must_wait", _wait_without_end),)),
    Mutation("plan written again", 100, ((Worker, "_committed", _keep_what_is_written),)),
    # Of the collector.
    Mutation(
        "plan taken and left out of the batch",
        100,
        (
            (Collector, "collect", _leave_the_last_out),
            (Ledger, "_refuse_a_second_plan", _allow),
        ),
        begin=83,
    ),
    Mutation("offsets moved only with records", 100, ((collector, "_must_move", _never_move),)),
    # Of the assignment.
    Mutation("undecided not read again", 100, ((Assignment, "_serve", _read_from_position),)),
    Mutation(
        "ledgers kept over assignments",
        300,
        ((Assignment, "start", _keep_pairs), (Ledger, "_refuse_a_second_plan", _allow)),
        begin=3,
    ),
    Mutation("never resumed", 300, ((Assignment, "pause_or_resume", _never_resume),)),
    # Of asking.
    Mutation("nobody asked", 100, ((Asker, "_send", _ask_nobody),), begin=4),
    Mutation("nobody asked twice", 1000, ((Asker, "_send", _ask_nobody_twice),)),
    # Of the intake.
    Mutation("unstable offsets", 300, ((Input, "committed", _unstable),), begin=9),
    Mutation(
        "new ledgers not read from their beginning", 100, ((Input, "read_from", _go_on_reading),)
    ),
    Mutation(
        "membership of the first generation",
        100,
        ((Input, "_on_assigned", _keep_the_first_membership),),
    ),
    # Of the stall watch.
    Mutation("stalled consumer kept", 300, ((StallWatch, "_give_up", _never_give_up),), begin=3),
)

"""Planted defects of the client's shell, and of the brokers in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.bridge import check_responder
from halfbridge.bridge.check_pool import CheckPool
from halfbridge.bridge.check_responder import CheckResponder, answer_to
from halfbridge.bridge.daemon_settings import EndAsker
from halfbridge.bridge.delivery import Delivery, DeliveryServer
from halfbridge.bridge.futures import DecisionFuture, SendFuture
from halfbridge.bridge.message import Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.shared import Shared
from halfbridge.serde.records import NO_OFFSET
from halfbridge.testkit.memory.group import Group
from halfbridge.testkit.memory.transactions import Coordinator
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from halfbridge.bridge.check_pool import Outcome
    from halfbridge.bridge.message import Message
    from halfbridge.serde.records import CheckRequest, Op

# --- check responder -----------------------------------------------------------------------

_next_batch = CheckPool._next_batch


def _no_answer_is_a_rollback(request: CheckRequest, outcome: Outcome[Any], **how: Any) -> Op:
    if outcome.is_overdue or outcome.error is not None:
        outcome = replace(outcome, answer=Resolution.ROLLBACK)
    return answer_to(request, outcome, **how)


def _unknown_is_a_commit(request: CheckRequest, outcome: Outcome[Any], **how: Any) -> Op:
    if outcome.answer is Resolution.UNKNOWN:
        outcome = replace(outcome, answer=Resolution.COMMIT)
    return answer_to(request, outcome, **how)


def _report_the_answer_before(
    self: CheckPool[Any], pause_s: float
) -> tuple[list[Outcome[Any]], bool]:
    batch, is_last = _next_batch(self, pause_s)
    mixed = []
    for outcome in batch:
        mixed.append(replace(outcome, answer=getattr(self, "answer_before", outcome.answer)))
        self.answer_before = outcome.answer
    return mixed, is_last


def _stay_busy(self: CheckResponder) -> None:
    for batch in self._pool.outcomes(pause_s=0.1):
        self._write(batch)


def _end_as_requested(self: EndAsker, partition: int, *, at_least: int = NO_OFFSET) -> int:
    return at_least if at_least != NO_OFFSET else _half_end(self, partition)


_half_end = EndAsker.half_end

# --- client --------------------------------------------------------------------------------


def _believe_every_send(self: SendFuture, error: Any, record: Any) -> None:
    self.offset = record.offset() or 0
    self.timestamp = record.timestamp()[1]
    self.transaction.half_settled(self, None)


def _is_done_too_soon(self: Delivery, timeout_s: float) -> bool:
    if not self._is_done:
        self.settle()
    return True


_half_settled = Transaction.half_settled


def _keep_the_first_offset(self: Transaction, future: SendFuture, error: Any) -> None:
    first = self._last_offset
    _half_settled(self, future, error)
    if first != NO_OFFSET:
        self._last_offset = first


_send = Transaction._send


def _place_each_alone(self: Transaction, message: Message, *, pipelined: bool) -> SendFuture:
    if self._count:
        self.half_partition = self.shared.half_partition(self.id, message.key)
    return _send(self, message, pipelined=pipelined)


def _close_at_once(self: DeliveryServer, timeout_s: float) -> int:
    return 0


def _never_wait(self: Shared) -> None:
    pass


_on_delivery = DecisionFuture.on_delivery


def _repeat_a_failed_decision(self: DecisionFuture, error: Any, record: Any) -> None:
    """Send a failed decision again, after those that were sent meanwhile."""
    if error is None or record.value() is None or self.transaction.id in _repeated:
        _on_delivery(self, error, record)
        return
    _repeated.add(self.transaction.id)
    place = record.topic(), record.value(), record.key(), record.partition()
    self.transaction.shared.produce(*place, self.on_delivery)


_repeated: set[str] = set()

# --- brokers in memory ---------------------------------------------------------------------


def _fences_nobody(self: Group, member: Any, *, in_kafka_txn: bool) -> None:
    pass


_init = Coordinator.init


def _no_new_epoch(self: Coordinator, transactional_id: str, timeout_ns: int) -> tuple[int, int]:
    _init(self, transactional_id, timeout_ns)
    self.identities[transactional_id].epoch = 0
    return self.new_producer_id(), 0


CLIENT = (
    # Of the check responder.
    Mutation(
        "no answer counts as ROLLBACK",
        300,
        ((check_responder, "answer_to", _no_answer_is_a_rollback),),
        begin=17,
    ),
    Mutation(
        "UNKNOWN counts as COMMIT",
        100,
        ((check_responder, "answer_to", _unknown_is_a_commit),),
        begin=9,
    ),
    Mutation(
        "answer of the check before", 100, ((CheckPool, "_next_batch", _report_the_answer_before),)
    ),
    Mutation("busy for ever", 300, ((CheckResponder, "_answer", _stay_busy),), begin=40),
    Mutation(
        "answer below what its checker saw",
        300,
        ((EndAsker, "half_end", _end_as_requested),),
        begin=237,
    ),
    # Of the client.
    Mutation("failed send believed", 300, ((SendFuture, "on_delivery", _believe_every_send),)),
    Mutation("waiting ends too soon", 300, ((Delivery, "wait", _is_done_too_soon),)),
    Mutation(
        "COMMIT below the last message",
        100,
        ((Transaction, "half_settled", _keep_the_first_offset),),
    ),
    Mutation(
        "messages of one transaction scattered",
        100,
        ((Transaction, "_send", _place_each_alone),),
    ),
    # Of decisions that are sent and not awaited.
    Mutation(
        "close that does not flush",
        100,
        ((DeliveryServer, "flush", _close_at_once),),
        is_sent=True,
    ),
    Mutation(
        "decisions in flight without a bound",
        300,
        ((Shared, "wait_for_room", _never_wait),),
        is_sent=True,
    ),
    Mutation(
        "repeated decision behind later ones",
        300,
        ((DecisionFuture, "on_delivery", _repeat_a_failed_decision),),
        is_sent=True,
    ),
)
BROKER = (
    Mutation("generation not checked", 300, ((Group, "check", _fences_nobody),), begin=163),
    Mutation("epoch not bumped", 1000, ((Coordinator, "init", _no_new_epoch),)),
)

"""One line a check, answer, decision and delivery, by transaction id, while the level is debug.

At any other level nothing is formatted, decoded or counted for these lines: the loop asks
`is_traced` once for all records of one fetch, and once for each plan that was written.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.logs import about
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.core.plan import Check, DeadHalf, Plan

_log = logging.getLogger("halfbridge.checker")


def is_traced() -> bool:
    """Tell whether lines are wanted."""
    return _log.isEnabledFor(logging.DEBUG)


def trace_check(asked: Check, partition: int, *, topic: str) -> None:
    """Log that a producer group is asked about a transaction."""
    told = asked.half.metadata
    _line(
        "check %d of transaction %s is asked of group %s, request %d of it, on topic %s",
        *(asked.check_number, told.transaction_id, told.producer_group, asked.attempt, topic),
        event="check",
        transaction_id=told.transaction_id,
        producer_group=told.producer_group,
        check_number=asked.check_number,
        attempt=asked.attempt,
        partition=partition,
        offset=asked.half.offset,
    )


def trace_ops(records: Iterable[Any], op_topic: str) -> None:
    """Log what was read of the op topic: decisions, and answers to checks."""
    for record in records:
        if record.error() is None and record.topic() == op_topic:
            _op(record)


def trace_written(plan: Plan, partition: int, *, refused: Sequence[DeadHalf]) -> None:
    """Log what a kafka_txn that stands has made of transactions.

    Args:
        plan: What was written; its dead letters have lines of their own at every level.
        partition: Of the pair.
        refused: Messages of the plan's deliveries that became dead letters.
    """
    not_delivered = {dead.half.metadata.transaction_id for dead in refused}
    for one in plan.deliveries:
        if one.transaction_id in not_delivered:
            continue
        topics = ", ".join(dict.fromkeys(half.metadata.real_topic for half in one.messages))
        _line(
            "transaction %s of group %s is delivered: %d messages to %s",
            *(one.transaction_id, one.producer_group, len(one.messages), topics),
            event="delivery",
            transaction_id=one.transaction_id,
            producer_group=one.producer_group,
            messages=len(one.messages),
            real_topic=topics,
            partition=partition,
            offset=one.op_offset,
        )
    for back in plan.put_backs:
        _line(
            "transaction %s of group %s is put back by %s, %d answers counted",
            *(back.metadata.transaction_id, back.metadata.producer_group, back.rule.value),
            back.metadata.check_times,
            event="put back",
            transaction_id=back.metadata.transaction_id,
            producer_group=back.metadata.producer_group,
            partition=partition,
            offset=back.half.offset,
        )
    for op in plan.discards:
        _line(
            "transaction %s of group %s is to be discarded: %s",
            *(op.transaction_id, op.producer_group, op.reason),
            event="discard",
            transaction_id=op.transaction_id,
            producer_group=op.producer_group,
            reason=op.reason,
            partition=partition,
        )


def _op(record: Any) -> None:
    try:
        op = OP.decode(record.value() or b"")
    except DecodeError:  # it becomes a dead letter, which has a line
        return
    is_answer = op.source is OpSource.CHECK
    _line(
        "%s %s for transaction %s of group %s from %s, at offset %d of op partition %d",
        *("answer" if is_answer else "decision", op.kind.value, op.transaction_id),
        *(op.producer_group, op.source.value, record.offset(), record.partition()),
        event="answer" if is_answer else "decision",
        transaction_id=op.transaction_id,
        producer_group=op.producer_group,
        kind=op.kind,
        source=op.source,
        actor=op.actor,
        reason=op.reason,
        partition=record.partition(),
        offset=record.offset(),
    )


def _line(text: str, *arguments: object, **fields: object) -> None:
    _log.debug(text, *arguments, extra=about(**fields))

"""What an operator asks for, why that may be refused, and what it would do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.transactions.explain import span_text
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.checker.admin.words import counted
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind

if TYPE_CHECKING:
    from halfbridge.checker.admin.decisions.first import First
    from halfbridge.checker.admin.transactions.life import Life
    from halfbridge.checker.admin.transactions.waits import Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the operator asks for.

    Attributes:
        kind: COMMIT or ROLLBACK.
        reason: The operator's.
        message_count: How many messages a COMMIT covers; COUNT_UNKNOWN: all that are there.
    """

    kind: OpKind
    reason: str
    message_count: int = COUNT_UNKNOWN

    @property
    def action(self) -> str:
        """The action, as the audit topic names it."""
        return f"tx {self.kind.value.lower()}"


def refusal_of(undecided: Undecided, wish: Wish, *, force: bool) -> str:
    """Return why a transaction may not be decided by `wish` now; empty where it may.

    Args:
        undecided: As it was found.
        wish: What the operator asks for.
        force: The operator knows that the producer is not at work, and what a COMMIT makes of a
            transaction without all of its messages.
    """
    if undecided.wait is Wait.DECISION_WAITS:
        return f"{undecided.why}: it will be decided without you"
    if force:
        return ""
    if undecided.wait is Wait.NOT_DUE:
        return f"{undecided.why}; give --force if its producer is dead"
    if wish.kind is OpKind.COMMIT and wish.message_count > undecided.messages:
        return (
            f"of {wish.message_count} messages {undecided.messages} are there, so that COMMIT would"
            " make dead letters of them (INCOMPLETE); give --messages all, or --force"
        )
    return ""


def effect_text(undecided: Undecided, wish: Wish) -> str:
    """Return what a decision would do, as a sentence."""
    there, count = undecided.messages, wish.message_count
    if wish.kind is OpKind.ROLLBACK:
        return f"ROLLBACK delivers nothing of its {counted(there, 'message')}"
    if count > there:
        wanted = counted(count, "message")
        return f"COMMIT of {wanted}: what is there, {there}, becomes dead letters (INCOMPLETE)"
    if COUNT_UNKNOWN < count < there:
        extra = counted(there - count, "dead letter")
        return f"COMMIT delivers {counted(count, 'message')}; the rest makes {extra} (EXTRA)"
    whole = "" if count == there else ", whether these are all or not"
    return f"COMMIT delivers what is there, {counted(there, 'message')}{whole}"


def standing_text(life: Life) -> str:
    """Return how a transaction was decided, and by whom."""
    winner = life.decided_by
    if winner is None:
        return f"{life.id} is {life.state} already"
    told = f"{winner.op} by {winner.source} {winner.actor} at op offset {winner.offset}"
    reason = f" ({winner.reason})" if winner.reason else ""
    return f"{life.id} is {life.state} already: {told}{reason}"


def before_text(undecided: Undecided) -> str:
    """Return how a transaction was found, for the audit topic."""
    age = "of unknown age" if undecided.age_ms is None else f"{span_text(undecided.age_ms)} old"
    return (
        f"{undecided.state}, {age}, {counted(undecided.messages, 'message')} of group"
        f" {undecided.producer_group}, pair {undecided.partition}, {undecided.wait.value}"
    )


def first_text(first: First) -> str:
    """Return which decision is the first, and who wrote it."""
    op = first.op
    told = f"{op.kind.value} by {op.source.value} {op.actor} at op offset {first.offset}"
    return f"{told}: {op.reason}" if op.reason else told

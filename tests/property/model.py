"""The model: what follows from a log, read once, slowly, from its beginning.

This is the independent oracle. All readers of the log in the product, and the history checker of
the testkit, judge by the table of halfbridge.serde.protocol; this model says the rules again in its
own words, and test_tidy.py keeps the table out of it. An error in the table is seen here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource

if TYPE_CHECKING:
    from tests.playbook import Log

FORBIDDEN = "forbidden"


class Truth:
    """What must have come of the ops below `op_end`.

    Attributes:
        delivered: What must have been delivered, in order.
        dead: Dead letters that must be there.
        perhaps: Dead letters that may be there: duplicates that came after the decision, and
            excess messages after the first.
        undecided: Transaction -> counted answers.
        decided_by: Transaction -> offset of the op that decided it.
    """

    def __init__(self, log: Log, op_end: int) -> None:
        self.delivered: list[str] = []
        self.dead: Counter[str] = Counter()
        self.perhaps: Counter[str] = Counter()
        self.decided_by: dict[Any, int] = {}
        self.messages: dict[Any, dict[int, HalfRead]] = {}
        self.discarded: set[Any] = set()
        again = []
        for half in log.half:
            if isinstance(half, HalfRead) and half.metadata.origin_offset < 0:
                known = self.messages.setdefault(key_of(half), {})
                if is_excess(half) and any(map(is_excess, known.values())):
                    again.append(half)  # or a duplicate of the one that is kept
                elif known.setdefault(half.metadata.message_index, half) is not half:
                    again.append(half)
        self.undecided = dict.fromkeys(self.messages, 0)
        for read in log.op:
            if isinstance(read, OpRead) and read.offset < op_end:
                self._apply(read)
        self.perhaps.update(self.dead_line("LATE", half) for half in again)
        excess = [half for half in again if is_excess(half)]
        self.perhaps.update(self.dead_line("TOO_LARGE", half) for half in excess)

    def dead_line(self, reason: str, half: HalfRead) -> str:
        """Return a dead letter in words; a discarded one's reason depends on when it was read."""
        return line("DISCARDED" if key_of(half) in self.discarded else reason, half)

    def _apply(self, read: OpRead) -> None:
        op = read.op
        key = op.transaction_id, op.producer_group, op.resume_count
        if key not in self.undecided:
            return
        if op.kind is OpKind.UNKNOWN:
            self.undecided[key] += op.check_number == self.undecided[key] + 1
            return
        if op.kind is OpKind.DISCARD and op.source is OpSource.PRODUCER:
            return
        del self.undecided[key]
        self.decided_by[key] = read.offset
        every = [half for _, half in sorted(self.messages[key].items())]
        there = [half for half in every if half.offset <= op.half_offset]
        if op.kind is OpKind.DISCARD:
            self.discarded.add(key)
            self.dead.update(line("DISCARDED", half) for half in every)
        elif op.kind is OpKind.COMMIT:
            self.dead.update(line("LATE", half) for half in every if half not in there)
            n = op.message_count
            is_partial = n < 0 and op.resume_count > 0 and op.source is OpSource.OPERATOR
            if n == COUNT_UNKNOWN:
                n = max((half.metadata.message_index + 1 for half in there), default=0)
            self.dead.update(line("EXTRA", h) for h in there if h.metadata.message_index >= n)
            meant = [half for half in there if half.metadata.message_index < n]
            size = sum(half.user_bytes for half in meant)
            if size > TRANSACTION_BYTES_MAX or any(map(is_excess, meant)):
                self.dead.update(line("TOO_LARGE", half) for half in meant)
            elif not is_partial and [h.metadata.message_index for h in meant] != list(range(n)):
                self.dead.update(line("INCOMPLETE", half) for half in meant)
            elif any(half.flaw or half.metadata.real_topic == FORBIDDEN for half in meant):
                self.dead.update(line("NOT_ALLOWED", half) for half in meant)
            else:
                self.delivered += [line("delivered", half) for half in meant]


def is_excess(half: HalfRead) -> bool:
    """Tell whether no transaction can have this message."""
    return half.metadata.message_index >= TRANSACTION_MESSAGES_MAX


def key_of(half: HalfRead) -> tuple[str, str, int]:
    """Return the transaction of a half message, and its life."""
    metadata = half.metadata
    return metadata.transaction_id, metadata.producer_group, metadata.resume_count


def line(what: str, half: HalfRead) -> str:
    """Return in words what became of a half message."""
    of = half.metadata
    life = f"/{of.resume_count}" if of.resume_count else ""
    return f"{what} {of.transaction_id}{life} of {of.producer_group} [{of.message_index}]"

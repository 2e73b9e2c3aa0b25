"""Planted defects of the pure core: each replaces one function of checker/core."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core import ops as core_ops
from halfbridge.checker.core import rebuild as core_rebuild
from halfbridge.checker.core.book import Book
from halfbridge.checker.core.entries import Decided, Entries
from halfbridge.checker.core.events import JunkRead, OpRead
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.ops import Ops
from halfbridge.checker.core.plan import Count, Draft, Letters
from halfbridge.checker.core.rebuild import Rebuild
from halfbridge.serde.protocol import Effect, State
from halfbridge.serde.records import OpKind, OpSource
from tests.ledger_log import op_record
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from collections import deque

    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.serde.progress import Progress

_UNLIMITED = 1 << 60

# --- deferred deliveries -------------------------------------------------------------------

_progress = Ledger.progress


def _no_deferred_op(self: Ledger, copies_end: int = 0) -> Progress:
    return replace(_progress(self, copies_end), deferred=())


def _deferred_is_done(self: Book, entry: Entry, read: OpRead) -> None:
    self.decide(entry, State.COMMITTED, read.offset, 0)


def _deferred_stays_listed(self: Ledger, copies_end: int = 0) -> Progress:
    progress = _progress(self, copies_end)
    before = [at for at in self._committed.deferred if progress.ops_from <= at]
    return replace(progress, deferred=tuple(sorted({*before, *progress.deferred})))


# --- progress ------------------------------------------------------------------------------

_lowest_op = Decided.lowest_op


def _low_half_too_high(self: Ledger, copies_end: int = 0) -> Progress:
    progress = _progress(self, copies_end)
    return replace(progress, half=min(progress.half + 1, progress.position))


def _rebuild_to_without_copies(self: Ledger, copies_end: int = 0) -> Progress:
    return _progress(self, max(0, copies_end - 1))


def _ops_from_too_high(self: Decided, op: int) -> int:
    return min(_lowest_op(self, op) + 1, op)


def _no_letter_left(self: Letters) -> None:
    pass


def _next_op_too_high(self: Ledger, copies_end: int = 0) -> Progress:
    progress = _progress(self, copies_end)
    return replace(progress, op=progress.op + 1)


def _forget_at_once(self: Decided, half: int, now_ms: int) -> None:
    queue = self._queue
    while queue and queue[0].last_record < half:  # copies that were not read back are forgotten
        self.forget_first()


# --- ops -----------------------------------------------------------------------------------

_answer = Ops._answer
_judge_commit = core_ops.judge_commit
_deliver = Draft.deliver
_put_back = Draft.put_back


def _apply_before_halves(
    self: Ops, waiting: deque[OpRead | JunkRead], _position: int, *rest: Any
) -> None:
    _apply_waiting(self, waiting, _UNLIMITED, *rest)


def _apply_the_last(self: Ops, waiting: deque[OpRead | JunkRead], *rest: Any) -> None:
    decisions = {
        read.op.transaction_id: read.offset
        for read in waiting
        if not isinstance(read, JunkRead) and read.op.kind is not OpKind.UNKNOWN
    }
    for at, read in enumerate(waiting):
        if isinstance(read, JunkRead):
            continue
        if decisions.get(read.op.transaction_id, -1) > read.offset:
            overruled = read.op._replace(kind=OpKind.UNKNOWN, check_number=0)
            waiting[at] = read._replace(op=overruled)
    _apply_waiting(self, waiting, *rest)


_apply_waiting = Ops.apply_waiting


def _count_any_answer(self: Ops, entry: Entry, read: OpRead, now_ms: int) -> None:
    op = read.op._replace(check_number=entry.check_times + 1)
    _answer(self, entry, read._replace(op=op), now_ms)


def _put_back_without_count(self: Draft, entry: Entry, rule: Any) -> None:
    entry.check_times -= 1
    _put_back(self, entry, rule)
    entry.check_times += 1


def _discard_at_once(
    self: Draft, entry: Entry, reason: str, actor: str, now_ms: int, *, age_ms: int = 0
) -> None:
    for half in entry.in_order():
        op = op_record("", OpKind.DISCARD, half_offset=half.offset)
        op = op._replace(reason=reason, source=OpSource.CHECKER)
        self.dead_letter(
            entry,
            half,
            core_ops.discard_reason(op),
            reason,
            OpRead(-1, now_ms, op),
            by_reference=False,
        )
    entry.messages = {}
    entry.state = State.DISCARDED


def _ignore_gaps(meant: Any, count: int, allows: Any) -> None:
    return None


def _commit_what_came_late(messages: Any, op: Any, allows: Any) -> Any:
    return _judge_commit(messages, op._replace(half_offset=_UNLIMITED), allows)


def _any_age(op: Any, op_append_ms: int, first_append_ms: int) -> bool:
    return True


def _copy_is_another(self: Book, entry: Entry, half: HalfRead) -> None:
    self._another(entry, half)


def _any_group(self: Entries, transaction_id: str, resume_count: int, group: str) -> Any:
    return self._by_key.get((transaction_id, resume_count))


def _drop_late(self: Draft, entry: Entry, half: HalfRead) -> None:
    self.count(Count.DUPLICATE)


def _deliver_in_reverse(self: Draft, entry: Entry, messages: Any, read: OpRead) -> None:
    _deliver(self, entry, tuple(reversed(messages)), read)


# --- rebuild -------------------------------------------------------------------------------


def _bury_junk_again(self: Rebuild, record: JunkRead) -> None:
    self._fresh.append(record)


def _everything_is_fresh(self: Rebuild, half: HalfRead) -> bool:
    return half.metadata.origin_offset < 0


def _forget_late_junk(self: Rebuild, record: JunkRead) -> None:
    pass


def _is_complete_early(self: Rebuild, position: int, op_position: int) -> bool:
    return op_position >= self._progress.op


def _apply_past_ops(self: Ledger, read: OpRead) -> None:
    self._op_position = read.offset + 1
    self._waiting.append(read)


CORE = (
    Mutation("D not committed", 100, ((Ledger, "progress", _no_deferred_op),)),
    Mutation("D never shrinks", 100, ((Ledger, "progress", _deferred_stays_listed),), begin=70),
    Mutation(
        "a deferred delivery counts as done after a rebuild",
        100,
        ((Book, "defer", _deferred_is_done),),
    ),
    Mutation("H one too high", 300, ((Ledger, "progress", _low_half_too_high),)),
    Mutation("R one too low", 100, ((Ledger, "progress", _rebuild_to_without_copies),), begin=250),
    Mutation("T one too high", 300, ((Decided, "lowest_op", _ops_from_too_high),)),
    Mutation(
        "P beyond letters that are left", 300, ((Letters, "first", _no_letter_left),), begin=193
    ),
    Mutation("O one too high", 100, ((Ledger, "progress", _next_op_too_high),)),
    Mutation("decisions forgotten at once", 300, ((Decided, "forget", _forget_at_once),), begin=5),
    Mutation(
        "op applied before its half was read",
        300,
        ((Ops, "apply_waiting", _apply_before_halves),),
    ),
    Mutation("last decision wins", 300, ((Ops, "apply_waiting", _apply_the_last),)),
    Mutation(
        "UNKNOWN with any check number counts",
        300,
        ((Ops, "_DO", {**Ops._DO, Effect.ANSWER: _count_any_answer}),),
    ),
    Mutation("put back without increment", 300, ((Draft, "put_back", _put_back_without_count),)),
    Mutation("discard without the log", 300, ((Draft, "discard", _discard_at_once),)),
    Mutation("gap delivered", 300, ((core_ops, "_refusal", _ignore_gaps),)),
    Mutation(
        "late message delivered",
        300,
        ((core_ops, "judge_commit", _commit_what_came_late),),
        begin=7,
    ),
    Mutation("late message dropped", 300, ((Draft, "dead_letter_late", _drop_late),), begin=7),
    Mutation(
        "discard for age without proof",
        300,
        ((core_ops, "proves_its_age", _any_age), (core_rebuild, "proves_its_age", _any_age)),
        begin=577,
    ),
    Mutation("copy counted as a new half", 300, ((Book, "_copy_back", _copy_is_another),), begin=7),
    Mutation("any group decides", 300, ((Entries, "find", _any_group),)),
    Mutation("messages out of order", 300, ((Draft, "deliver", _deliver_in_reverse),)),
    Mutation(
        "junk buried again after a rebuild",
        300,
        ((Rebuild, "junk_half", _bury_junk_again),),
        begin=11,
    ),
    Mutation(
        "junk above P forgotten by a rebuild", 300, ((Rebuild, "junk_half", _forget_late_junk),)
    ),
    Mutation(
        "late message buried again after a rebuild",
        300,
        ((Rebuild, "_is_fresh", _everything_is_fresh),),
    ),
    Mutation(
        "rebuild that does not read to R",
        300,
        ((Rebuild, "is_complete", _is_complete_early),),
        begin=11,
    ),
    Mutation("ops below O applied again", 300, ((Ledger, "op", _apply_past_ops),)),
)

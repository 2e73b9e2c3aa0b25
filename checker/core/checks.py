"""Asking: which undecided transactions are due, and which have grown too old to ask about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.plan import Check, Count
from halfbridge.checker.core.schedule import backoff_ms
from halfbridge.serde.protocol import REASON_AGE

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.entry import Entry


class Checks:
    """Checks and age discards of one partition pair.

    Nothing is due before op p has been read to its end at some moment after it fell due: after
    an outage the decision usually stands further on.

    Args:
        book: The transactions, changed in place.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._confirmed_ms = 0
        self._claim: tuple[int, int] | None = None
        self._is_overdue = False

    @property
    def wants_op_end(self) -> bool:
        """Whether a check is due that may go out only after op p's end is known."""
        return self._is_overdue and self._claim is None

    def op_end(self, end: int, asked_ms: int) -> None:
        """Take that op p ended at `end` at some moment after `asked_ms`."""
        self._claim = (end, asked_ms)

    def applied(self, next_op: int) -> None:
        """Take that every op below `next_op` is applied."""
        if self._claim is not None and next_op >= self._claim[0]:
            self._confirmed_ms = max(self._confirmed_ms, self._claim[1])
            self._claim = None

    def due(self, now_ms: int, limit: int) -> list[Check]:
        """Return at most `limit` checks to send now; discards that fell due join the draft."""
        schedule, settings = self._book.schedule, self._book.settings
        self._book.schedule_unaged(now_ms)
        checks: list[Check] = []
        confirmed_ms = min(self._confirmed_ms, now_ms)
        for entry in schedule.take(confirmed_ms, limit):
            if not self._is_aged(entry, now_ms):
                checks.append(self._ask(entry, now_ms))
                continue
            if not entry.discarding:
                entry.discarding = True
                age_ms = settings.transaction_age_ms_max
                self._book.draft.discard(entry, REASON_AGE, settings.actor, now_ms, age_ms=age_ms)
            schedule.add(entry, now_ms + settings.check_backoff_ms_max)
        due_ms = schedule.next_due_ms()
        self._is_overdue = due_ms is not None and confirmed_ms < due_ms <= now_ms
        return checks

    def _ask(self, entry: Entry, now_ms: int) -> Check:
        settings = self._book.settings
        if entry.attempt:
            self._book.draft.count(Count.CHECK_EXPIRED)
        else:
            entry.first_request_ms = now_ms
        entry.attempt += 1
        wait_ms = backoff_ms(
            entry.attempt, settings.check_interval_ms, settings.check_backoff_ms_max
        )
        self._book.schedule.add(entry, now_ms + wait_ms)
        first = entry.messages[min(entry.messages)]
        last_offset = max(half.offset for half in entry.messages.values())
        return Check(first, entry.check_times + 1, entry.attempt, last_offset)

    def _is_aged(self, entry: Entry, now_ms: int) -> bool:
        settings = self._book.settings
        return (
            0 <= entry.first_append_ms <= now_ms - settings.transaction_age_ms_max
            and entry.attempt >= settings.unanswered_before_discard
            and now_ms - entry.first_request_ms >= settings.readiness_before_discard_ms
        )

"""Selects the undecided transactions to check, and those to discard for their age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.plan import Check, Count
from halfbridge.checker.core.schedule import backoff_ms
from halfbridge.serde.protocol import REASON_AGE

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.entry import Entry
    from halfbridge.checker.core.schedule import Room


class Checks:
    """Checks and discards for age of one partition pair.

    A transaction is checked only after op p was read to an end that was asked for after the
    transaction fell due. Example: a transaction fell due during an outage, at 12:00, and the worker
    starts at 14:00. Its COMMIT, of 12:01, is among the ops that the worker has not read yet.

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
        """Whether a check is due that may be sent only after the end of op p is known."""
        return self._is_overdue and self._claim is None

    def op_end(self, end: int, asked_ms: int) -> None:
        """Record that op p ended at `end` at some moment after `asked_ms`."""
        self._claim = (end, asked_ms)

    def applied(self, next_op: int) -> None:
        """Record that every op below `next_op` is applied."""
        if self._claim is not None and next_op >= self._claim[0]:
            self._confirmed_ms = max(self._confirmed_ms, self._claim[1])
            self._claim = None

    def due(self, now_ms: int, limit: int, room: Room | None = None) -> list[Check]:
        """Return at most `limit` checks to send now; add discards for age to the draft.

        Args:
            now_ms: Partition time.
            limit: Most checks.
            room: See `CheckSchedule.take`.
        """
        schedule, settings = self._book.schedule, self._book.settings
        self._book.schedule_unaged(now_ms)
        checks: list[Check] = []
        confirmed_ms = min(self._confirmed_ms, now_ms)
        for entry in schedule.take(confirmed_ms, limit, room):
            if not self._is_aged(entry, now_ms):
                checks.append(self._ask(entry, now_ms))
                continue
            if not entry.discarding:
                entry.discarding = True
                age_ms = settings.transaction_age_ms_max
                self._book.draft.discard(entry, REASON_AGE, settings.actor, now_ms, age_ms=age_ms)
            schedule.add(entry, now_ms + settings.check_backoff_ms_max)
        due_ms = schedule.next_unsorted_ms()
        self._is_overdue = due_ms is not None and confirmed_ms < due_ms <= now_ms
        return checks

    def _ask(self, entry: Entry, now_ms: int) -> Check:
        settings = self._book.settings
        if not entry.attempt:
            entry.first_request_ms = now_ms
        elif entry.failed_attempt < entry.attempt:  # a failed checker is somebody who was there
            self._book.draft.count(Count.CHECK_EXPIRED)
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

"""Bounds the memory of pairs: decides which topics are not fetched. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.memory import ALARM_PERCENT, HALVES_PERCENT, NEEDED_HALVES_PERCENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.pair import Pair

# Batches of ops and dead letters that may be read ahead of the present commit.
READ_AHEAD_BATCHES = 2


class Throttle:
    """Decides which topics of a pair are not fetched."""

    def __init__(self, config: CheckerConfig) -> None:
        self._half, self._op = config.names.half, config.names.op
        self._batch_records = config.batch_records_max
        self._batch_bytes = config.batch_bytes_max

    def not_wanted(self, pair: Pair) -> frozenset[str]:
        """Return the topics of a pair that must not be fetched now.

        The half topic: if the budget of entries is nearly spent; or if more than one batch of dead
        letters waits, until none waits, because ops wait for dead letters. The op topic: if too
        many ops wait for a half record or a missing real topic, or if the budget of entries is
        spent.
        """
        names = set()
        is_paused = self._half in pair.paused
        letters_max = 0 if is_paused else self._batch_records
        if pair.ledger.letters_waiting > letters_max or not pair.takes_halves(is_paused=is_paused):
            names.add(self._half)
        if not pair.takes_ops(is_paused=self._op in pair.paused):
            names.add(self._op)
        return frozenset(names)

    def trouble(self, pairs: Iterable[Pair]) -> str:
        """Return in words which pair has nearly spent its budget of entries; empty for none."""
        full = max(pairs, key=lambda pair: pair.fill_percent, default=None)
        if full is None or full.fill_percent < ALARM_PERCENT:
            return ""
        return (
            f"partition {full.partition} takes {full.fill_percent} % of the memory that it may take"
            f" for {full.ledger.undecided_halves} undecided half messages and what is kept of"
            f" others: from {HALVES_PERCENT} % it reads none that no op waits for, from"
            f" {NEEDED_HALVES_PERCENT} % none at all; have them decided, or raise entries_bytes_max"
        )

    def is_far_ahead(self, pairs: Iterable[Pair]) -> bool:
        """Tell whether enough is read for the batches after the present one."""
        ledgers = [pair.ledger for pair in pairs]
        waiting = sum(ledger.ops_waiting + ledger.letters_waiting for ledger in ledgers)
        if waiting >= READ_AHEAD_BATCHES * self._batch_records:
            return True
        junk_bytes = sum(ledger.memory.junk_op_bytes for ledger in ledgers)
        return junk_bytes >= READ_AHEAD_BATCHES * self._batch_bytes

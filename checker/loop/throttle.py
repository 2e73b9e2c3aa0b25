"""What is not read on at present, so that what pairs hold in memory stays bounded. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.memory import ALARM_PERCENT, HALVES_PERCENT, NEEDED_HALVES_PERCENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.pair import Pair

# How many batches of ops and dead letters are read ahead of the commit under way.
READ_AHEAD_BATCHES = 2


class Throttle:
    """Tells which topics of a pair are not to be fetched."""

    def __init__(self, config: CheckerConfig) -> None:
        self._half, self._op = config.names.half, config.names.op
        self._batch_records = config.batch_records_max
        self._batch_bytes = config.batch_bytes_max

    def not_wanted(self, pair: Pair) -> frozenset[str]:
        """Return the topics of which no more is to be read now.

        Of half records, when the budget of entries says so; and when more than one batch of letters
        waits, whatever waits for a half record, until no letter is left: ops wait for letters. Of
        ops, when too many wait, for a half record or for a real topic that is missing, or when the
        budget of entries is spent.
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
        """Return which pair has nearly spent its budget of entries; empty when none has."""
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
        """Tell whether enough was read for the batches after the one under way."""
        ledgers = [pair.ledger for pair in pairs]
        waiting = sum(ledger.ops_waiting + ledger.letters_waiting for ledger in ledgers)
        if waiting >= READ_AHEAD_BATCHES * self._batch_records:
            return True
        junk_bytes = sum(ledger.memory.junk_op_bytes for ledger in ledgers)
        return junk_bytes >= READ_AHEAD_BATCHES * self._batch_bytes

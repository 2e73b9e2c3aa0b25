"""From plans to metrics and log lines, once a kafka_txn."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from checker.core.plan import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checker.core.plan import Plan
    from checker.metrics import Metrics
    from checker.pair import Pair
    from serde.records import OpKind

_log = logging.getLogger("halfbridge.checker")


class Reporter:
    """Tells what was done.

    Args:
        metrics: Where it is counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def written(self, plan: Plan, pair: Pair, refused: int) -> None:
        """Take that `plan` stands; `refused` of its messages were undeliverable."""
        metrics = self._metrics
        if plan.deliveries:
            self._delivered(plan)
        if plan.dead or plan.junk or refused:
            self._buried(plan, pair, refused)
        if plan.put_backs:
            metrics.put_backs(Counter(one.rule.value for one in plan.put_backs))
        if plan.discards:
            metrics.discards(Counter(op.reason for op in plan.discards))
        if plan.rolled_back:
            metrics.rolled_back(plan.rolled_back)
        if plan.counts:
            self._counted(plan.counts)
        for note in plan.notes:
            _log.warning("partition %d: %s", pair.partition, note)

    def answered(self, answers: Mapping[tuple[str, OpKind], int]) -> None:
        """Take answers to checks that were read, by producer group and kind."""
        self._metrics.checks_answered(
            {(group, kind.value): count for (group, kind), count in answers.items()}
        )

    def state(self, pairs: Iterable[Pair], monotonic_s: float) -> None:
        """Set the gauges."""
        by_topic: Counter[str] = Counter()
        oldest_s = 0.0
        held_bytes = 0
        for pair in pairs:
            ledger = pair.ledger
            by_topic.update(ledger.halves_by_topic)
            held_bytes += ledger.held_bytes
            first_ms = ledger.oldest_undecided_ms()
            if first_ms is not None:
                oldest_s = max(oldest_s, (pair.now_ms(monotonic_s) - first_ms) / 1000)
            if ledger.is_rebuilt:
                progress = ledger.progress()
                lag = self._metrics.lag
                lag(pair.partition, "H", records=progress.position - progress.half)
                lag(pair.partition, "O", records=ledger.ops_waiting)
                lag(pair.partition, "T", records=progress.op - progress.ops_from)
        self._metrics.half_messages({t: n for t, n in by_topic.items() if n > 0})
        self._metrics.oldest_undecided_age_s(oldest_s)
        self._metrics.ledger_bytes(held_bytes)

    def _delivered(self, plan: Plan) -> None:
        delivered: Counter[str] = Counter()
        latencies = []
        for one in plan.deliveries:
            latencies.append((one.op_append_ms - one.first_append_ms) / 1000)
            for half in one.messages:
                delivered[half.metadata.real_topic] += 1
        self._metrics.committed(delivered)
        self._metrics.finish_latencies_s(latencies)

    def _buried(self, plan: Plan, pair: Pair, refused: int) -> None:
        reasons = Counter(one.reason.value for one in plan.dead)
        if refused:
            reasons["UNDELIVERABLE"] += refused
            _log.warning("partition %d: %d messages undeliverable", pair.partition, refused)
        if plan.junk:
            reasons["INVALID"] += len(plan.junk)
            first = plan.junk[0].record
            _log.warning(
                "partition %d: %d unreadable records dead-lettered, first at offset %d: %s",
                *(pair.partition, len(plan.junk), first.offset, first.detail),
            )
        self._metrics.dead_letters(reasons)

    def _counted(self, counts: Mapping[Count, int]) -> None:
        metrics = self._metrics
        for count, add in (
            (Count.DUPLICATE, metrics.duplicates),
            (Count.CONFLICT, metrics.conflicts),
            (Count.INVALID_OP, metrics.invalid_ops),
            (Count.ORPHAN_OP, metrics.orphan_ops),
            (Count.CHECK_EXPIRED, metrics.checks_expired),
        ):
            if counts.get(count):
                add(counts[count])

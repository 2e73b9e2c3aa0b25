"""Collects the plans of the next kafka_txn: from the pairs, in turn, until it is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.core.plan import Plan
from halfbridge.checker.loop.pair import in_turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.blame import Blame
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.topic_watch import TopicWatch

# Interval at which offsets are committed that moved without records to write.
IDLE_COMMIT_S = 0.5
# Interval at which a pair is asked for a plan that was told nothing new. Only time can have changed
# what such a pair has to write: a put back or a discard that fell due. To ask takes some 20
# microseconds, and a turn of a worker with 64 pairs would ask 60 of them in vain.
IDLE_PLAN_S = 0.05


class Work(NamedTuple):
    """The plan to write for one pair."""

    pair: Pair
    plan: Plan


class Collector:
    """Takes plans from pairs in turn; a plan that must wait stays held by its pair."""

    def __init__(
        self, config: CheckerConfig, *, blame: Blame, topics: TopicWatch, reporter: Reporter
    ) -> None:
        self._config = config
        self._blame = blame
        self._topics = topics
        self._reporter = reporter
        self._last = -1  # the pair whose turn was last

    def collect(self, pairs: Mapping[int, Pair], now: float) -> list[Work]:
        """Return the next batch; only its last transaction may exceed the limits.

        Deliveries whose real topic is missing, or whose partition is away, are in none.

        A pair in which something is refused is a batch of its own. Otherwise it would fail the
        other pairs too, and a success of the others would prove nothing about it.

        Raises:
            InputLostError: topics must be looked up, and no broker answered.
        """
        self._topics.look_for_dead(now)
        batch: list[Work] = []
        left, left_bytes = self._config.batch_records_max, self._config.batch_bytes_max
        for pair in in_turn(pairs, self._last):
            if pair.held is None and not self._may_have_work(pair, now):
                continue
            limit = self._blame.limit(pair.partition)
            goes_alone = limit < self._config.batch_records_max
            if left <= 0 or left_bytes <= 0 or (goes_alone and batch):
                break
            plan = self._plan(pair, now, records_max=min(left, limit), size_bytes_max=left_bytes)
            if plan is None or self._topics.must_wait(pair, plan, now):
                continue
            left -= max(plan.records, 1)
            left_bytes -= plan.size_bytes
            batch.append(Work(pair, plan))
            self._last = pair.partition
            if goes_alone:
                break
        return batch

    def _may_have_work(self, pair: Pair, now: float) -> bool:
        has_news = pair.has_news or (pair.ledger.deferred and self._topics.looks != pair.retried_by)
        return has_news or now - pair.idle_at >= IDLE_PLAN_S

    def _plan(
        self, pair: Pair, now: float, *, records_max: int, size_bytes_max: int
    ) -> Plan | None:
        """Return the plan, which the pair holds from now on; None if there is nothing to do."""
        plan = pair.held
        if plan is None:
            plan = pair.ledger.plan(
                pair.now_ms(now),
                records_max=records_max,
                size_bytes_max=size_bytes_max,
                awaits=self._topics.awaits(pair, now),
                retry=self._topics.looks != pair.retried_by,
            )
            pair.retried_by = self._topics.looks
        if not plan.records:
            self._reporter.written(plan, pair, refused=(), stubs=0)
            plan = Plan()
            if not _must_move(pair, now):
                pair.found_idle(now)
                return None
        if plan is not pair.held:
            pair.held, pair.held_since = plan, now
        return plan


def _must_move(pair: Pair, now: float) -> bool:
    """Tell whether offsets must be committed although there is nothing to write."""
    if not pair.ledger.is_rebuilt or now - pair.committed_at < IDLE_COMMIT_S:
        return False
    return pair.ledger.progress() != pair.committed

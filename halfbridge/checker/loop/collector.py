"""Collects the plans of the next kafka_txn from the pairs in turn, and writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from halfbridge.checker.core.plan import Plan
from halfbridge.checker.loop.pair import in_turn, restore_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.blame import Blame
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.pair import BodyReader, Pair
    from halfbridge.checker.loop.producers import TransactionalProducers
    from halfbridge.checker.loop.publish import PlanRecords, TimestampSource
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.metrics import Metrics
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.topics import TopicNames

# Interval at which offsets are committed that moved without records to write. Longer makes a
# restart read more again, shorter costs commits that deliver nothing.
IDLE_COMMIT_S = 0.5
# Interval at which a pair without news is asked for a plan: a put back or a discard may have fallen
# due. Asking takes some 20 microseconds, and a turn of a worker with 64 pairs would ask 60 of them
# in vain.
IDLE_PLAN_S = 0.05


@dataclass(frozen=True, slots=True)
class Batch:
    """The pairs of one kafka_txn, each of which holds its plan until the commit.

    Attributes:
        records: Partition -> the records of its plan; empty before `KafkaTxns.write`.
        progress: Partition -> the progress that is committed with its plan; empty before.
        began: When the kafka_txn began, monotonic seconds.
    """

    pairs: Sequence[Pair] = ()
    records: Mapping[int, PlanRecords] = field(default_factory=dict)
    progress: Mapping[int, Progress] = field(default_factory=dict)
    began: float = 0.0

    @property
    def plans(self) -> dict[int, Plan]:
        """Partition -> the plan that its pair holds."""
        return {pair.partition: pair.held for pair in self.pairs if pair.held is not None}


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

    def collect(self, pairs: Mapping[int, Pair], now: float) -> Batch:
        """Return the next batch; only its last transaction may exceed the limits.

        Deliveries whose real topic is missing, or whose partition is away, are in none. A pair in
        which something is refused is a batch of its own: it would fail the other pairs, and their
        success would prove nothing about it. InputLostError: topics must be looked up, and no
        broker answered; the worker tries again.
        """
        self._topics.find_dead_topic(now)
        batch: list[Pair] = []
        left, left_bytes = self._config.batch_records_max, self._config.batch_bytes_max
        for pair in in_turn(pairs, self._last):
            if pair.held is None and not self._may_have_work(pair, now):
                continue
            limit = self._blame.limit(pair.partition)
            goes_alone = limit < self._config.batch_records_max
            if left <= 0 or left_bytes <= 0 or (goes_alone and batch):
                break
            self._topics.learn_rights(_real_topics(pair, now), now)
            plan = self._plan(pair, now, records_max=min(left, limit), size_bytes_max=left_bytes)
            if plan is None or self._topics.plan_must_wait(pair, plan, now):
                continue
            left -= max(plan.records, 1)
            left_bytes -= plan.size_bytes
            batch.append(pair)
            self._last = pair.partition
            if goes_alone:
                break
        return Batch(batch)

    def _may_have_work(self, pair: Pair, now: float) -> bool:
        is_new = self._topics.refreshes != pair.retried_by
        has_news = pair.has_news or (pair.ledger.deferred and is_new)
        return has_news or now - pair.idle_at >= IDLE_PLAN_S

    def _plan(
        self, pair: Pair, now: float, *, records_max: int, size_bytes_max: int
    ) -> Plan | None:
        """Return the plan, which the pair holds from now on, if there is anything to do."""
        plan = pair.held
        if plan is None:
            gate = self._topics.delivery_gate(pair, now)
            plan = pair.ledger.plan(
                pair.now_ms(now),
                records_max=records_max,
                size_bytes_max=size_bytes_max,
                awaits=gate,
                retry=self._topics.refreshes != pair.retried_by,
            )
            self._topics.apply(gate)
            pair.retried_by = self._topics.refreshes
        if not plan.records:
            self._reporter.written(plan, pair, refused=(), stubs=0)
            plan = Plan()
            if not _must_move(pair, now):
                pair.found_idle(now)
                return None
        if plan is not pair.held:
            pair.held = plan
        return plan


def _real_topics(pair: Pair, now: float) -> AbstractSet[str]:
    """Return the real topics to which the held plan, or a plan that is made now, may deliver."""
    if pair.held is None:
        pair.ledger.finish_rebuild(pair.now_ms(now))
        return pair.ledger.halves_by_topic.keys()
    deliveries = pair.held.deliveries
    return {half.metadata.real_topic for one in deliveries for half in one.messages}


def _must_move(pair: Pair, now: float) -> bool:
    """Tell whether offsets must be committed although there is nothing to write."""
    if not pair.ledger.is_rebuilt or now - pair.committed_at < IDLE_COMMIT_S:
        return False
    return pair.ledger.progress() != pair.committed


# A kafka_txn of at least this many records commits in the background, while the next batch is read.
# A smaller one ends sooner than a thread switch.
BACKGROUND_RECORDS = 500


class KafkaTxns:
    """Writes the kafka_txns of the loop, and records in the pairs which are committed."""

    def __init__(
        self,
        names: TopicNames,
        producers: TransactionalProducers,
        *,
        intake: Input,
        blame: Blame,
        bodies: BodyReader,
        timestamps: TimestampSource,
        reporter: Reporter,
        metrics: Metrics,
    ) -> None:
        self._names = names
        self._producers = producers
        self._intake = intake
        self._blame = blame
        self._bodies = bodies
        self._timestamps = timestamps
        self._reporter = reporter
        self._metrics = metrics

    def write(self, batch: Batch, now: float, stall_s: float) -> Batch:
        """Write the plans of a batch and begin the commit; a large one ends in the background.

        The plans get their bodies back. `stall_s` is the longest time without any acknowledgement.
        Return the batch with its records and its progress, for `committed`.

        Raises:
            KafkaTxnFailedError: The kafka_txn failed, or its outcome is unknown; the worker
                replaces its producers and repeats.
            InputLostError: A body cannot be read again; the worker reads again from the committed
                offsets.
        """
        plans = batch.plans
        for number, plan in plans.items():
            restore_plan(plan, partial(self._bodies.read, number))
        made = {
            each.partition: self._made(each, plans[each.partition], now) for each in batch.pairs
        }
        records = [*chain.from_iterable(each.records for each in made.values())]
        self._blame.watch(records)
        copies_end = self._producers.write(records, self._blame.send_size, stall_s)
        progress = {
            pair.partition: pair.ledger.progress(copies_end.get(pair.partition, 0))
            for pair in batch.pairs
        }
        self._producers.commit(
            [*self._offsets(progress)],
            self._intake.membership,
            in_background=sum(plan.records for plan in plans.values()) >= BACKGROUND_RECORDS,
        )
        return Batch(batch.pairs, made, progress, now)

    def committed(self, batch: Batch, now: float) -> None:
        """Record in pairs, log and metrics that the kafka_txn of a batch is committed."""
        plans = batch.plans
        for pair in batch.pairs:
            number = pair.partition
            pair.held = None
            pair.committed, pair.committed_at = batch.progress[number], now
            pair.ledger.committed(pair.committed)
            made = batch.records[number]
            self._reporter.written(plans[number], pair, refused=made.refused, stubs=made.stubs)
        self._metrics.kafka_txn_s(now - batch.began)

    def _made(self, pair: Pair, plan: Plan, now: float) -> PlanRecords:
        now_ms = pair.now_ms(now)
        return pair.publisher.records(plan, self._timestamps.ms(now_ms, pair.latest_ms), now_ms)

    def _offsets(self, progress: Mapping[int, Progress]) -> Iterator[tuple[str, int, int, str]]:
        for number, each in progress.items():
            yield self._names.half, number, each.half, ""
            yield self._names.op, number, each.op, each.metadata()

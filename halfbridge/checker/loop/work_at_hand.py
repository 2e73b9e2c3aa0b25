"""Writes one kafka_txn of the loop: the plans of some pairs, with their offsets."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from halfbridge.checker.loop.plan_bodies import restore_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfbridge.checker.loop.blame import Blame
    from halfbridge.checker.loop.bodies import BodyReader
    from halfbridge.checker.loop.collector import Work
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.stamps import Stamps
    from halfbridge.checker.loop.turns import Turns
    from halfbridge.checker.metrics import Metrics
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.topics import TopicNames

# A kafka_txn of at least so many records commits in the background, while the next batch is read. A
# smaller one ends sooner than a thread switch.
BACKGROUND_RECORDS = 500


class WorkAtHand:
    """Writes one kafka_txn after the other, and tells the pairs about commits.

    Args:
        names: Names of the installation's topics.
        turns: The transactional producers.
        intake: Has the membership for committed offsets.
        blame: Finds refused records.
        bodies: Reads bodies again that a ledger has dropped.
        stamps: Chooses the records' timestamps.
        reporter, metrics: Count the written records.
    """

    def __init__(
        self,
        names: TopicNames,
        turns: Turns,
        *,
        intake: Input,
        blame: Blame,
        bodies: BodyReader,
        stamps: Stamps,
        reporter: Reporter,
        metrics: Metrics,
    ) -> None:
        self._names = names
        self._turns = turns
        self._intake = intake
        self._blame = blame
        self._bodies = bodies
        self._stamps = stamps
        self._reporter = reporter
        self._metrics = metrics
        self._progress: dict[int, Progress] = {}
        self._began = 0.0

    def write(self, work: Sequence[Work], now: float) -> bool:
        """Write the plans of `work` and begin the commit; tell whether the commit is under way.

        Args:
            work: Pairs and their plans; the plans get their bodies back.
            now: Monotonic seconds.

        Returns:
            True: the commit runs in the background; see `Turns.is_done`. False: the commit is
            acknowledged.

        Raises:
            KafkaTxnFailedError: The kafka_txn failed, or its outcome is unknown.
            InputLostError: A body cannot be read again.
        """
        self._began = now
        for pair, plan in work:
            restore_plan(plan, partial(self._bodies.read, pair.partition))
        records = chain.from_iterable(
            pair.publisher.records(plan, self._stamps.ms(now_ms, pair.latest_ms), now_ms)
            for pair, plan in work
            for now_ms in (pair.now_ms(now),)
        )
        in_background = sum(plan.records for _, plan in work) >= BACKGROUND_RECORDS
        self._turns.batch = self._blame.batch
        copies_end = self._turns.write(self._blame.watched(records))
        self._progress = {
            pair.partition: pair.ledger.progress(copies_end.get(pair.partition, 0))
            for pair, _ in work
        }
        offsets = [*self._offsets()]
        self._turns.commit(offsets, self._intake.membership, in_background=in_background)
        return in_background

    def stands(self, work: Sequence[Work], now: float) -> None:
        """Record in pairs, log and metrics that the kafka_txn of `work` is committed."""
        for pair, plan in work:
            pair.held = None
            pair.committed, pair.committed_at = self._progress[pair.partition], now
            pair.ledger.committed(pair.committed)
            publisher = pair.publisher
            self._reporter.written(plan, pair, refused=publisher.refused, stubs=publisher.stubs)
        self._metrics.kafka_txn_s(now - self._began)

    def _offsets(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the offsets that belong to the kafka_txn."""
        for number, progress in self._progress.items():
            yield self._names.half, number, progress.half, ""
            yield self._names.op, number, progress.op, progress.metadata()

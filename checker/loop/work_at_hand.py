"""One kafka_txn of the loop: the plans of some pairs, and the offsets that go with the plans."""

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

# A kafka_txn of so many records commits in the background, while the next batch is read; a small
# one is over sooner than a thread takes over.
BACKGROUND_RECORDS = 500


class WorkAtHand:
    """Writes one kafka_txn after the other, and tells the pairs that one stands.

    Args:
        names: Names of the installation's topics.
        turns: Writes.
        intake: Has the membership under which offsets are committed.
        blame: Watches which records are refused.
        bodies: Reads bodies again that a ledger has let go.
        stamps: Chooses the records' timestamps.
        reporter, metrics: Count what was written.
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
            True: the commit goes on in the background; `Turns.is_done` tells of its end. False: the
            commit is acknowledged.

        Raises:
            KafkaTxnFailedError: It did not happen, or may have happened.
            InputLostError: A body cannot be read again.
        """
        self._began = now
        for pair, plan in work:
            restore_plan(plan, partial(self._bodies.read, pair.partition))
        records = chain.from_iterable(
            pair.publisher.records(plan, self._stamps.ms(pair.now_ms(now), pair.latest_ms))
            for pair, plan in work
        )
        in_background = sum(plan.records for _, plan in work) >= BACKGROUND_RECORDS
        copies_end = self._turns.write(self._blame.watched(records))
        self._progress = {
            pair.partition: pair.ledger.progress(copies_end.get(pair.partition, 0))
            for pair, _ in work
        }
        offsets = [*self._offsets()]
        self._turns.commit(offsets, self._intake.membership, in_background=in_background)
        return in_background

    def stands(self, work: Sequence[Work], now: float) -> None:
        """Tell pairs, log and metrics that the kafka_txn of `work` is committed."""
        for pair, plan in work:
            pair.held = None
            pair.committed, pair.committed_at = self._progress[pair.partition], now
            pair.ledger.committed(pair.committed)
            publisher = pair.publisher
            self._reporter.written(plan, pair, refused=publisher.refused, stubs=publisher.stubs)
        self._metrics.kafka_txn_s(now - self._began)

    def _offsets(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the offsets that go with the kafka_txn."""
        for number, progress in self._progress.items():
            yield self._names.half, number, progress.half, ""
            yield self._names.op, number, progress.op, progress.metadata()

"""Writes the kafka_txns of the loop: the plans of some pairs, with their offsets."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.plan_bodies import restore_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.checker.core.plan import DeadHalf
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
# How long a written kafka_txn waits for the commit of the one before. Far below the time after
# which a broker ends it by itself (`kafka_txn_timeout_ms`).
DOUBT_S = 5.0


class Written(NamedTuple):
    """A kafka_txn whose records are written.

    Attributes:
        work: Pairs and their plans.
        progress: Partition -> the progress to commit.
        refused: Partition -> messages that became dead letters, and how many dead letters are
            stubs (`Publisher`).
        membership: Of the assignment that the plans belong to.
        began: Monotonic seconds.
    """

    work: Sequence[Work]
    progress: Mapping[int, Progress]
    refused: Mapping[int, tuple[Sequence[DeadHalf], int]]
    membership: object
    began: float


class WorkAtHand:
    """Writes kafka_txns, begins their commits, and tells the pairs about commits.

    At most two are open: `committing`, and `written`, which waits for the commit of the first. The
    plans of the second were made on the assumption that the first will be committed. So if the
    first fails, both are forgotten with the ledgers.

    Args:
        names: Names of the installation's topics.
        turns: The transactional producers.
        intake: Has the membership for committed offsets.
        blame: Finds refused records.
        bodies: Reads bodies again that a ledger has dropped.
        stamps: Chooses the records' timestamps.
        reporter, metrics: Count the written records.

    Attributes:
        at_fault: The work whose kafka_txn has failed, if one has.
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
        self._committing: Written | None = None
        self.written: Written | None = None
        self.at_fault: Sequence[Work] = ()

    @property
    def may_write(self) -> bool:
        """Whether the next kafka_txn may be written now."""
        if self.written is not None:
            return False
        return not self._turns.is_under_way or (self._blame.is_calm and self._turns.may_write)

    def write(self, work: Sequence[Work], now: float) -> None:
        """Begin a kafka_txn and write the plans of `work`; `commit` must follow.

        Args:
            work: Pairs and their plans; the plans get their bodies back.
            now: Monotonic seconds.

        Raises:
            KafkaTxnFailedError: The kafka_txn failed.
            InputLostError: A body cannot be read again.
        """
        for pair, plan in work:
            restore_plan(plan, partial(self._bodies.read, pair.partition))
        records = chain.from_iterable(
            pair.publisher.records(plan, self._stamps.ms(now_ms, pair.latest_ms), now_ms)
            for pair, plan in work
            for now_ms in (pair.now_ms(now),)
        )
        before, self.at_fault = self.at_fault, work
        copies_end = self._turns.write(self._blame.watched(records))
        self.at_fault = before
        progress, refused = {}, {}
        for pair, plan in work:
            number, publisher = pair.partition, pair.publisher
            pair.held = None
            pair.written.append(plan)
            pair.promised = progress[number] = pair.ledger.progress(copies_end.get(number, 0))
            refused[number] = publisher.refused, publisher.stubs
        self.written = Written(work, progress, refused, self._intake.membership, now)

    def commit(self, written: Written) -> bool:
        """Begin the commit of what is written; tell whether it is under way.

        Returns:
            True: the commit runs in the background; see `Turns.is_done`. False: the commit is
            acknowledged, and `stands` must follow.

        Raises:
            KafkaTxnFailedError: The kafka_txn failed, or its outcome is unknown.
        """
        self.written = None
        self._committing, self.at_fault = written, written.work
        in_background = sum(plan.records for _, plan in written.work) >= BACKGROUND_RECORDS
        offsets = [*self._offsets(written.progress)]
        self._turns.commit(offsets, written.membership, in_background=in_background)
        return in_background

    def stands(self, now: float) -> Sequence[Work]:
        """Record in pairs, log and metrics that the commit is acknowledged; return its work."""
        written, self._committing, self.at_fault = self._committing, None, ()
        if written is None:
            return ()
        for pair, plan in written.work:
            number = pair.partition
            pair.written.remove(plan)
            pair.committed, pair.committed_at = written.progress[number], now
            pair.ledger.committed(pair.committed)
            refused, stubs = written.refused[number]
            self._reporter.written(plan, pair, refused=refused, stubs=stubs)
        self._metrics.kafka_txn_s(now - written.began)
        return written.work

    def check_doubt(self, now: float) -> None:
        """Bound how long a written kafka_txn waits for the commit of the one before.

        Raises:
            KafkaTxnFailedError: It has waited for DOUBT_S. Both are forgotten; the one before is
                settled first.
        """
        if self.written is not None and now - self.written.began > DOUBT_S:
            self.at_fault = ()
            raise KafkaTxnFailedError("the commit of the kafka_txn before takes too long")

    def abandon(self) -> None:
        """Abort what is written and whose commit has not begun: its plans will be made anew."""
        if self.written is not None:
            self.written = None
            self._turns.abandon()

    def forget(self) -> None:
        """Forget the kafka_txn whose commit failed, or was settled by a recovery."""
        self._committing, self.at_fault = None, ()

    def _offsets(self, progress: Mapping[int, Progress]) -> Iterator[tuple[str, int, int, str]]:
        """Yield the offsets that belong to the kafka_txn."""
        for number, each in progress.items():
            yield self._names.half, number, each.half, ""
            yield self._names.op, number, each.op, each.metadata()

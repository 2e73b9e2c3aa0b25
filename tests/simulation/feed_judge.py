"""What the judge says of a Spark query: its batches, row by row, against the manifest topic.

The rule is written again here, otherwise than in the product's: a batch is what the first COMMIT of
it lists that came in time and lists no attempt that stood in the log before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CONTEXT, HALF, parse_half, real_identity
from halfbridge.serde.manifest import BATCH_MANIFEST, ManifestKind
from halfbridge.serde.records import OpKind
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from tests.property.model import line
from tests.simulation.feed_files import FEED_TOPICS
from tests.simulation.reading import visible
from tests.simulation.settings import NAMES, PARTITIONS, BrokenPromiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.testkit.memory.log import Record
    from tests.ledger_log import Log
    from tests.simulation.feed import Feed
    from tests.simulation.world import World

FEED_PLACES = [(topic, number) for topic, count in FEED_TOPICS.items() for number in range(count)]


class FeedJudge:
    """Judges the query of a run."""

    def __init__(self, world: World, feed: Feed) -> None:
        self._world = world
        self._feed = feed
        self._group = feed.options.producer_group

    def note_committed(self, batch: int) -> None:
        """Hear that a commit has returned without an error.

        Raises:
            BrokenPromiseError: no manifest publishes the batch.
        """
        if batch not in self._winners():
            raise BrokenPromiseError(f"batch {batch} was committed without a manifest")

    def add_deliveries(self, found: list[dict[TopicPartition, list[str]]]) -> None:
        """Add what was delivered of the query to each half partition's, in words.

        Raises:
            BrokenPromiseError: a record is not as its half message.
        """
        halves = {
            (half.metadata.transaction_id, half.metadata.message_index): (number, half)
            for number in range(PARTITIONS)
            for half in self._halves(number)
        }
        for place, record in self._records():
            number, half = halves.get(real_identity(record.headers()), (0, None))
            if half is None or not _is_as_sent(place, record, half):
                raise BrokenPromiseError(f"{place}@{record.offset()}: not as a task has sent it")
            found[number].setdefault(place, []).append(line("delivered", half))

    def rule(self, logs: Sequence[Log], *, is_final: bool) -> None:
        """Compare all records of the logs.

        Raises:
            BrokenPromiseError: a promise was broken.
        """
        winners = self._winners()
        listed = {
            transaction.transaction_id: batch
            for batch, winner in winners.items()
            for attempt in winner.attempts
            for transaction in attempt.transactions
        }
        self._judge_decisions(logs, listed)
        published = self._judge_batches(winners, listed)
        delivered = self._judge_rows(listed)
        if not is_final:
            return
        lost = published - delivered
        if lost:
            raise BrokenPromiseError(f"rows of published batches are lost: {sorted(lost)}")
        planned = self._feed.files.newest
        if not self._feed.is_stuck and len(winners) <= planned:
            raise BrokenPromiseError(f"of {planned + 1} batches {sorted(winners)} are published")

    def _judge_decisions(self, logs: Sequence[Log], listed: dict[str, int]) -> None:
        """Each decision is that of the manifests, from driver and responder alike."""
        for log in logs:
            for read in log.op:
                if not isinstance(read, OpRead) or read.op.producer_group != self._group:
                    continue
                name, kind = read.op.transaction_id, read.op.kind
                if kind is not OpKind.UNKNOWN and (kind is OpKind.COMMIT) != (name in listed):
                    raise BrokenPromiseError(f"{name}: {kind.value}, against the manifests")

    def _judge_batches(self, winners: dict[int, BatchManifest], listed: dict[str, int]) -> set[int]:
        """Return the rows of all published batches; each begins where the one before has ended."""
        rows: dict[int, list[int]] = {batch: [] for batch in winners}
        for number in range(PARTITIONS):
            for half in self._halves(number):
                batch = listed.get(half.metadata.transaction_id)
                if batch is not None:
                    rows[batch].append(_number(half.body))
        begin = 0
        for batch in range(len(winners)):
            numbers = sorted(rows.get(batch, [-1]))
            end = begin + len(numbers)
            if numbers != [*range(begin, end)]:
                raise BrokenPromiseError(f"batch {batch} has rows {numbers}, and begins at {begin}")
            if not self._feed.is_lax and end != self._feed.files.end_of(batch):
                raise BrokenPromiseError(f"batch {batch} has rows {numbers}, not those of its plan")
            if winners[batch].row_count != len(numbers):
                raise BrokenPromiseError(f"batch {batch} says {winners[batch].row_count} rows")
            begin = end
        return {*range(begin)}

    def _judge_rows(self, listed: dict[str, int]) -> set[int]:
        """Return the rows that were delivered: of published batches, once, and by key in order."""
        delivered: set[int] = set()
        newest: dict[tuple[str, bytes], int] = {}
        for place, record in self._records():
            number, key = _number(record), record.key()
            name = real_identity(record.headers())[0]
            if name not in listed:
                raise BrokenPromiseError(f"{place}@{record.offset()}: row {number} is a phantom")
            if number in delivered and self._world.delivery is Delivery.AT_LEAST_ONCE:
                continue  # a consumer that deduplicates skips it
            if number in delivered:
                raise BrokenPromiseError(f"{place}@{record.offset()}: row {number} twice")
            delivered.add(number)
            if key is not None:
                if newest.get((place[0], key), -1) > number:
                    raise BrokenPromiseError(f"{place}: row {number} after a newer one of its key")
                newest[place[0], key] = number
        return delivered

    def _records(self) -> list[tuple[TopicPartition, Record]]:
        return [
            (place, record)
            for place in FEED_PLACES
            for record in visible(self._world.partition(place))
        ]

    def _halves(self, number: int) -> list[HalfRead]:
        """Return the half messages of tasks in a partition, also those that no reader sees yet."""
        found = []
        for record in self._world.partition((NAMES.half, number)).slots:
            if record is None or record.txn is not None:
                continue  # a copy, or a barrier record
            with suppress(DecodeError):
                metadata, flaw = parse_half(record.headers())
                if metadata.producer_group == self._group:
                    at = record.offset(), record.timestamp()[1]
                    found.append(HalfRead(*at, metadata, flaw, 0, record))
        return found

    def _winners(self) -> dict[int, BatchManifest]:
        """Return the manifest that publishes each batch, by the log alone."""
        found: dict[int, BatchManifest] = {}
        seen: dict[int, set[str]] = {}
        if NAMES.manifest not in self._world.broker.topics:
            return found
        for number in range(MANIFEST_PARTITIONS):
            for record in visible(self._world.partition((NAMES.manifest, number))):
                manifest = BATCH_MANIFEST.decode(record.value() or b"")
                batch, first_ms = manifest.batch_id, manifest.first_append_timestamp
                ids = {each.attempt_id for each in manifest.attempts}
                before = seen.setdefault(batch, set())
                is_late = first_ms >= 0 and record.timestamp()[1] - first_ms > manifest.age_ms_max
                is_commit = manifest.kind is ManifestKind.COMMIT
                if is_commit and not is_late and not ids & before:
                    found.setdefault(batch, manifest)
                before |= ids
        return found


def _is_as_sent(place: TopicPartition, record: Record, half: HalfRead) -> bool:
    sent = half.body
    users = [each for each in sent.headers() or [] if each[0] not in {HALF, CONTEXT}]
    return (
        place[0] == half.metadata.real_topic
        and (record.key(), record.value()) == (sent.key(), sent.value())
        and (record.headers() or [])[: len(users)] == users
    )


def _number(record: Record) -> int:
    return int((record.value() or b"").partition(b":")[0])

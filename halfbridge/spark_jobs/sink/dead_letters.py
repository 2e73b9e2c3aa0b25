"""Reads the dead-letter topic, and counts messages of published batches that became dead letters.

A poll begins where the last one stopped, and has limits of time and bytes. A dead letter counts if
a winning manifest lists its transaction: its row was published, and is not in its topic. Any writer
of half messages can claim another app's name, so a name alone does not count.

The daemon gives up a transaction as a whole, and the manifest has the number of its messages. So
the dead letter of message 0 is counted for all of them: there is exactly one, wherever a poll
begins or ends. Only this dead letter names the batch, unless it is a stub, which has no
RMQ_CONTEXT.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge
from halfbridge.serde.avro import DEAD_LETTER, SINK_CONTEXT
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import CONTEXT, DEAD, headers_of, parse_half
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.sink.clients import KAFKA_TIMEOUT_S, LOG, new_admin, new_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.kafka.ports import Ports, Record, StoredRecord
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.spark_jobs.sink.options import SinkOptions

# Limits of one poll, so that dead letters of other apps delay a batch by no more. The next batch
# continues where this one stopped. Dead letters are as large as messages: 64 MiB are 64 of the
# largest, and a broker on the same network delivers them in two seconds. The two seconds begin when
# brokers answer; a TLS handshake and a login to each broker may need a few seconds before.
POLL_S_MAX = 2.0
CONNECT_S_MAX = 10.0  # a few seconds a handshake, on a busy driver
POLL_RECORDS_MAX = 10_000  # at a kilobyte each, a second's reading
POLL_BYTES_MAX = 64 * 1024 * 1024
# Most records of one call of the client; a poll may exceed its limits by as many.
_READ_MAX = 100
_QUEUE_KBYTES_MAX = 16 * 1024  # what one consumer fetches ahead: a quarter of a poll
_POLL_S = 0.1  # how late the end of a poll is noticed
_NO_RIGHT = (Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED)


class Poll(NamedTuple):
    """The result of one poll of the dead-letter topic."""

    letters: Sequence[Letter]  # dead letters that may belong to the app
    offsets: tuple[int, ...]  # the position in each partition, in order
    unread: int  # number of offsets that are left for the next poll
    topic_id: str = ""  # Kafka's id of the topic that was read; empty: not known
    # The topic was created again since the last poll, and was read from offset 0.
    is_recreated: bool = False


class DeadLetters:
    """The dead-letter topic. If it cannot be read, that is logged once and nothing is counted."""

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        self._options = options
        self._ports = ports
        self._now = ports.clock.monotonic
        self._topic = options.names.dead
        self._admin = new_admin(options, ports)
        self._is_refused = False

    def ends(self) -> tuple[int, ...]:
        """Return the partitions' last stable offsets; empty if they cannot be read."""
        if self._is_refused:
            return ()
        try:
            seen = self._admin.topics(KAFKA_TIMEOUT_S).get(self._topic)
        except KafkaFailure as failure:  # a failure to count must not fail the batch
            LOG.info("%s was not read: no broker answers: %s", self._topic, failure)
            return ()
        if seen is None:
            self._note_refusal("there is no such topic, or no right to see it (DESCRIBE)")
            return ()
        ends = self._asked(seen.partitions, Edge.STABLE_END)
        return tuple(ends.values()) if len(ends) == seen.partitions else ()

    def topic_id(self) -> str:
        """Return Kafka's id of the topic; empty if it is not known. Ask before `ends`."""
        if self._is_refused:
            return ""
        answers = self._admin.ask_topic_ids([self._topic], KAFKA_TIMEOUT_S)
        try:
            found: str = answers[self._topic].result()
        except KafkaFailure as failure:
            LOG.info("the id of %s is not known: %s", self._topic, failure)
            return ""
        return found

    def read(self, tally: Tally) -> Poll | None:
        """Return the dead letters after the offsets of `tally`; None if they cannot be read."""
        topic_id = self.topic_id()
        ends = self.ends()
        if not ends:
            return None
        is_recreated = bool(topic_id and tally.topic_id) and topic_id != tally.topic_id
        since = () if is_recreated else tally.offsets
        poll = self._poll(since, ends)
        return poll and poll._replace(
            topic_id=topic_id or tally.topic_id, is_recreated=is_recreated
        )

    def _poll(self, since: tuple[int, ...], ends: tuple[int, ...]) -> Poll | None:
        at = dict(enumerate((*since, *(0 for _ in range(len(ends) - len(since))))))
        behind = {each: end for each, end in enumerate(ends) if end > at[each]}
        if not behind:
            # A deposed leader may report an older end. If the offsets went back, the next poll
            # would count the dead letters in between twice.
            return Poll((), tuple(at[each] for each in range(len(ends))), 0)
        for partition, start in self._asked(len(ends), Edge.START).items():
            at[partition] = max(at[partition], start)  # deleted dead letters are not counted
        try:
            letters = self._read(at, behind)
        except KafkaFailure as failure:
            self._refused(failure)
            return None
        unread = sum(max(0, end - at[each]) for each, end in behind.items())
        return Poll(letters, tuple(at[each] for each in range(len(ends))), unread)

    def await_visible(self, deadline: float) -> bool:
        """Wait until read_committed readers see all records stored now; tell whether they do.

        Waits until `deadline` of the monotonic clock at most, and not for a topic that cannot be
        read.
        """
        stored = self._asked(len(self.ends()), Edge.END)
        while ends := self.ends():
            if all(ends[each] >= end for each, end in stored.items()):
                return True
            if self._now() >= deadline:
                return False
            self._admin.poll(_POLL_S)
        return True

    def _read(self, at: dict[int, int], behind: Mapping[int, int]) -> list[Letter]:
        """Read up to the ends in `behind`, moving `at`; stop at a limit."""
        letters: list[Letter] = []
        open_ = {each for each, end in behind.items() if at[each] < end}
        changes = {
            "isolation.level": "read_committed",  # without those of aborted kafka_txns
            "queued.max.messages.kbytes": _QUEUE_KBYTES_MAX,
        }
        reader = new_reader(self._options, self._ports, changes=changes)
        try:
            reader.read_from({(self._topic, each): at[each] for each in open_})
            deadline = self._now() + CONNECT_S_MAX
            is_answered = False
            records = size = 0
            while open_ and self._now() < deadline:
                if records >= POLL_RECORDS_MAX or size >= POLL_BYTES_MAX:
                    break
                first = reader.poll(_POLL_S)
                if first is not None and not is_answered:
                    is_answered = True
                    deadline = self._now() + POLL_S_MAX
                found = [] if first is None else [first, *reader.take(_READ_MAX)]
                for each in found:
                    if each.error() is not None:
                        failure = failure_of(each.error())
                        if failure.code != Code.PARTITION_EOF:
                            raise failure
                    record = cast("StoredRecord", each)  # or the end of a partition
                    partition = record.partition()
                    if record.error() is not None:
                        at[partition] = max(at[partition], record.offset())
                    else:
                        records += 1
                        size += len(record)
                        at[partition] = record.offset() + 1
                        if (letter := self._letter(record)) is not None:
                            letters.append(letter)
                    if at[partition] >= behind[partition]:
                        open_.discard(partition)
        finally:
            self._ports.run.close_clients(reader)
        return letters

    def _letter(self, record: Record) -> Letter | None:
        try:
            headers = headers_of(record)
        except SerdeError:  # any client with the right to write can write such a record
            return None
        return letter_of(
            headers, app_id=self._options.app_id, producer_group=self._options.producer_group
        )

    def _asked(self, partitions: int, edge: Edge) -> dict[int, int]:
        """Return an edge of each partition whose broker answers, in the order of partitions."""
        places = [(self._topic, each) for each in range(partitions)]
        answers = self._admin.ask_ends(places, edge, KAFKA_TIMEOUT_S) if places else {}
        found: dict[int, int] = {}
        for topic, partition in places:
            try:
                found[partition] = answers[topic, partition].result()
            except KafkaFailure as failure:  # noqa: PERF203 (a few partitions)
                self._refused(failure)
        return found

    def _refused(self, failure: KafkaFailure) -> None:
        if failure.code in _NO_RIGHT:
            self._note_refusal("no right to read it (READ)")
        else:
            LOG.info("%s was not read: %s", self._topic, failure)

    def _note_refusal(self, why: str) -> None:
        self._is_refused = True
        LOG.warning(
            "dead letters of Spark query %s are not counted: topic %s: %s",
            self._options.app_id,
            self._topic,
            why,
        )


def await_delivery(
    options: SinkOptions,
    ports: Ports,
    dead: DeadLetters,
    decisions: Mapping[int, int],
    *,
    timeout_ms: int,
) -> bool:
    """Wait until the daemon has applied some decisions; tell whether it has.

    `decisions` is half partition -> offset of its last decision. The daemon commits its offset in
    the op topic in the same kafka_txn as the deliveries and dead letters of the ops below that
    offset. The end of a kafka_txn reaches each partition separately. So the offset may be visible
    before the dead letters are, and this function waits for both.
    """
    now = ports.clock.monotonic
    deadline = now() + timeout_ms / MS_PER_S
    last = {(options.names.op, partition): offset for partition, offset in decisions.items()}
    reader = new_reader(options, ports, changes={"group.id": options.names.daemon_group})
    try:
        while last:
            left_s = min(max(deadline - now(), _POLL_S), KAFKA_TIMEOUT_S)
            try:
                places = reader.committed(last, left_s)
            except KafkaFailure as failure:
                if failure.code in _NO_RIGHT:
                    LOG.warning(
                        "no right to see how far %s has come (DESCRIBE): not waited for",
                        options.names.daemon_group,
                    )
                    return False
                # No answer: ask again.
            else:
                last = {place: end for place, end in last.items() if places[place].offset <= end}
            if not last or now() >= deadline:
                break
            reader.poll(_POLL_S)
    finally:
        ports.run.close_clients(reader)
    return not last and dead.await_visible(deadline)


# Most batches whose manifests are searched for in one poll, because each costs a search. A policy
# refuses batch by batch. Claims of more batches mean an outage of hours, for which ten batches are
# evidence enough, or forged dead letters.
CLAIMED_BATCHES_MAX = 10
# The oldest claim that is verified. A search reads all records after the claimed batch, so a claim
# of batch 0 would make a commit read the whole partition. At a batch every ten seconds 1,000
# batches are nearly three hours, longer than a running daemon takes to deliver.
CLAIMED_AGE_BATCHES_MAX = 1_000
NO_BATCH = -1  # batches are numbered from 0


class Letter(NamedTuple):
    """The dead letter of message 0 of a transaction of the producer group."""

    transaction_id: str  # the half message's transaction
    batch_id: int  # the claimed batch; NO_BATCH: none, because it is a stub or of another sender
    why: str  # reason and detail


class Tally(NamedTuple):
    """The count of an app's refused messages."""

    refused_count: int = 0  # the app's messages that were found among the dead letters so far
    # The position in each partition of the dead-letter topic, in order; empty: the topic cannot be
    # read.
    offsets: tuple[int, ...] = ()
    topic_id: str = ""  # Kafka's id of the topic that the offsets are of; empty: not known


NO_TALLY = Tally()


class Refused(NamedTuple):
    """The refused messages that one poll has found."""

    by_batch: Mapping[int, int]  # batch -> number of messages
    why: str  # reason and detail of one of them
    # Number of transactions that may be of published batches, but were not verified.
    unverified: int

    @property
    def messages(self) -> int:
        """Messages of all batches."""
        return sum(self.by_batch.values())


def letter_of(headers: Headers | None, *, app_id: str, producer_group: str) -> Letter | None:
    """Return the dead letter of a message 0 that may be of the app; None for all others."""
    try:
        metadata, _ = parse_half(headers)
        if metadata.message_index or metadata.producer_group != producer_group:
            return None
        given = dict(headers or ())
        letter = DEAD_LETTER.decode(given.get(DEAD) or b"")
        context = SINK_CONTEXT.decode(given[CONTEXT] or b"") if CONTEXT in given else None
    except SerdeError:
        return None
    if context is not None and context.app_id != app_id:
        return None  # another app of the group
    why = f"{letter.reason.value}: {letter.detail}" if letter.detail else letter.reason.value
    batch_id = NO_BATCH if context is None else context.batch_id
    return Letter(metadata.transaction_id, batch_id, why)


def newest_tally(manifests: Sequence[BatchManifest]) -> Tally:
    """Return the newest tally; each one continues the one before.

    The count is compared first: offsets begin at 0 where the topic was created again.
    """
    return max(
        map(tally_of, manifests),
        key=lambda tally: (tally.refused_count, sum(tally.offsets)),
        default=NO_TALLY,
    )


def tally_of(manifest: BatchManifest) -> Tally:
    """Return the tally in a manifest."""
    return Tally(
        manifest.refused_count, manifest.dead_letter_offsets, manifest.dead_letter_topic_id
    )


def refused_by(
    letters: Sequence[Letter],
    winner_of: Callable[[int], BatchManifest | None],
    *,
    newest_batch: int,
) -> Refused:
    """Return how many messages of published batches are among dead letters of the group.

    A claim of a batch after `newest_batch`, the latest published one, is neither counted nor
    unverified: that batch is not published, for example because its driver died and it is being run
    again. Dead letters without a batch may belong to the newest. `winner_of` is called for at most
    CLAIMED_BATCHES_MAX batches, none older than CLAIMED_AGE_BATCHES_MAX.
    """
    why = {each.transaction_id: each.why for each in letters}
    claims = {each.transaction_id: each.batch_id for each in letters}
    nameless = {name for name, batch in claims.items() if batch == NO_BATCH}
    wanted = dict.fromkeys([newest_batch] if nameless else [])
    wanted.update(dict.fromkeys(claims.values()))
    oldest = max(0, newest_batch - CLAIMED_AGE_BATCHES_MAX + 1)
    within = (batch for batch in wanted if oldest <= batch <= newest_batch)
    verified = list(islice(within, CLAIMED_BATCHES_MAX))
    by_batch: Counter[int] = Counter()
    text = ""
    for batch in verified:
        winner = winner_of(batch)
        for attempt in () if winner is None else winner.attempts:
            for each in attempt.transactions:
                if each.transaction_id in claims:
                    del claims[each.transaction_id]
                    by_batch[batch] += each.message_count
                    text = text or why[each.transaction_id]
    unverified = sum(
        name in nameless or (batch not in verified and batch <= newest_batch)
        for name, batch in claims.items()
    )
    return Refused(dict(sorted(by_batch.items())), text, unverified)

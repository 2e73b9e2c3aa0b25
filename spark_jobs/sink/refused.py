"""Reads the dead-letter topic from where the last batch stopped, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.ports import Edge
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import headers_of
from halfbridge.spark_jobs.sink.clients import LOG, new_admin, new_reader
from halfbridge.spark_jobs.sink.tally import letter_of
from halfbridge.spark_jobs.sink.topics import KAFKA_TIMEOUT_S, MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.bridge.ports import Ports
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.tally import Letter

# Of one look, so that a neighbour's dead letters delay a batch by no more; the next batch goes on
# where this one stopped. Dead letters are as large as messages: 64 MiB are 64 of the largest, and
# what a broker on the same network gives in two seconds. The two seconds begin when the brokers
# answer: a TLS handshake and a login to each broker take up to a few seconds before.
LOOK_S_MAX = 2.0
CONNECT_S_MAX = 10.0
LOOK_RECORDS_MAX = 10_000
LOOK_BYTES_MAX = 64 * 1024 * 1024
# Taken from the client at a time, so that a look goes beyond its bounds by so many records at most.
_READ_MAX = 100
_QUEUE_KBYTES_MAX = 16 * 1024
_POLL_S = 0.1
_NO_RIGHT = (Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED)


class Look(NamedTuple):
    """What a look found.

    Attributes:
        letters: Dead letters that may be of the app.
        offsets: Up to where it read, the partitions in order.
        unread: Offsets that it left for the next one.
    """

    letters: Sequence[Letter]
    offsets: tuple[int, ...]
    unread: int


class DeadLetters:
    """The dead-letter topic. What may not be read is said once, and nothing is counted."""

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        self._options = options
        self._ports = ports
        self._now = ports.clock.monotonic
        self._topic = options.names.dead
        self._admin = new_admin(options, ports)
        self._is_refused = False

    def ends(self) -> tuple[int, ...]:
        """Return where the partitions end for read_committed; empty where that is not told."""
        if self._is_refused:
            return ()
        try:
            seen = self._admin.topics(KAFKA_TIMEOUT_S).get(self._topic)
        except KafkaFailure as failure:  # counting fails no batch
            LOG.info("%s was not read: no broker answers: %s", self._topic, failure)
            return ()
        if seen is None:
            self._say_once("there is no such topic, or no right to see it (DESCRIBE)")
            return ()
        ends = self._asked(seen.partitions, Edge.STABLE_END)
        return tuple(ends.values()) if len(ends) == seen.partitions else ()

    def read(self, since: tuple[int, ...]) -> Look | None:
        """Return what stands behind some offsets; None where it cannot be read."""
        ends = self.ends()
        if not ends:
            return None
        at = dict(enumerate((*since, *(0 for _ in range(len(ends) - len(since))))))
        behind = {each: end for each, end in enumerate(ends) if end > at[each]}
        if not behind:
            # A leader that was deposed may tell an older end. Offsets that went back would make the
            # next look count the dead letters between once more.
            return Look((), tuple(at[each] for each in range(len(ends))), 0)
        for partition, start in self._asked(len(ends), Edge.START).items():
            at[partition] = max(at[partition], start)  # what was deleted meanwhile is not counted
        try:
            letters = self._read(at, behind)
        except KafkaFailure as failure:
            self._refused(failure)
            return None
        unread = sum(max(0, end - at[each]) for each, end in behind.items())
        return Look(letters, tuple(at[each] for each in range(len(ends))), unread)

    def await_visible(self, deadline: float) -> bool:
        """Wait until read_committed sees what is stored now; tell whether it does.

        A topic that cannot be read is not waited for.

        Args:
            deadline: Latest moment, by the monotonic clock.
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
        """Read up to the ends that lie ahead, moving `at`; stop where a bound is reached."""
        letters: list[Letter] = []
        open_ = {each for each, end in behind.items() if at[each] < end}
        changes = {
            "isolation.level": "read_committed",  # an aborted kafka_txn has buried nothing
            "queued.max.messages.kbytes": _QUEUE_KBYTES_MAX,
        }
        reader = new_reader(self._options, self._ports, changes=changes)
        try:
            reader.read_from({(self._topic, each): at[each] for each in open_})
            deadline = self._now() + CONNECT_S_MAX
            is_answered = False
            records = size = 0
            while open_ and self._now() < deadline:
                if records >= LOOK_RECORDS_MAX or size >= LOOK_BYTES_MAX:
                    break
                first = reader.poll(_POLL_S)
                if first is not None and not is_answered:
                    is_answered = True
                    deadline = self._now() + LOOK_S_MAX
                found: list[Any] = [] if first is None else [first, *reader.take(_READ_MAX)]
                for record in found:
                    partition = record.partition()
                    if record.error() is not None:
                        failure = failure_of(record.error())
                        if failure.code != Code.PARTITION_EOF:
                            raise failure
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
            self._ports.run.let_go(reader)
        return letters

    def _letter(self, record: Any) -> Letter | None:
        try:
            headers = headers_of(record)
        except SerdeError:  # anybody who may write the topic can write such a record
            return None
        return letter_of(
            headers,
            app_id=self._options.app_id,
            producer_group=self._options.producer_group,
        )

    def _asked(self, partitions: int, edge: Edge) -> dict[int, int]:
        """Return an edge of each partition whose broker tells it, the partitions in order."""
        places = [(self._topic, each) for each in range(partitions)]
        answers = self._admin.ask_ends(places, edge, KAFKA_TIMEOUT_S) if places else {}
        told: dict[int, int] = {}
        for topic, partition in places:
            try:
                told[partition] = answers[topic, partition].result()
            except KafkaFailure as failure:  # noqa: PERF203 (a few partitions)
                self._refused(failure)
        return told

    def _refused(self, failure: KafkaFailure) -> None:
        if failure.code in _NO_RIGHT:
            self._say_once("no right to read it (READ)")
        else:
            LOG.info("%s was not read: %s", self._topic, failure)

    def _say_once(self, why: str) -> None:
        self._is_refused = True
        LOG.warning(
            "refused messages of %s are not counted: %s: %s", self._options.app_id, self._topic, why
        )


def await_delivery(
    options: SinkOptions,
    ports: Ports,
    dead: DeadLetters,
    decisions: Mapping[int, int],
    *,
    timeout_ms: int,
) -> bool:
    """Wait until the daemon has delivered what some decisions publish; tell whether it did.

    It commits its place in the op topic in the very kafka_txn that has the deliveries, or the dead
    letters, of the ops before that place. The end of a kafka_txn reaches each partition on its own:
    the place may be told before the dead letters are visible, and these are waited for then.

    Args:
        options: Of the sink.
        ports: The outside.
        dead: The dead-letter topic.
        decisions: Half partition -> offset of its last decision.
        timeout_ms: Longest wait.
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
                # No answer: asked again.
            else:
                last = {place: end for place, end in last.items() if places[place].offset <= end}
            if not last or now() >= deadline:
                break
            reader.poll(_POLL_S)
    finally:
        ports.run.let_go(reader)
    return not last and dead.await_visible(deadline)

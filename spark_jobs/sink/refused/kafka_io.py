"""Reads the dead-letter topic from where the last batch stopped, within bounds."""

from __future__ import annotations

from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import headers_of
from halfbridge.spark_jobs.sink.clients.kafka_io import (
    LOG,
    admin_for,
    made,
    reader_settings,
    text_of,
)
from halfbridge.spark_jobs.sink.cluster.kafka_io import (
    KAFKA_TIMEOUT_S,
    LOOK_AGAIN_S,
    MS_PER_S,
    topics_of,
)
from halfbridge.spark_jobs.sink.errors import SinkSetupError
from halfbridge.spark_jobs.sink.kept import CLIENTS_MAX, Kept
from halfbridge.spark_jobs.sink.tally import letter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_READ_MAX = 100
_QUEUE_KBYTES_MAX = 16 * 1024
_POLL_S = 0.1
_NO_RIGHT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


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

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._topic = options.names.dead
        self._admin = admin_for(options)
        self._is_refused = False

    def ends(self) -> tuple[int, ...]:
        """Return where the partitions end for read_committed; empty where that is not told."""
        if self._is_refused:
            return ()
        try:
            partitions, _ = topics_of(self._admin).get(self._topic, (0, 0))
        except SinkSetupError as error:  # counting fails no batch
            LOG.info("%s was not read: %s", self._topic, error)
            return ()
        if not partitions:
            self._say_once("there is no such topic, or no right to see it (DESCRIBE)")
            return ()
        ends = self._asked(partitions, OffsetSpec.latest())
        return tuple(ends[each] for each in range(partitions)) if len(ends) == partitions else ()

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
        for partition, start in self._asked(len(ends), OffsetSpec.earliest()).items():
            at[partition] = max(at[partition], start)  # what was deleted meanwhile is not counted
        try:
            letters = self._read(at, behind)
        except KafkaException as error:
            self._refused(error.args[0])
            return None
        unread = sum(max(0, end - at[each]) for each, end in behind.items())
        return Look(letters, tuple(at[each] for each in range(len(ends))), unread)

    def await_visible(self, deadline: float) -> bool:
        """Wait until read_committed sees what is stored now; tell whether it does.

        A topic that cannot be read is not waited for.

        Args:
            deadline: Latest moment, by the monotonic clock.
        """
        partitions = len(self.ends())
        stored = self._asked(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        while ends := self.ends():
            if all(ends[each] >= end for each, end in stored.items()):
                return True
            if monotonic() >= deadline:
                return False
            self._admin.poll(LOOK_AGAIN_S)
        return True

    def _read(self, at: dict[int, int], behind: Mapping[int, int]) -> list[Letter]:
        """Read up to the ends that lie ahead, moving `at`; stop where a bound is reached."""
        letters: list[Letter] = []
        open_ = {each for each, end in behind.items() if at[each] < end}
        settings = {
            **reader_settings(self._options),
            "isolation.level": "read_committed",  # an aborted kafka_txn has buried nothing
            "queued.max.messages.kbytes": _QUEUE_KBYTES_MAX,
        }
        consumer: Any = made(Consumer, settings)
        try:
            consumer.assign([TopicPartition(self._topic, each, at[each]) for each in open_])
            deadline = monotonic() + CONNECT_S_MAX
            is_answered = False
            records = size = 0
            while open_ and monotonic() < deadline:
                if records >= LOOK_RECORDS_MAX or size >= LOOK_BYTES_MAX:
                    break
                first = consumer.poll(_POLL_S)
                if first is not None and not is_answered:
                    is_answered = True
                    deadline = monotonic() + LOOK_S_MAX
                for record in [] if first is None else [first, *consumer.consume(_READ_MAX, 0)]:
                    partition = record.partition()
                    if record.error() is not None:
                        if record.error().code() != KafkaError._PARTITION_EOF:
                            raise KafkaException(record.error())
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
            consumer.close()
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

    def _asked(
        self,
        partitions: int,
        where: OffsetSpec,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        places = {TopicPartition(self._topic, each): where for each in range(partitions)}
        if not places:
            return {}
        futures = self._admin.list_offsets(
            places, isolation_level=isolation_level, request_timeout=KAFKA_TIMEOUT_S
        )
        told: dict[int, int] = {}
        for place, future in futures.items():
            try:
                told[place.partition] = int(future.result(KAFKA_TIMEOUT_S).offset)
            except (KafkaException, TimeoutError) as error:  # noqa: PERF203 (a few partitions)
                self._refused(error.args[0] if isinstance(error, KafkaException) else None)
        return {partition: offset for partition, offset in told.items() if offset >= 0}

    def _refused(self, error: Any) -> None:
        if error is not None and error.code() in _NO_RIGHT:
            self._say_once("no right to read it (READ)")
        else:
            LOG.info(
                "%s was not read: %s", self._topic, "no answer" if error is None else text_of(error)
            )

    def _say_once(self, why: str) -> None:
        self._is_refused = True
        LOG.warning(
            "refused messages of %s are not counted: %s: %s", self._options.app_id, self._topic, why
        )


def await_delivery(options: SinkOptions, decisions: Mapping[int, int], *, timeout_ms: int) -> bool:
    """Wait until the daemon has delivered what some decisions publish; tell whether it did.

    It commits its place in the op topic in the very kafka_txn that has the deliveries, or the dead
    letters, of the ops before that place. The end of a kafka_txn reaches each partition on its own:
    the place may be told before the dead letters are visible, and these are waited for then.

    Args:
        options: Of the sink.
        decisions: Half partition -> offset of its last decision.
        timeout_ms: Longest wait.
    """
    deadline = monotonic() + timeout_ms / MS_PER_S
    wanted = [TopicPartition(options.names.op, each) for each in decisions]
    settings = {**reader_settings(options), "group.id": options.names.daemon_group}
    consumer: Any = made(Consumer, settings)
    try:
        while wanted:
            try:
                left_s = min(max(deadline - monotonic(), _POLL_S), KAFKA_TIMEOUT_S)
                places = consumer.committed(wanted, timeout=left_s)
            except KafkaException as error:
                if error.args[0].code() in _NO_RIGHT:
                    LOG.warning(
                        "no right to see how far %s has come (DESCRIBE): not waited for",
                        options.names.daemon_group,
                    )
                    return False
                places = wanted  # no answer: asked again
            wanted = [each for each in places if each.offset <= decisions[each.partition]]
            if not wanted or monotonic() >= deadline:
                break
            consumer.poll(_POLL_S)
    finally:
        consumer.close()
    return not wanted and dead_letters_for(options).await_visible(deadline)


_DEAD_LETTERS: Kept[DeadLetters] = Kept(CLIENTS_MAX)


def dead_letters_for(options: SinkOptions) -> DeadLetters:
    """Return this process's DeadLetters for the options."""
    key = (options.app_id, options.producer_group, *options.client_key())
    return _DEAD_LETTERS.get(key) or _DEAD_LETTERS.put(key, DeadLetters(options))

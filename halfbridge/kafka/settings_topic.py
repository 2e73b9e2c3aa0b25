"""The settings topic, read from its beginning to its end.

Reading is bounded in time and bytes, whatever the topic holds. Every record is only a hint: one
that cannot be read is reported in the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    BridgeError,
    Code,
    KafkaFailure,
    RetriableError,
    TopicSetupError,
    bridge_error,
)
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.settings_topic import (
    DAEMON_KEY,
    SWITCH_KEY,
    decode_daemon_settings,
    decode_switch,
    decode_type,
    topic_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.kafka.ports import Clock, Event, Reader
    from halfbridge.serde.records import DaemonSettings
    from halfbridge.serde.settings_topic import TopicType, TransactionsSwitch

# Time-out of one reading: limits how long a thread and a connection live, as no caller waits.
READ_S = 10.0
# Compaction keeps one record for each key. Two workers that contradict each other for a week write
# some 7,000 records of 150 bytes (1 MB) before the first segment of the log is compacted.
READ_BYTES_MAX = 8 * 1024 * 1024
# Approximate overhead of a record in a log, without key and value.
_FRAME_BYTES = 70
# How soon a reader notices that it must stop.
_SLICE_S = 0.1
_PROBLEM_CHARS_MAX = 200  # two lines of a terminal
# Properties of a reader for `read_settings`; they override its other properties.
READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 10,
    "max.partition.fetch.bytes": 256 * 1024,
    "queued.max.messages.kbytes": 1024,
}


class LimitsRecord(NamedTuple):
    """One record of the daemon's limits, or the problem why they cannot be read."""

    offset: int
    settings: DaemonSettings | None
    problem: str = ""


class SwitchRecord(NamedTuple):
    """A record of the operators' switch, or the problem why it cannot be read."""

    offset: int
    switch: TransactionsSwitch | None
    problem: str = ""


class Reading(NamedTuple):
    """The content of the topic.

    Attributes:
        said: The records of the daemon's limits, in offset order.
        switched: The last record of the operators' switch; None where there is none.
        types: Topic -> its type as the last record says; None: deleted, or not to be read.
        end: Where the log ends.
    """

    said: list[LimitsRecord]
    switched: SwitchRecord | None
    types: dict[str, TopicType | None]
    end: int


def read_settings(
    reader: Reader, topic: str, *, stop: Event, clock: Clock
) -> tuple[list[LimitsRecord], int]:
    """Return the daemon's records, in offset order, and the end of the log; as `read_topic`."""
    reading = read_topic(reader, topic, stop=stop, clock=clock)
    return reading.said, reading.end


def read_topic(reader: Reader, topic: str, *, start: int = 0, stop: Event, clock: Clock) -> Reading:
    """Return the content of the topic from `start` on, an offset that it has or had, or its end.

    A topic that was created again may end before `start`: then all of the new one is returned, and
    `end` is below `start`. The caller made the reader with `READING`, and closes it.

    Raises:
        TopicSetupError: no such topic, or no right to read it; an operator acts.
        RetriableError: not read to its end in `READ_S`, or `stop` was set; repeat the call later.
        BridgeError: as the Kafka client says; its class says who acts.
    """
    deadline = clock.monotonic() + READ_S
    try:
        error = reader.topic_failure(topic, READ_S)
        if error is not None:
            raise _refused(topic, failure_of(error))
        reader.read_from({(topic, 0): start})  # or from the log's start, if `start` is not there
        return _to_the_end(reader, topic, deadline, stop, clock)
    except KafkaFailure as failure:
        raise bridge_error(failure) from failure


def _to_the_end(reader: Reader, topic: str, deadline: float, stop: Event, clock: Clock) -> Reading:
    said: list[LimitsRecord] = []
    switched: SwitchRecord | None = None
    types: dict[str, TopicType | None] = {}
    left_bytes = READ_BYTES_MAX
    while clock.monotonic() < deadline and not stop.is_set():
        record = reader.poll(_SLICE_S)
        if record is None:
            continue
        error, offset = record.error(), record.offset() or 0
        if error is not None:
            failure = failure_of(error)
            if failure.code == Code.PARTITION_EOF:
                return Reading(said, switched, types, offset)
            raise _refused(topic, failure)
        key, value = record.key(), record.value()
        left_bytes -= _FRAME_BYTES + len(key or b"") + len(value or b"")
        if left_bytes < 0:
            raise TopicSetupError(
                f"{topic} holds more than {READ_BYTES_MAX} bytes: cleanup.policy must be compact,"
                " and only the daemon may write to it",
                topics=(topic,),
            )
        if key == DAEMON_KEY:
            said.append(_said(offset, value))
        elif key == SWITCH_KEY:
            switched = _switched(offset, value)
        elif (named := topic_of(key)) is not None:
            types[named] = _type(value)
    raise RetriableError(f"{topic} was not read to its end within {READ_S:g} s")


def _said(offset: int, value: bytes | None) -> LimitsRecord:
    if value is None:
        return LimitsRecord(offset, None)
    try:
        return LimitsRecord(offset, decode_daemon_settings(value))
    except DecodeError as error:  # without the error, which holds the bytes
        return LimitsRecord(offset, None, error.reason[:_PROBLEM_CHARS_MAX])


def _switched(offset: int, value: bytes | None) -> SwitchRecord:
    if value is None:
        return SwitchRecord(offset, None)
    try:
        return SwitchRecord(offset, decode_switch(value))
    except DecodeError as error:  # without the error, which holds the bytes
        return SwitchRecord(offset, None, error.reason[:_PROBLEM_CHARS_MAX])


def _type(value: bytes | None) -> TopicType | None:
    try:
        return None if value is None else decode_type(value).type
    except DecodeError:
        return None


def _refused(topic: str, failure: KafkaFailure) -> BridgeError:
    error = bridge_error(failure)
    if isinstance(error, TopicSetupError):
        return TopicSetupError(f"topic {topic} cannot be read ({error})", topics=(topic,))
    return error

"""The settings topic, read from its beginning to its end.

Whatever stands in it, reading is bounded in time and bytes, and what cannot be read is told and
raises nothing: everything in this topic is a hint.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from halfbridge.bridge.errors import BridgeError, RetriableError, TopicSetupError
from halfbridge.bridge.kafka_io import made, map_error
from halfbridge.bridge.side_thread import let_go
from halfbridge.serde.daemon_settings import DAEMON_KEY, decode_daemon_settings
from halfbridge.serde.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event

    from halfbridge.serde.records import DaemonSettings

# For one reading. Nobody waits for it; it bounds how long a thread and a connection are held.
READ_S = 10.0
# Compaction leaves one record a key. Two workers that contradict each other for a week write some
# 7,000 records of 150 bytes before the log's first segment is compacted, which is 1 MB.
READ_BYTES_MAX = 8 * 1024 * 1024
# What a record takes in a log beside its key and value, about.
_FRAME_BYTES = 70
# How soon a reader notices that it is to stop.
_SLICE_S = 0.1
_PROBLEM_CHARS_MAX = 200
_READING = {
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


class Said(NamedTuple):
    """What a record of the daemon's limits says.

    Attributes:
        offset: Where it stands.
        settings: The limits; None where they cannot be read, or were deleted.
        problem: Why they cannot be read; empty where they can.
    """

    offset: int
    settings: DaemonSettings | None
    problem: str = ""


def read_settings(client: Mapping[str, Any], topic: str, *, stop: Event) -> tuple[list[Said], int]:
    """Return what the daemon's records say, in offset order, and where the log ends.

    Args:
        client: Properties of a consumer, with a group that may be read; it is not joined.
        topic: The settings topic.
        stop: Once set, reading is given up.

    Raises:
        TopicSetupError: no such topic, or no right to read it; an operator acts.
        RetriableError: not read to its end in `READ_S`, or told to stop.
        BridgeError: as the Kafka client says.
    """
    deadline = monotonic() + READ_S
    consumer = made(Consumer, {**client, **_READING})
    try:
        _check_topic(consumer, topic)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        return _to_the_end(consumer, topic, deadline, stop)
    except KafkaException as error:
        raise map_error(error) from error
    finally:
        let_go(consumer)


def _check_topic(consumer: Any, topic: str) -> None:
    error = consumer.list_topics(topic, timeout=READ_S).topics[topic].error
    if error is not None:
        raise _refused(topic, error)


def _to_the_end(consumer: Any, topic: str, deadline: float, stop: Event) -> tuple[list[Said], int]:
    said: list[Said] = []
    left_bytes = READ_BYTES_MAX
    while monotonic() < deadline and not stop.is_set():
        record = consumer.poll(_SLICE_S)
        if record is None:
            continue
        error = record.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return said, int(record.offset())
        if error is not None:
            raise _refused(topic, error)
        key, value = record.key(), record.value()
        left_bytes -= _FRAME_BYTES + len(key or b"") + len(value or b"")
        if left_bytes < 0:
            raise TopicSetupError(
                f"{topic} holds more than {READ_BYTES_MAX} bytes: cleanup.policy must be compact,"
                " and only the daemon may write to it"
            )
        if key == DAEMON_KEY:
            said.append(_said(int(record.offset()), value))
    raise RetriableError(f"{topic} was not read to its end within {READ_S:g} s")


def _said(offset: int, value: bytes | None) -> Said:
    if value is None:
        return Said(offset, None)
    try:
        return Said(offset, decode_daemon_settings(value))
    except DecodeError as error:  # without the error, which holds the bytes
        return Said(offset, None, error.reason[:_PROBLEM_CHARS_MAX])


def _refused(topic: str, error: Any) -> BridgeError:
    mapped = map_error(error)
    if isinstance(mapped, TopicSetupError):
        return TopicSetupError(f"topic {topic} cannot be read ({mapped})")
    return mapped

"""Reads the record of the daemon's limits, a hint: without one the defaults are assumed."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from halfbridge.serde.daemon_settings import DAEMON_KEY, decode_daemon_settings
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import DaemonSettings
from halfbridge.spark_jobs.sink.clients.kafka_io import LOG, made, reader_settings, text_of
from halfbridge.spark_jobs.sink.errors import SinkOptionError

if TYPE_CHECKING:
    from halfbridge.spark_jobs.sink.options import SinkOptions

# As the client reads it (`bridge.settings_topic`): compaction leaves one record of 200 bytes, and
# two workers that contradict each other for a week write 1 MB.
READ_S = 10.0
READ_BYTES_MAX = 8 * 1024 * 1024
_POLL_S = 0.1
_ADVISED_PART = 3  # of the daemon's age, for its clock and its last checks


def check_age(options: SinkOptions) -> None:
    """Check that a batch can be committed no later than the daemon gives its half messages up.

    Raises:
        SinkOptionError: it could be; whoever wrote the query, or an operator, corrects a limit.
    """
    limit_ms = read_daemon_settings(options).transaction_age_ms_max
    if options.age_ms_max < limit_ms:
        return
    advised_ms = limit_ms // _ADVISED_PART
    raise SinkOptionError(
        f"option batch.age.max.ms is {options.age_ms_max}, and the daemon gives half messages up at"
        f" {limit_ms} ms (its transaction_age_ms_max, as {options.names.settings} says): part of a"
        f" batch would be published, and part not. Set the option to {advised_ms}"
        " or less, and --batch-age-max-ms of every responder with it; or raise the daemon's limit"
    )


def read_daemon_settings(options: SinkOptions) -> DaemonSettings:
    """Return what the newest record says; the defaults where there is none or it cannot be read."""
    topic = options.names.settings
    consumer: Any = made(Consumer, reader_settings(options))
    try:
        if (error := consumer.list_topics(topic, timeout=READ_S).topics[topic].error) is not None:
            return _assumed(topic, text_of(error))
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        return _to_the_end(consumer, topic)
    except KafkaException as error:
        return _assumed(topic, text_of(error))
    finally:
        consumer.close()


def _to_the_end(consumer: Any, topic: str) -> DaemonSettings:
    newest = DaemonSettings()
    deadline, left_bytes = monotonic() + READ_S, READ_BYTES_MAX
    while monotonic() < deadline and left_bytes > 0:
        record = consumer.poll(_POLL_S)
        if record is None:
            continue
        if (error := record.error()) is not None:
            is_end = error.code() == KafkaError._PARTITION_EOF
            return newest if is_end else _assumed(topic, text_of(error))
        left_bytes -= len(record)
        if record.key() == DAEMON_KEY:
            newest = _decoded(record.value(), topic)
    return _assumed(topic, f"more than {READ_BYTES_MAX} bytes, or {READ_S:g} s")


def _decoded(value: bytes | None, topic: str) -> DaemonSettings:
    if value is None:
        return DaemonSettings()  # an operator has deleted it
    try:
        return decode_daemon_settings(value)
    except DecodeError as error:
        return _assumed(topic, error.reason)


def _assumed(topic: str, why: str) -> DaemonSettings:
    LOG.info("%s was not read (%s); the daemon's defaults are assumed", topic, why)
    return DaemonSettings()

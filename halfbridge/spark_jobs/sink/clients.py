"""The sink's Kafka clients, and its checks before a query writes.

The properties of each client come from the options of the query. The checks are about the sink's
topics, and about its age limit, which must be below the daemon's in the settings topic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.kafka.ends import Ends
from halfbridge.kafka.error_log import RECONNECTING, ErrorLog
from halfbridge.kafka.errors import BridgeError
from halfbridge.kafka.ports import NewTopic
from halfbridge.kafka.sending import DURABLE
from halfbridge.kafka.settings_topic import READING, read_settings
from halfbridge.kafka.topics import Topics
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.topics import (
    CHECK_PARTITIONS,
    MANIFEST_BYTES_MAX,
    MANIFEST_PARTITIONS,
    MESSAGE_BYTES_MAX,
    check_topic_settings,
    manifest_topic_settings,
)
from halfbridge.spark_jobs.sink.errors import SinkOptionError, SinkSetupError, failing_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import Admin, Ports, Reader, Writer
    from halfbridge.spark_jobs.sink.options import SinkOptions

LOG = logging.getLogger("halfbridge.spark")
# Unacknowledged messages of one client: librdkafka's default number, and a sixteenth of its default
# size of 1 GiB, because an executor has a client for each of its cores.
_QUEUE_MESSAGES_MAX = 100_000
_QUEUE_KBYTES_MAX = 64 * 1024
# Room in a fetch for the framing of a manifest of the greatest size.
_FRAME_BYTES = 4_096
_NOT_MADE = "a Kafka client could not be made"
# No further properties.
NONE: Mapping[str, object] = {}


def new_writer(
    options: SinkOptions,
    ports: Ports,
    *,
    message_bytes_max: int,
    defaults: Mapping[str, object] = NONE,
    changes: Mapping[str, object] = NONE,
) -> Writer:
    """Return an idempotent writer that leaves no gap: after a failed record it stores none.

    The query may override `defaults`, and may not set `changes`.

    Raises:
        SinkOptionError: the client refuses a property; the author of the query corrects it.
    """
    properties = {
        "socket.keepalive.enable": True,
        **defaults,
        **_common(options, ports),
        **DURABLE,
        # A record that fails permanently stops the writer: no later record is stored.
        "enable.gapless.guarantee": True,
        # No time-out: a record that is given up while later records are stored leaves a gap. The
        # caller has a deadline, and gives up the whole client.
        "message.timeout.ms": 0,
        "message.max.bytes": message_bytes_max,
        "queue.buffering.max.messages": _QUEUE_MESSAGES_MAX,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
        **changes,
    }
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.writer(properties)


def new_reader(
    options: SinkOptions, ports: Ports, *, changes: Mapping[str, object] = NONE
) -> Reader:
    """Return a reader without a group, which commits nothing."""
    properties = {
        "fetch.wait.max.ms": 50,
        **_common(options, ports),
        "group.id": options.names.manifest_group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # Nothing is written here in a kafka_txn, and a kafka_txn of a stranger must hide nothing.
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.message.max.bytes": MANIFEST_BYTES_MAX + _FRAME_BYTES,
        **changes,
    }
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.reader(properties)


def new_admin(options: SinkOptions, ports: Ports) -> Admin:
    """Return a client that lists and creates topics."""
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.admin(_common(options, ports))


def _common(options: SinkOptions, ports: Ports) -> dict[str, object]:
    return {
        "client.id": f"halfbridge-{options.producer_group}",
        "error_cb": ErrorLog(LOG, ports.clock).note,
        **RECONNECTING,
        **options.kafka,
        "bootstrap.servers": options.bootstrap_servers,
    }


# Longest wait for one answer of a broker. A TLS handshake and a login need a few seconds.
KAFKA_TIMEOUT_S = 20.0
NO_ANSWER = "no broker answers"
# Settings by which a manifest topic keeps all manifests, with append times of brokers.
_GUARANTEED = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")


def new_topics(options: SinkOptions, ports: Ports) -> Topics:
    """Return the installation's Topics, with a client of their own."""
    return Topics(
        new_admin(options, ports),
        ports,
        options.names,
        remedy=_remedy(options),
        timeout_s=KAFKA_TIMEOUT_S,
    )


def ensure_topics(options: SinkOptions, ports: Ports) -> None:
    """Check half, op and manifest topic; create manifest and check topic if they are missing.

    Raises:
        SinkSetupError: a topic has the wrong shape, or is missing and cannot be created; an
            operator runs the command that the text names.
    """
    names, topics = options.names, new_topics(options, ports)
    with failing_as(SinkSetupError, NO_ANSWER):
        shape = topics.half_shape()
        manifests = manifest_topic_settings(replicas=shape.replicas)
        checks = check_topic_settings(shape)
        topics.make_missing(
            [
                NewTopic(names.manifest, MANIFEST_PARTITIONS, shape.replicas, manifests),
                NewTopic(
                    names.check(options.producer_group), CHECK_PARTITIONS, shape.replicas, checks
                ),
            ]
        )
    manifest_bytes_max(topics, options)


def manifest_bytes_max(topics: Topics, options: SinkOptions) -> int:
    """Check the manifest topic, and return its max.message.bytes.

    Raises:
        SinkSetupError: the topic is missing or has too few partitions, a setting lets it forget
            records, or brokers do not answer; an operator runs the command that the text names.
    """
    topic = options.names.manifest
    with failing_as(SinkSetupError, NO_ANSWER):
        seen = topics.seen().get(topic)
        settings = topics.settings(topic) if seen else {}
    if seen is None or seen.partitions < MANIFEST_PARTITIONS:
        raise SinkSetupError(
            f"{topic} must have at least {MANIFEST_PARTITIONS} partitions, it has"
            f" {seen.partitions if seen else 0}; {_remedy(options)}",
            topics=(topic,),
        )
    wanted = manifest_topic_settings(replicas=seen.replicas)
    for name in _GUARANTEED:
        if settings.get(name, wanted[name]) != wanted[name]:
            raise SinkSetupError(
                f"{name} of {topic} is {settings[name]}, it must be {wanted[name]}: a batch whose"
                " manifest is deleted would be published twice."
                f" Run: {alter_command(options, name, wanted[name])}",
                topics=(topic,),
            )
    return int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX))


def alter_command(options: SinkOptions, name: str, value: object) -> str:
    """Return the command that sets a setting of the manifest topic."""
    return (
        f"halfbridge topics alter {options.names.manifest} --set {name}={value}"
        f" --bootstrap-servers {options.bootstrap_servers}"
    )


def partition_ends(
    options: SinkOptions, ports: Ports, topic: str, partitions: Iterable[int], *, timeout_s: float
) -> dict[int, int]:
    """Ask for the high watermarks of partitions, all at once; return those that were answered."""
    places = [(topic, each) for each in partitions]
    if not places:
        return {}
    admin = new_admin(options, ports)  # a name keeps the client alive until it has answered
    answers = Ends(admin, places, timeout_s).answers()
    return {partition: end for (_, partition), end in answers.items()}


def _remedy(options: SinkOptions) -> str:
    prefix = f" --topic-prefix {options.prefix}" if options.prefix else ""
    return (
        f"run: halfbridge topics create --bootstrap-servers {options.bootstrap_servers}{prefix}"
        f" --producer-group {options.producer_group} --spark-sink"
    )


_ADVISED_PART = 3  # of the daemon's age, for its clock and its last checks


def check_age(options: SinkOptions, ports: Ports) -> None:
    """Check that no batch can be committed after the daemon gives up its half messages.

    The daemon's record is a hint: if it cannot be read, the daemon's defaults are assumed.

    Raises:
        SinkOptionError: one could be; the author of the query, or an operator, corrects a limit.
    """
    limit_ms = _daemon_settings(options, ports).transaction_age_ms_max
    if options.age_ms_max < limit_ms:
        return
    advised_ms = limit_ms // _ADVISED_PART
    raise SinkOptionError(
        f"option batch.age.max.ms is {options.age_ms_max}, and the daemon gives half messages up at"
        f" {limit_ms} ms (its transaction_age_ms_max, as {options.names.settings} says): part of a"
        f" batch would be published, and part not. Set the option to {advised_ms}"
        " or less, and --batch-age-max-ms of every responder with it; or raise the daemon's limit"
    )


def _daemon_settings(options: SinkOptions, ports: Ports) -> DaemonSettings:
    topic, problem = options.names.settings, ""
    reader = new_reader(options, ports, changes=READING)
    try:
        said, _ = read_settings(reader, topic, stop=ports.run.event(), clock=ports.clock)
        if said and said[-1].settings is not None:
            return said[-1].settings
        problem = said[-1].problem if said else ""
    except BridgeError as error:
        problem = str(error)
    finally:
        ports.run.close_clients(reader)
    if problem:
        LOG.info("%s was not read (%s); the daemon's defaults are assumed", topic, problem)
    return DaemonSettings()

"""The bridge's seam to Kafka: its clients, their errors, topics (offsets: `inquiry`).

Clients come out of it as `Any` (the library has no types of its own); errors come out of it as
BridgeError, by `map_error`.
"""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from halfbridge.bridge.admin_client.kafka_io import AdminClient
from halfbridge.bridge.errors import (
    AbortableError,
    BridgeError,
    ConfigError,
    FatalError,
    InvalidMessageError,
    ProducerFencedError,
    RetriableError,
    TopicSetupError,
)
from halfbridge.bridge.trouble import RECONNECTING, Troubles
from halfbridge.serde.topic_shapes import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.config import BridgeConfig

__all__ = [
    "OFFSET_INVALID",
    "PARTITION_EOF",
    "KafkaException",
    "create_topic",
    "make_admin",
    "make_check_consumer",
    "make_producer",
    "map_error",
    "message_bytes_max",
    "reader_settings",
    "topics_of",
]

PARTITION_EOF = KafkaError._PARTITION_EOF

_LOG = logging.getLogger("halfbridge.kafka")
_QUEUE_KBYTES_MAX = 512 * 1024
_REQUEST_TIMEOUT_MS_MAX = 5_000  # leaves room for a retry within the delivery time-out
_SESSION_TIMEOUT_MS = 6_000  # the least that brokers allow: a killed member's checks move on
_CONSUMER_ONLY = (
    "session.",
    "heartbeat.",
    "max.poll.",
    "partition.assignment.",
    "fetch.",
    "queued.",
)

_RETRIABLE = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._QUEUE_FULL,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NETWORK_EXCEPTION,
    )
)
_FENCED = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    )
)
_TOPIC = frozenset(
    (
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
    )
)
_CONFIG = frozenset(
    (
        KafkaError._INVALID_ARG,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    )
)
_TOO_LARGE = frozenset(
    (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD)
)

# Why an acknowledgement is none (`halfbridge.serde.acknowledgements`).
INFERRED = KafkaError(
    KafkaError._MSG_TIMED_OUT,
    "acknowledged without an offset: the client infers that it is stored, no broker said so",
    retriable=True,
)


def not_proven(record: Any) -> KafkaError | None:
    """Return INFERRED for an acknowledged record that names no offset; None where it does.

    Of several records that were sent at once only the first one tells; to hear it of each, ask
    `halfbridge.serde.acknowledgements`.
    """
    return INFERRED if record.offset() is None else None


def map_error(error: Any) -> BridgeError:
    """Return the BridgeError that says who must act on a KafkaError or KafkaException."""
    if isinstance(error, BridgeError):
        return error
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):
        return FatalError(f"Kafka client: {error!r}")
    code = error.code()
    text = f"{error.name()}: {error.str()}"
    if code in _CONFIG:
        return ConfigError(field="kafka", value=text, origin="Kafka client", allowed="see its text")
    if code in _TOO_LARGE:
        return InvalidMessageError(text, field="value")
    verdicts: tuple[tuple[bool, type[BridgeError]], ...] = (
        (code in _FENCED, ProducerFencedError),
        (error.fatal(), FatalError),
        (error.txn_requires_abort(), AbortableError),
        (code in _TOPIC, TopicSetupError),
        (error.retriable() or code in _RETRIABLE, RetriableError),
    )
    # Neither retriable nor abortable: librdkafka says to treat it as fatal.
    return next((kind for applies, kind in verdicts if applies), FatalError)(text)


def make_admin(config: BridgeConfig) -> Any:
    """Return an AdminClient: for looking at topics at start, or for asking where logs end."""
    troubles = {"error_cb": Troubles(_LOG).note}
    return made(AdminClient, {**_common(config, consumer=False), **troubles})


def make_producer(config: BridgeConfig, *, message_bytes_max: int) -> Any:
    """Return the one idempotent Producer that all transactions of a process share."""
    delivery_ms = max(config.send_timeout_ms, config.decision_timeout_ms)
    settings = {
        "socket.keepalive.enable": True,
        **_common(config, consumer=False),
        "acks": "all",
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "linger.ms": config.linger_ms,
        "compression.type": config.compression,
        "delivery.timeout.ms": delivery_ms,
        "request.timeout.ms": max(1, min(_REQUEST_TIMEOUT_MS_MAX, delivery_ms)),
        "message.max.bytes": message_bytes_max,
        # Twice, because a decision may follow each half message from its delivery callback.
        "queue.buffering.max.messages": 2 * config.in_flight_max,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
        "error_cb": Troubles(_LOG).note,
    }
    return made(Producer, settings, logger=_LOG)


def make_check_consumer(config: BridgeConfig) -> Any:
    """Return the Consumer of the group's check topic, subscribed.

    A group without offsets starts at the earliest request: what was asked while nobody was
    there is answered at once, and the topic's short retention bounds how much that is. Offsets
    commit themselves: a request lost in a crash is asked again by the daemon.
    """
    consumer = made(
        Consumer,
        {
            "session.timeout.ms": _SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": _SESSION_TIMEOUT_MS // 3,
            **_common(config, consumer=True),
            "group.id": config.names.check_group(config.producer_group),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "enable.partition.eof": True,  # records with PARTITION_EOF for their error's code
            "isolation.level": "read_uncommitted",
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 10_000,
            "error_cb": Troubles(_LOG).note,
        },
        logger=_LOG,
    )
    consumer.subscribe([config.names.check(config.producer_group)])
    return consumer


def reader_settings(config: BridgeConfig) -> dict[str, Any]:
    """Return the properties of a Consumer that reads with the rights of the check group.

    It never joins the group.
    """
    return {
        "session.timeout.ms": _SESSION_TIMEOUT_MS,  # compared with the user's max.poll.interval.ms
        **_common(config, consumer=True),
        "group.id": config.names.check_group(config.producer_group),
        "error_cb": Troubles(_LOG).note,
    }


def topics_of(client: Any, *, timeout_s: float) -> dict[str, tuple[int, int]]:
    """Return every topic this client may see: name to (partitions, replication factor).

    Raises:
        BridgeError: no broker answered.
    """
    try:
        topics = client.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        if isinstance(client, AdminClient):  # producers have a thread that does
            client.poll(0)  # logs why: the call itself says no more than that it failed
        raise map_error(error) from error
    return {
        name: (len(topic.partitions), len(topic.partitions[0].replicas))
        for name, topic in topics.items()
        if topic.error is None and 0 in topic.partitions
    }


def message_bytes_max(admin: Any, topic: str, *, timeout_s: float) -> int:
    """Return a topic's max.message.bytes; Kafka's default where it may not be read."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    future = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
    try:
        return int(future.result(timeout_s)["max.message.bytes"].value)
    except (KafkaException, KeyError, TimeoutError) as error:
        _LOG.info("max.message.bytes of %s not readable, default taken: %r", topic, error)
        return MESSAGE_BYTES_MAX


def create_topic(
    admin: Any,
    topic: str,
    *,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Create a topic; one that exists already is as good.

    Raises:
        BridgeError: not permitted, or no broker answered.
    """
    new = NewTopic(topic, partitions, replication_factor, config=dict(settings))
    future = admin.create_topics([new], request_timeout=timeout_s)[topic]
    try:
        future.result(timeout_s)
    except KafkaException as error:
        if _kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise map_error(error) from error
    except TimeoutError as error:
        raise RetriableError(f"creating {topic}: no answer in {timeout_s:g} s") from error


def _common(config: BridgeConfig, *, consumer: bool) -> dict[str, Any]:
    passed = {
        name: value
        for name, value in config.kafka.items()
        if consumer or not name.startswith(_CONSUMER_ONLY)
    }
    return {
        "client.id": f"halfbridge-{config.producer_group}",
        **RECONNECTING,
        **passed,
        "bootstrap.servers": config.bootstrap_servers,
    }


def made(client: Any, settings: dict[str, Any], **keywords: Any) -> Any:
    """Return a Kafka client.

    Raises:
        ConfigError: it does not know a property, or does not take its value; the user corrects it.
    """
    try:
        return client(settings, **keywords)
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        # The last three: a property whose value is a function or a mapping, such as `stats_cb`.
        raise ConfigError(
            field="kafka",
            value=_kafka_error(error).str() if isinstance(error, KafkaException) else str(error),
            origin="Kafka client",
            allowed="properties that librdkafka knows",
        ) from error


def _kafka_error(error: KafkaException) -> Any:
    return error.args[0]

"""The sink's Kafka clients: how each is made, and what their errors and answers mean."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from halfbridge.bridge.kafka.admin import AdminClient
from halfbridge.serde.topics import MANIFEST_BYTES_MAX
from halfbridge.spark_jobs.sink.errors import SinkOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.spark_jobs.sink.options import SinkOptions

LOG = logging.getLogger("halfbridge.spark")
_CLIENT_LOG = logging.getLogger("halfbridge.spark.kafka")
# librdkafka says so of each producer; what it guards is decided (an order without gaps).
_CLIENT_LOG.addFilter(lambda record: "enable.gapless.guarantee" not in record.getMessage())
_QUEUE_MESSAGES_MAX = 100_000
_QUEUE_KBYTES_MAX = 64 * 1024
INFERRED = KafkaError(KafkaError._MSG_TIMED_OUT, "acknowledged without an offset", retriable=True)


def client_settings(options: SinkOptions) -> dict[str, Any]:
    """Return what all clients have in common."""
    return {
        "client.id": f"halfbridge-{options.producer_group}",
        "error_cb": _note,
        **options.kafka,
        "bootstrap.servers": options.bootstrap_servers,
    }


def producer_settings(options: SinkOptions, *, message_bytes_max: int) -> dict[str, Any]:
    """Return the properties of an idempotent producer that passes nothing over."""
    return {
        "linger.ms": 20,
        "socket.keepalive.enable": True,
        **client_settings(options),
        "acks": "all",
        "enable.idempotence": True,
        # A record that fails for good stops the producer: none behind it gets through.
        "enable.gapless.guarantee": True,
        "allow.auto.create.topics": False,
        # Never: a message that is given up while ones behind it are stored leaves a gap. Whoever
        # waits has a deadline, and gives up the whole client.
        "message.timeout.ms": 0,
        "message.max.bytes": message_bytes_max,
        "queue.buffering.max.messages": _QUEUE_MESSAGES_MAX,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
    }


def reader_settings(options: SinkOptions) -> dict[str, Any]:
    """Return the properties of a consumer that is told what to read, and commits nothing."""
    return {
        "fetch.wait.max.ms": 50,
        **client_settings(options),
        "group.id": options.names.manifest_group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # Another app's producer must not hide what is there; nobody writes it in a kafka_txn.
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.message.max.bytes": MANIFEST_BYTES_MAX + 4_096,
    }


def admin_for(options: SinkOptions) -> Any:
    """Return a client that asks about topics, and makes them.

    Raises: as made.
    """
    return made(AdminClient, client_settings(options))


def made(client: Any, settings: Mapping[str, Any]) -> Any:
    """Return a Kafka client.

    Raises:
        SinkOptionError: it does not take a property; whoever wrote the query corrects it.
    """
    try:
        return client(dict(settings), logger=_CLIENT_LOG)
    except KafkaException as error:
        raise SinkOptionError(f"a kafka. option is not taken: {text_of(error)}") from error


def text_of(error: Any) -> str:
    """Return a KafkaError or KafkaException as `NAME: text`."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    return f"{error.name()}: {error.str()}" if isinstance(error, KafkaError) else repr(error)


def not_proven(record: Any) -> KafkaError | None:
    """Return why an acknowledgement proves nothing: it names no offset; None where it does.

    See `serde.acknowledgements`, which tells it also of records that were sent with others.
    """
    return INFERRED if record.offset() is None else None


def actor_name() -> str:
    """Return this process's name in records, for people who search."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _note(error: Any) -> None:
    LOG.info("Kafka client: %s", text_of(error))

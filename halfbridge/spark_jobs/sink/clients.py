"""The sink's Kafka clients: the properties of each, from the options of a query."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.trouble import RECONNECTING, Troubles
from halfbridge.serde.topics import MANIFEST_BYTES_MAX
from halfbridge.spark_jobs.sink.errors import SinkSetupError, failing_as

if TYPE_CHECKING:
    from collections.abc import Mapping

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
NONE: Mapping[str, Any] = {}


def new_writer(
    options: SinkOptions,
    ports: Ports,
    *,
    message_bytes_max: int,
    defaults: Mapping[str, Any] = NONE,
    changes: Mapping[str, Any] = NONE,
) -> Writer:
    """Return an idempotent writer that leaves no gap: after a failed record it stores none.

    Args:
        options: The sink's options.
        ports: Makes the client.
        message_bytes_max: Most bytes of one record.
        defaults: Further properties, which the query may override.
        changes: Properties that the query may not set.

    Raises:
        SinkOptionError: the client refuses a property; the author of the query corrects it.
    """
    properties = {
        "socket.keepalive.enable": True,
        **defaults,
        **_common(options, ports),
        "acks": "all",
        "enable.idempotence": True,
        # A record that fails permanently stops the writer: no later record is stored.
        "enable.gapless.guarantee": True,
        "allow.auto.create.topics": False,
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


def new_reader(options: SinkOptions, ports: Ports, *, changes: Mapping[str, Any] = NONE) -> Reader:
    """Return a reader without a group, which commits nothing.

    Raises:
        SinkOptionError: as new_writer.
    """
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
    """Return a client that looks up and creates topics.

    Raises:
        SinkOptionError: as new_writer.
    """
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.admin(_common(options, ports))


def _common(options: SinkOptions, ports: Ports) -> dict[str, Any]:
    return {
        "client.id": f"halfbridge-{options.producer_group}",
        "error_cb": Troubles(LOG, ports.clock).note,
        **RECONNECTING,
        **options.kafka,
        "bootstrap.servers": options.bootstrap_servers,
    }

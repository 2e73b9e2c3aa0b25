"""The sink's Kafka clients: the properties of each, from the options of a query."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.trouble import RECONNECTING, Troubles
from halfbridge.serde.topics import MANIFEST_BYTES_MAX
from halfbridge.spark_jobs.sink.errors import SinkSetupError, failing_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.ports import Admin, Ports, Reader, Writer
    from halfbridge.spark_jobs.sink.options import SinkOptions

LOG = logging.getLogger("halfbridge.spark")
# What one client holds that brokers have not acknowledged: as many messages as librdkafka's default
# says, and a sixteenth of its default of 1 GiB, for an executor has a client for each of its cores.
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
    """Return an idempotent writer that passes no record over.

    Args:
        options: Of the sink.
        ports: Make the client.
        message_bytes_max: Of one record.
        defaults: Further properties, which the query may set otherwise.
        changes: Properties that the query may not set.

    Raises:
        SinkOptionError: the client does not take a property; whoever wrote the query corrects it.
    """
    properties = {
        "socket.keepalive.enable": True,
        **defaults,
        **_common(options, ports),
        "acks": "all",
        "enable.idempotence": True,
        # A record that fails for good stops the writer: no record behind it gets through.
        "enable.gapless.guarantee": True,
        "allow.auto.create.topics": False,
        # Never: a record that is given up while records behind it are stored leaves a gap. Whoever
        # waits has a deadline, and gives up the whole client.
        "message.timeout.ms": 0,
        "message.max.bytes": message_bytes_max,
        "queue.buffering.max.messages": _QUEUE_MESSAGES_MAX,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
        **changes,
    }
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.writer(properties)


def new_reader(options: SinkOptions, ports: Ports, *, changes: Mapping[str, Any] = NONE) -> Reader:
    """Return a reader that is told what to read, and commits nothing.

    Raises:
        SinkOptionError: as new_writer.
    """
    properties = {
        "fetch.wait.max.ms": 50,
        **_common(options, ports),
        "group.id": options.names.manifest_group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # Another app's producer must not hide what is there; nobody writes it in a kafka_txn.
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.message.max.bytes": MANIFEST_BYTES_MAX + _FRAME_BYTES,
        **changes,
    }
    with failing_as(SinkSetupError, _NOT_MADE):
        return ports.kafka.reader(properties)


def new_admin(options: SinkOptions, ports: Ports) -> Admin:
    """Return a client that asks about topics, and makes topics.

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

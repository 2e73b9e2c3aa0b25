"""Makes the clients: the port `Kafka`, implemented by the client library."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, libversion, version

from halfbridge.kafka import last_read
from halfbridge.kafka.admin import AdminClient, KafkaAdmin
from halfbridge.kafka.clients import (
    LISTENED,
    KafkaReader,
    KafkaTransactionalWriter,
    KafkaWriter,
    LostConnections,
)
from halfbridge.kafka.making import made
from halfbridge.kafka.ports import Ports
from halfbridge.kafka.threads import SystemClock, Threads
from halfbridge.serde.identity import TRANSACTION_IDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class KafkaClients:
    """Makes clients of the client library, which log to `log` or standard error."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = {} if log is None else {"logger": log}

    def reader(self, properties: Mapping[str, Any]) -> KafkaReader:
        on_read = partial(last_read.note, properties)
        return KafkaReader(made(Consumer, properties, **self._log), on_read=on_read)

    def member(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> KafkaReader:
        consumer = self._listened(Consumer, properties, on_lost)
        return KafkaReader(consumer, stays="group.instance.id" in properties)

    def writer(self, properties: Mapping[str, Any]) -> KafkaWriter:
        return KafkaWriter(made(Producer, properties, **self._log))

    def transactional_writer(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> KafkaTransactionalWriter:
        return KafkaTransactionalWriter(self._listened(Producer, properties, on_lost))

    def admin(self, properties: Mapping[str, Any]) -> KafkaAdmin:
        return KafkaAdmin(made(AdminClient, properties))

    def _listened(
        self, client: Any, properties: Mapping[str, Any], on_lost: Callable[[], None] | None
    ) -> Any:
        if on_lost is None:
            return made(client, properties, **self._log)
        return made(client, {**properties, **LISTENED}, logger=LostConnections(on_lost))


@cache
def system_ports() -> Ports:
    """Return the ports of the client library, the system's clocks and its threads."""
    return Ports(
        KafkaClients(logging.getLogger("halfbridge.kafka")),
        SystemClock(),
        Threads(),
        TRANSACTION_IDS.next,
    )


def client_versions() -> tuple[str, str]:
    """Return the versions of confluent-kafka and of librdkafka."""
    return str(version()[0] if isinstance(version(), tuple) else version()), str(libversion()[0])

"""Makes the clients: the port `Kafka`, implemented by the client library."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from halfbridge.kafka import last_read
from halfbridge.kafka.admin import AdminClient, KafkaAdmin
from halfbridge.kafka.clients import (
    LISTENED,
    KafkaReader,
    KafkaTransactionalWriter,
    KafkaWriter,
    LostConnections,
)
from halfbridge.kafka.making import made, made_consumer, made_producer
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
        return KafkaReader(made_consumer(properties, **self._log), on_read=on_read)

    def member(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> KafkaReader:
        consumer = self._listened(made_consumer, properties, on_lost)
        return KafkaReader(consumer, stays="group.instance.id" in properties)

    def writer(self, properties: Mapping[str, Any]) -> KafkaWriter:
        return KafkaWriter(made_producer(properties, **self._log))

    def transactional_writer(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> KafkaTransactionalWriter:
        return KafkaTransactionalWriter(self._listened(made_producer, properties, on_lost))

    def admin(self, properties: Mapping[str, Any]) -> KafkaAdmin:
        return KafkaAdmin(made(AdminClient, properties))

    def _listened(
        self,
        make: Callable[..., Any],
        properties: Mapping[str, Any],
        on_lost: Callable[[], None] | None,
    ) -> Any:
        if on_lost is None:
            return make(properties, **self._log)
        return make({**properties, **LISTENED}, logger=LostConnections(on_lost))


@cache
def system_ports() -> Ports:
    """Return the ports of the client library, the system's clocks and its threads."""
    return Ports(
        KafkaClients(logging.getLogger("halfbridge.kafka")),
        SystemClock(),
        Threads(),
        TRANSACTION_IDS.next,
    )

"""The settings topic, as a worker reads and writes it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.clients import client_config, unjoined
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import KafkaFailure, RetriableError, bridge_error
from halfbridge.kafka.settings_topic import READING, Said, read_settings
from halfbridge.kafka.trouble import Troubles
from halfbridge.serde.daemon_settings import DAEMON_KEY, encode_daemon_settings

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Event, Ports
    from halfbridge.serde.records import DaemonSettings

_log = logging.getLogger("halfbridge.checker")

# For one record of 150 bytes. If no broker takes the record in this time, the next look retries.
WRITE_S = 10.0
_PARTITION = 0


class SettingsTopic:
    """The installation's settings topic. Its clients live as long as one call."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._topic = config.names.settings

    def read(self, stop: Event) -> tuple[list[Said], int]:
        """Return the content of the records, in offset order, and the end of the log.

        Raises:
            BridgeError: as `read_settings`.
        """
        ports, config = self._ports, self._config
        reader = ports.kafka.reader(
            {**client_config(config), **unjoined(config), **self._told(), **READING}
        )
        try:
            return read_settings(reader, self._topic, stop=stop, clock=ports.clock)
        finally:
            ports.run.let_go(reader)

    def write(self, settings: DaemonSettings) -> None:
        """Append the record of the daemon's limits; return once it is stored.

        Raises:
            TopicSetupError: no such topic, or no right to write to it; an operator acts.
            BridgeError: the record may not be stored.
        """
        outcomes: list[Any] = []
        writer = self._ports.kafka.writer(
            {
                **client_config(self._config),
                **self._told(),
                "enable.idempotence": True,
                "message.timeout.ms": int(WRITE_S * 1000),
                "linger.ms": 0,
            },
        )
        try:
            writer.produce(
                self._topic,
                encode_daemon_settings(settings),
                DAEMON_KEY,
                _PARTITION,
                lambda error, _: outcomes.append(error),
            )
            writer.flush(WRITE_S)
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        if not outcomes:
            writer.purge()
            raise RetriableError(f"{self._topic}: no acknowledgement in {WRITE_S:g} s")
        if outcomes[0] is not None:
            raise bridge_error(failure_of(outcomes[0]))

    def _told(self) -> dict[str, Any]:
        return {"error_cb": Troubles(_log, self._ports.clock).note}

"""The reader of single half records."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from halfbridge.bridge.errors import ConfigError
from halfbridge.bridge.kafka_io import made
from halfbridge.bridge.side_thread import let_go
from halfbridge.checker.clients import QUESTION_S, client_config, unjoined
from halfbridge.checker.failures import InputLostError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig

# Records read over rather than fetched anew: about one fetch of 1 KB records.
SKIP_MAX = 1000


class BodyReader:
    """Reads half records again by offset, for bodies that the ledger let go."""

    def __init__(self, config: CheckerConfig) -> None:
        self._config = config
        self._topic = config.names.half
        self._consumer = self._open()

    def read(self, partition: int, offsets: Iterable[int]) -> dict[int, Any]:
        """Return the records at `offsets`, by offset.

        Raises:
            InputLostError: one cannot be read (deleted, or no broker).
        """
        found: dict[int, Any] = {}
        position = -1 - SKIP_MAX
        try:
            for offset in sorted(set(offsets)):
                if not position <= offset < position + SKIP_MAX:
                    self._consumer.assign([TopicPartition(self._topic, partition, offset)])
                found[offset] = self._read_one(partition, offset)
                position = offset + 1
        except InputLostError:
            self._renew()
            raise
        self._consumer.unassign()
        return found

    def close(self) -> None:
        """Close the consumer; waits no longer than `let_go`."""
        let_go(self._consumer)

    def _read_one(self, partition: int, offset: int) -> Any:
        deadline = monotonic() + QUESTION_S
        while monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                raise InputLostError(f"{self._topic}[{partition}]@{offset}: {message.error()}")
            if message.offset() == offset:
                return message
            if message.offset() > offset:
                break
            deadline = monotonic() + QUESTION_S  # large records on a slow line: it goes on
        raise InputLostError(f"{self._topic}[{partition}]@{offset} cannot be read again")

    def _renew(self) -> None:
        """Read with a new consumer from now on: the old one may have stalled (`StallWatch`)."""
        with suppress(ConfigError):  # for now: then the old one goes on
            old, self._consumer = self._consumer, self._open()
            let_go(old)

    def _open(self) -> Any:
        config = self._config
        return made(
            Consumer,
            {
                **client_config(config),
                **unjoined(config),
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 4096,
                "fetch.wait.max.ms": 10,
            },
        )

"""Reads the dead-letter topic for a relay's producer group, in a consumer group of its relays."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException

from halfbridge.bridge.kafka_io import made, map_error, reader_settings
from halfbridge.sql.local_messages.dead_letters import letter_of

if TYPE_CHECKING:
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.sql.local_messages.dead_letters import Letter

_LOG = logging.getLogger("halfbridge.kafka")
# Records at a time, of up to 1 MiB each: 64 MiB, as much as the client reads ahead.
_BATCH_MAX = 64


class LetterReader:
    """A member of the group that reads dead letters. Not thread-safe.

    Offsets are committed once what was read has had its effect, so a letter may be read again.
    A group without offsets begins at the start of the topic.

    Args:
        config: The producer's: where Kafka is, and whose letters are wanted.
    """

    def __init__(self, config: BridgeConfig) -> None:
        self._producer_group = config.producer_group
        self._is_ahead = False  # of what was committed
        self._consumer: Any = made(
            Consumer,
            {
                **reader_settings(config),
                "group.id": config.names.relay_group(config.producer_group),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                "topic.metadata.refresh.interval.ms": 10_000,
            },
            logger=_LOG,
        )
        self._consumer.subscribe([config.names.dead])

    def read(self, timeout_s: float) -> list[Letter]:
        """Return letters of the group, waiting for the first record up to `timeout_s`.

        Raises:
            BridgeError: the topic is missing, or may not be read; an operator acts.
        """
        letters = []
        for record in self._consumer.consume(_BATCH_MAX, timeout_s):
            if record.error() is not None:
                raise map_error(record.error())
            self._is_ahead = True
            letter = letter_of(record, self._producer_group)
            if letter is not None:
                letters.append(letter)
        return letters

    def commit(self) -> None:
        """Commit what was read, whoever's; where that fails it is read again, without harm."""
        if not self._is_ahead:
            return
        with suppress(KafkaException):  # the partitions are another's now
            self._consumer.commit(asynchronous=False)
            self._is_ahead = False

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

"""A reader that tells only that something has come, while nothing else is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.loop.clients import client_config, unjoined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.ports import Kafka, Place
    from halfbridge.checker.config import CheckerConfig

# How long a broker keeps a question open while nothing comes; it answers at the first byte.
FETCH_WAIT_MS = 500
# What it hears is fetched again by others.
QUEUE_KBYTES_MAX = 1024


class Bell:
    """Listens to partitions whose reader rests: two requests a second, and no delay.

    Its own troubles are no news: the reader has them too.
    """

    def __init__(self, config: CheckerConfig, kafka: Kafka) -> None:
        self._reader = kafka.reader(
            {
                **client_config(config),
                **unjoined(config),
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.max.messages.kbytes": QUEUE_KBYTES_MAX,
            },
        )

    def listen(self, offsets: Mapping[Place, int]) -> None:
        """Listen from the given offsets on, to these partitions only."""
        self._reader.read_from(offsets)

    def rings(self, wait_s: float) -> bool:
        """Wait so long for a record, and return whether one came."""
        heard = self._reader.poll(wait_s)
        return heard is not None and heard.error() is None

    def rest(self) -> None:
        """Listen to nothing."""
        self._reader.read_from({})

    def close(self) -> None:
        """Let the brokers go."""
        self._reader.close()

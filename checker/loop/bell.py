"""The bell: a reader that notices new records while the worker's consumer rests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.loop.clients import client_config, unjoined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.ports import Kafka, Place
    from halfbridge.checker.config import CheckerConfig

# How long a broker keeps a fetch open without new records; it answers at the first byte.
FETCH_WAIT_MS = 500
# The worker's consumer fetches these records again.
QUEUE_KBYTES_MAX = 1024


class Bell:
    """Listens to partitions whose consumer rests: two requests a second, and no delay.

    Its errors are not logged, because the consumer has the same.
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
        """Listen to these partitions only, from the given offsets on."""
        self._reader.read_from(offsets)

    def rings(self, wait_s: float) -> bool:
        """Wait at most `wait_s` for a record; tell whether one came."""
        heard = self._reader.poll(wait_s)
        return heard is not None and heard.error() is None

    def rest(self) -> None:
        """Stop listening."""
        self._reader.read_from({})

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

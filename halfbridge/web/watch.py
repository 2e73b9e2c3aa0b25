"""Watches the daemons of the installation: their metrics every ten seconds, for the overview."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from halfbridge.web.overview import Overview, overview_of
from halfbridge.web.readings import Reading, reading_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.web.work import Work

# One answer costs a worker some milliseconds of its interpreter: 0.1 % of a second each.
SAMPLE_S = 10.0
READINGS_MAX = 90  # a quarter of an hour
FETCH_S = 2.0
ANSWER_BYTES_MAX = 8 * 1024 * 1024

_log = logging.getLogger("halfbridge.web")


@dataclass(frozen=True, slots=True)
class DaemonHealth:
    """What one daemon says of itself.

    Attributes:
        url: Address of its metrics port.
        healthy: Nothing needs an operator; None: the daemon does not answer.
        ready: The daemon does its work.
        reason: Why it is not healthy or not ready.
        partition_errors: What stopped a partition, by partition.
    """

    url: str
    healthy: bool | None
    ready: bool
    reason: str
    partition_errors: tuple[tuple[str, str], ...] = ()


class Watch:
    """Keeps the readings of the last quarter of an hour.

    Args:
        urls: Metrics ports, http://HOST:PORT.
        work: Asks them.
        monotonic: Tells the time, seconds.
    """

    def __init__(
        self, urls: tuple[str, ...], work: Work, *, monotonic: Callable[[], float]
    ) -> None:
        self._urls = urls
        self._work = work
        self._monotonic = monotonic
        self._readings: deque[Reading] = deque(maxlen=READINGS_MAX)
        self._health: tuple[DaemonHealth, ...] = ()

    @property
    def has_daemons(self) -> bool:
        """Whether there is an address to ask."""
        return bool(self._urls)

    @property
    def health(self) -> tuple[DaemonHealth, ...]:
        """What each daemon said at the last reading."""
        return self._health

    def overview(self) -> Overview | None:
        """Return the overview; None before the first reading."""
        return overview_of(tuple(self._readings)) if self._readings else None

    async def run(self) -> None:
        """Read every `SAMPLE_S` until this is cancelled."""
        while self._urls:
            try:
                await self.read()
            except Exception as error:  # noqa: BLE001 (the next reading may succeed)
                _log.warning("the metrics cannot be read: %s", error)
            await asyncio.sleep(SAMPLE_S)

    async def read(self) -> None:
        """Read now."""
        reading, health = await self._work.run(self._look)
        self._readings.append(reading)
        self._health = health

    def _look(self) -> tuple[Reading, tuple[DaemonHealth, ...]]:
        texts = [(url, fetch(url, "/metrics")) for url in self._urls]
        reading = reading_of(texts, at_s=self._monotonic())
        return reading, tuple(health_of(url, fetch(url, "/healthz")) for url in self._urls)


def health_of(url: str, text: str | None) -> DaemonHealth:
    """Return what the text of /healthz says."""
    if text is None:
        return DaemonHealth(url, healthy=None, ready=False, reason="does not answer")
    try:
        said = json.loads(text)
        errors = tuple((str(key), str(why)) for key, why in said["partition_errors"].items())
        return DaemonHealth(
            url, bool(said["healthy"]), bool(said["ready"]), str(said["reason"]), errors
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return DaemonHealth(url, healthy=None, ready=False, reason="is not a daemon of halfbridge")


def fetch(url: str, path: str) -> str | None:
    """Return what an address answers, whatever the status; None: nothing within `FETCH_S`."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=FETCH_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()

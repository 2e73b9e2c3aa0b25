"""Reads half records again by offset, for bodies that the ledger has dropped."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.loop.clients import QUESTION_S, client_config, unjoined
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Ports, Reader, Record

# A gap of at most this many records is read and skipped, instead of a new fetch of 1 KB records.
SKIP_MAX = 1000
# Interval at which the deadline is checked.
_SLICE_S = 0.2


class BodyReader:
    """Reads half records again by offset."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._topic = config.names.half
        self._reader = self._open()

    def read(self, partition: int, offsets: Iterable[int]) -> dict[int, Record]:
        """Return the records at `offsets`, by offset.

        Raises:
            InputLostError: a record cannot be read (deleted, or no broker answers).
        """
        found: dict[int, Record] = {}
        position = -1 - SKIP_MAX
        try:
            for offset in sorted(set(offsets)):
                if not position <= offset < position + SKIP_MAX:
                    self._reader.read_from({(self._topic, partition): offset})
                found[offset] = self._read_one(partition, offset)
                position = offset + 1
        except InputLostError:
            self._renew()
            raise
        self._reader.read_from({})
        return found

    def close(self) -> None:
        """Close the reader; waits no longer than `let_go`."""
        self._ports.run.let_go(self._reader)

    def _read_one(self, partition: int, offset: int) -> Record:
        monotonic = self._ports.clock.monotonic
        deadline = monotonic() + QUESTION_S
        while monotonic() < deadline:
            record = self._reader.poll(_SLICE_S)
            if record is None:
                continue
            if record.error() is not None:
                said = failure_of(record.error())
                raise InputLostError(f"{self._topic}[{partition}]@{offset}: {said}")
            position = record.offset() or 0
            if position == offset:
                return record
            if position > offset:
                break
            deadline = monotonic() + QUESTION_S  # the reader makes progress
        raise InputLostError(f"{self._topic}[{partition}]@{offset} cannot be read again")

    def _renew(self) -> None:
        """Replace the reader, because the old one may have stalled (`StallWatch`)."""
        with suppress(ConfigError):  # not possible now: the old reader is kept
            old, self._reader = self._reader, self._open()
            self._ports.run.let_go(old)

    def _open(self) -> Reader:
        config = self._config
        return self._ports.kafka.reader(
            {
                **client_config(config),
                **unjoined(config),
                "check.crcs": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 4096,
                "fetch.wait.max.ms": 10,
            },
        )

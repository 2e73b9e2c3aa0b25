"""The settings topic, read: what is found, what ends the reading, and in whose words it fails."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.kafka import settings_topic
from halfbridge.kafka.errors import KafkaFailure, RetriableError
from halfbridge.kafka.settings_topic import LimitsRecord, read_settings
from halfbridge.serde.settings_topic import DAEMON_KEY

TOPIC = "settings"


class _Clock:
    """Goes on by one poll each time that somebody looks."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the next time."""
        self.now += 0.1
        return self.now

    def time_ms(self) -> int:
        return int(self.now * 1000)


class _Reader:
    """Hands over what a test gives, then nothing more.

    Attributes:
        failure: Why the topic cannot be read.
        begun: Arguments that `read_from` received.
    """

    def __init__(self, *records: Any) -> None:
        self._records = list(records)
        self.failure: KafkaFailure | None = None
        self.begun: dict[Any, int] = {}

    def topic_failure(self, topic: str, timeout_s: float) -> KafkaFailure | None:
        assert (topic, timeout_s) == (TOPIC, settings_topic.READ_S)
        return self.failure

    def read_from(self, offsets: dict[Any, int]) -> None:
        """Note where reading begins."""
        self.begun = offsets

    def poll(self, wait_s: float) -> Any:
        """Return the next record."""
        assert wait_s
        record = self._records.pop(0) if self._records else None
        if isinstance(record, Exception):
            raise record
        return record


def _record(offset: int, value: bytes | None, key: bytes | None = DAEMON_KEY) -> Any:
    reported = {"offset": offset, "value": value, "key": key, "error": None}
    return SimpleNamespace(**{name: lambda it=it: it for name, it in reported.items()})


def _read(reader: Any, stop: Event | None = None) -> tuple[list[LimitsRecord], int]:
    return read_settings(reader, TOPIC, stop=stop or Event(), clock=_Clock())


def test_a_log_whose_end_does_not_come_is_given_up() -> None:
    """After `READ_S` by the clock that was given, and at once after a stop."""
    with pytest.raises(RetriableError, match="not read to its end"):
        _read(_Reader())
    stop = Event()
    stop.set()
    with pytest.raises(RetriableError):
        _read(_Reader(_record(0, None)), stop)

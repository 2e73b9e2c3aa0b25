"""Troubles: the same kind of error is told once in a while, not at each reconnection."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.bridge.trouble import SAME_AGAIN_S, Troubles, shown

if TYPE_CHECKING:
    import pytest


@dataclass
class Error:
    """Stands for a KafkaError."""

    number: int
    text: str

    def code(self) -> int:
        """Return its number."""
        return self.number

    def str(self) -> str:
        """Return its text."""
        return self.text


def test_each_kind_is_told_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second of reconnections is one line; the next one says how many were kept back."""
    clock = [100.0]
    monkeypatch.setattr("halfbridge.bridge.trouble.monotonic", lambda: clock[0])
    troubles = Troubles(logging.getLogger("halfbridge.kafka"))
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            troubles.note(Error(-195, "refused"))
            clock[0] += 0.05
        troubles.note(Error(-187, "all brokers are down"))
        clock[0] += SAME_AGAIN_S
        troubles.note(Error(-195, "refused"))
    assert caplog.messages == [
        "Kafka: refused",
        "Kafka: all brokers are down",
        "Kafka: refused (and 19 times since the last report)",
    ]


def test_a_log_handler_that_raises_is_kept_from_the_client() -> None:
    """Out of a callback it would cost the records that the client was about to hand over."""
    log = logging.getLogger("halfbridge.raises")
    seen = []

    def raising(record: logging.LogRecord) -> bool:
        seen.append(record)
        raise RuntimeError("a filter of the user's")

    log.addFilter(raising)
    Troubles(log).note(Error(-195, "refused"))
    assert len(seen) == 1


class _Unspeakable(BaseException):
    def __repr__(self) -> str:
        raise SystemExit


def test_an_answer_that_cannot_be_shown_is_told_all_the_same() -> None:
    """The reason of an uncounted answer holds what a checker raised or returned, in words."""
    assert shown(ValueError("database down")) == "ValueError('database down')"
    assert shown(_Unspeakable()) == "a _Unspeakable, whose repr raised SystemExit"

"""The settings topic, read with a reader of the client library (for callers without ports)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bridge import settings_topic
from halfbridge.bridge.kafka import system_ports
from halfbridge.bridge.settings_topic import READING, Said

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.ports import Event

__all__ = ["Said", "read_settings"]


def read_settings(client: Mapping[str, Any], topic: str, *, stop: Event) -> tuple[list[Said], int]:
    """Do as `settings_topic.read_settings`, with a reader of these properties."""
    ports = system_ports()
    reader = ports.kafka.reader({**client, **READING})
    try:
        return settings_topic.read_settings(reader, topic, stop=stop, clock=ports.clock)
    finally:
        ports.run.let_go(reader)

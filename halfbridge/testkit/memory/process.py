"""A simulated process: tasks, clients and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    from halfbridge.testkit.memory.client import Client


class ProcessDeadError(BaseException):
    """A call on behalf of a killed process; a BaseException, so `except Exception` misses it."""


class Process:
    """Tasks and clients that die together, and their clocks.

    Attributes:
        name: Shown in error texts; the key in `Broker.rights`.
        skew_ns: Reading of its monotonic clock at the start of virtual time.
        skew_ms: How far its wall clock is ahead of true time; may be changed.
        is_frozen: It is paused, heartbeats included, like a paused virtual machine.
    """

    __slots__ = ("_clients", "is_dead", "is_frozen", "name", "skew_ms", "skew_ns")

    def __init__(self, name: str, *, skew_s: float = 0.0, skew_ms: int = 0) -> None:
        self.name = name
        self.skew_ns = int(skew_s * NS_PER_S)
        self.skew_ms = skew_ms
        self.is_dead = False
        self.is_frozen = False
        self._clients: list[ref[Client]] = []

    @property
    def clients(self) -> list[Client]:
        """Its Kafka clients that are neither closed nor garbage-collected, in order of creation."""
        alive = [client for each in self._clients if (client := each()) is not None]
        return [client for client in alive if not client.is_closed]

    def add(self, client: Client) -> None:
        """Add a client by weak reference: writers and admins are dropped rather than closed."""
        self._clients = [each for each in self._clients if each() is not None]
        self._clients.append(ref(client))

"""What dies together."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class ProcessDeadError(BaseException):
    """A call on behalf of a process that was killed; no `except Exception` may hold this up."""


class Process:
    """What dies together: tasks, clients, and a clock of its own.

    Attributes:
        name: For people.
        skew_ns: What its monotonic clock shows at the beginning of virtual time.
        skew_ms: How far its other clock is ahead of true time.
        is_dead: It was killed.
        is_frozen: It stands still, heartbeats included, as in a pause of a virtual machine.
        clients: Its Kafka clients that are not closed.
    """

    __slots__ = ("clients", "is_dead", "is_frozen", "name", "skew_ms", "skew_ns")

    def __init__(self, name: str, *, skew_s: float = 0.0, skew_ms: int = 0) -> None:
        self.name = name
        self.skew_ns = int(skew_s * NS_PER_S)
        self.skew_ms = skew_ms
        self.is_dead = False
        self.is_frozen = False
        self.clients: list[Dying] = []


class Dying:
    """What is told when its process is killed."""

    def die(self) -> None:
        """Go dead at once, as when connections drop."""

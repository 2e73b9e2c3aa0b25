"""The shipped producer, in a process that may die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bridge import TransactionProducer

if TYPE_CHECKING:
    from halfbridge.testkit.memory.process import Process

_CLOSE_S = 10.0  # of the virtual clock, as the real client's close


class MemoryProducer(TransactionProducer):
    """The shipped producer, in a process of the stack.

    Attributes:
        process: What dies with it.
    """

    def __init__(self, process: Process, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.process = process

    def close(self, timeout: float = _CLOSE_S) -> None:
        """As TransactionProducer.close; nothing is done for a process that has died."""
        if not self.process.is_dead:
            super().close(timeout)

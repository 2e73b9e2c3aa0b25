"""Topics of one test in a stack that many tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfbridge.testkit.memory import MemoryStack
    from halfbridge.testkit.stack import HalfbridgeStack


class OwnTopics:
    """Real topics that belong to one test: what another one sends never comes out of them.

    Args:
        stack: Where they are made; they are deleted with it.
        prefix: Before each name.
    """

    def __init__(self, stack: HalfbridgeStack | MemoryStack, prefix: str) -> None:
        self._stack = stack
        self.prefix = prefix

    def create(self, name: str, *, partitions: int = 1) -> str:
        """Make a topic, and return its full name."""
        return self._stack.create_topic(self.prefix + name, partitions=partitions)

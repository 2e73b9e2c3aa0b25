"""What a process keeps for all its batches: Spark uses its Python workers again and again."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

V = TypeVar("V")

# Of clients and what goes with them: a process serves a cluster or two, seldom more; each may hold
# a queue of 64 MiB.
CLIENTS_MAX = 8
# Of numbers and marks, an app each: a driver runs fewer, and one costs a few hundred bytes.
MARKS_MAX = 1_000


class Kept(Generic[V]):
    """At most `size_max` values; beyond it, the one that was not used for longest is let go.

    After a fork it is empty. What the parent kept is neither used nor destroyed in the child: the
    threads of a Kafka client do not survive a fork, and its destructor would wait for them.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._parents: list[OrderedDict[Hashable, V]] = []
        self._process = os.getpid()
        self._lock = Lock()

    def get(self, key: Hashable) -> V | None:
        """Return a value, which counts as its use; None without one."""
        with self._lock:
            values = self._own()
            if key in values:
                values.move_to_end(key)
            return values.get(key)

    def put(self, key: Hashable, value: V) -> V:
        """Keep a value, in place of an earlier one, and return it."""
        with self._lock:
            values = self._own()
            values[key] = value
            values.move_to_end(key)
            if len(values) > self._size_max:
                values.popitem(last=False)
            return value

    def _own(self) -> OrderedDict[Hashable, V]:
        if self._process != os.getpid():
            self._parents.append(self._values)
            self._values = OrderedDict()
            self._process = os.getpid()
        return self._values

"""Bounded caches of a process that outlive a batch, because Spark reuses its Python workers."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

V = TypeVar("V")

# For clients: a process rarely serves more than two clusters, and each client may hold a queue of
# 64 MiB.
CLIENTS_MAX = 8
# For numbers and flags, one per app: a driver runs fewer apps, and each costs a few hundred bytes.
MARKS_MAX = 1_000


class Kept(Generic[V]):
    """At most `size_max` values; beyond that, the least recently used one is dropped.

    After a fork it is empty. The parent's values are neither used nor destroyed in the child: the
    threads of a Kafka client do not survive a fork, and its destructor would wait for them.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._parents: list[OrderedDict[Hashable, V]] = []
        self._process = os.getpid()
        self._lock = Lock()

    def get(self, key: Hashable) -> V | None:
        """Return the value and mark it as used; None if there is none."""
        with self._lock:
            values = self._own()
            if key in values:
                values.move_to_end(key)
            return values.get(key)

    def put(self, key: Hashable, value: V) -> V:
        """Keep a value, replacing an earlier one, and return it."""
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

"""The state of one Spark process that outlives a batch: ports, clients and flags.

Spark reuses its Python workers, and makes a new data source and writer for each call. State that
must live longer is kept here. None of it is pickled: a writer on an executor uses the state of the
executor's process, `sink_process()`. All caches are bounded.
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.threads import locked
from halfbridge.spark_jobs.sink.dead_letters import DeadLetters
from halfbridge.spark_jobs.sink.log import ManifestLog
from halfbridge.spark_jobs.sink.sender import Decider, HalfSender

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from halfbridge.kafka.ports import Ports
    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.spark_jobs.sink.options import SinkOptions


class SinkProcess:
    """Clients and flags of one process. Thread-safe, except for the senders of tasks."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self._senders: BoundedCache[HalfSender] = BoundedCache(CLIENTS_MAX)
        self._deciders: BoundedCache[Decider] = BoundedCache(CLIENTS_MAX)
        self._logs: BoundedCache[ManifestLog] = BoundedCache(CLIENTS_MAX)
        self._dead_letters: BoundedCache[DeadLetters] = BoundedCache(CLIENTS_MAX)
        # App and cluster -> the latest batch whose COMMITs this process has written.
        self.decided: BoundedCache[int] = BoundedCache(MARKS_MAX)
        # Group, age and cluster whose topics and limits were checked and correct.
        self.checked: BoundedCache[bool] = BoundedCache(MARKS_MAX)
        # App and cluster -> the winner that was shown last, without its attempts. A manifest may
        # have 70,000 transactions, and so is decoded only once.
        self.shown: BoundedCache[BatchManifest] = BoundedCache(MARKS_MAX)

    @property
    def actor(self) -> str:
        """This process's name in records, for people."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def new_attempts_sender(self, options: SinkOptions) -> HalfSender:
        """Return the sender for the options; a new one if the last has failed or is outdated.

        Spark's Python workers outlive a query, and an operator may have raised limits since.
        """
        key = options.client_key()
        sender = self._senders.get(key)
        if sender is None or sender.is_broken or sender.is_outdated:
            sender = self._senders.put(key, HalfSender(options, self.ports))
        return sender

    @contextmanager
    def decider(self, options: SinkOptions) -> Iterator[Decider]:
        """Yield the Decider for the options for the time of the block, locked.

        Several threads of a responder may call this. They share one Decider, which is replaced when
        it has failed.
        """
        key = options.client_key()
        while True:  # a turn for each Decider that failed while this thread waited for it
            decider = self._deciders.get(key)
            if decider is None or decider.is_broken:
                decider = Decider(options, self.ports, actor=self.actor)
                self._deciders.put(key, decider)
            with locked(decider.lock):
                if not decider.is_broken:
                    yield decider
                    return

    def log(self, options: SinkOptions) -> ManifestLog:
        """Return the ManifestLog for the options."""
        key = (options.commit_timeout_ms, *options.client_key())
        return self._logs.get(key) or self._logs.put(key, ManifestLog(options, self.ports))

    def dead_letters(self, options: SinkOptions) -> DeadLetters:
        """Return the DeadLetters for the options."""
        key = (options.app_id, options.producer_group, *options.client_key())
        known = self._dead_letters.get(key)
        return known or self._dead_letters.put(key, DeadLetters(options, self.ports))


@cache
def sink_process() -> SinkProcess:
    """Return the state of this process, with the system's ports."""
    return SinkProcess(system_ports())


V = TypeVar("V")
# Most clients of a kind: a process rarely serves more than two clusters, and each client may have
# a queue of 64 MiB.
CLIENTS_MAX = 8
# Most numbers and flags of a kind, one per app: a driver runs fewer apps, and each costs a few
# hundred bytes.
MARKS_MAX = 1_000


class BoundedCache(Generic[V]):
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

"""Free ports on the loopback interface."""

from __future__ import annotations

import os
import random
import socket
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
# Below every system's ephemeral range (Linux 32768, macOS 49152): a client that reconnects to a
# dead broker's port in that range can be given that very port as its own and connect to itself.
_LOWEST, _HIGHEST = 15_000, 32_000
# A process gets the ports of one block in turn. So it gets a port a second time after 498 others,
# when the broker that had the port has long been restarted. There are blocks for 34 processes.
# The first port of a block is never handed out: it is the lock of the block.
_BLOCK_PORTS = 500
_random = random.SystemRandom()


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different ports that nobody listens on at this moment.

    No other process gets one of these ports, as long as this process lives and at most 34
    processes call this function. The same process gets one again after 498 others, so a killed
    broker can be restarted on its ports. Other programs may take one; the code that starts a server
    retries.

    Raises:
        OSError: among 499 ports too few are free; the user must free some.
    """
    found: list[int] = []
    for _ in range(_BLOCK_PORTS):
        if len(found) == count:
            return tuple(found)
        port = _mine.next_port()
        if is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST} on {HOST}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` at this moment."""
    with socket.socket() as probe:
        # As the JVM binds: connections of a dead broker in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class _Block:
    """The ports of this process; thread-safe."""

    def __init__(self) -> None:
        self._one_at_a_time = Lock()
        self._pid = 0  # a forked child claims a block of its own
        self._ports: Sequence[int] = ()
        self._drawn = count()

    def next_port(self) -> int:
        """Return the next port of the block, whether or not it is free."""
        with self._one_at_a_time:
            if self._pid != os.getpid():
                self._claim()
            return self._ports[next(self._drawn) % len(self._ports)]

    def _claim(self) -> None:
        firsts = list(range(_LOWEST, _HIGHEST, _BLOCK_PORTS))
        _random.shuffle(firsts)
        self._pid, self._drawn = os.getpid(), count()
        for first in firsts:
            if _lock_block(first):
                self._ports = range(first + 1, first + _BLOCK_PORTS)
                return
        # More processes than blocks: any ports, in any order.
        self._ports = _random.sample(range(_LOWEST, _HIGHEST), k=_BLOCK_PORTS - 1)


def _lock_block(first: int) -> bool:
    """Lock the block that begins at `first`; False: another process has it.

    Bound without SO_REUSEADDR, a port belongs to one socket on the machine, whoever the user. The
    descriptor stays open, so that the lock ends with the process. No file is left behind.
    """
    with socket.socket() as lock:
        try:
            lock.bind((HOST, first))
        except OSError:
            return False
        lock.detach()
    return True


_mine = _Block()

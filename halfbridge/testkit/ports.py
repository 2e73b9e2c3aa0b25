"""Free ports on the loopback interface."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
# Below every system's ephemeral range (Linux 32768, macOS 49152): a client that reconnects to a
# dead broker's port in that range can be given that very port as its own and connect to itself.
_LOWEST, _HIGHEST = 15_000, 32_000
# A process is given the ports of one block in turn. So it is given a port a second time after 500
# others, when the broker that had the port has long been started again. 34 processes have a block.
_BLOCK_PORTS = 500
_random = random.SystemRandom()


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different ports that nobody listens on at this moment.

    No other process of this user is given one of these ports, as long as this process lives, and
    the same process is given one again after 499 others. So a broker that is killed can be started
    again on its ports. Programs that do not ask here may take one; whoever starts a server tries
    again.

    Raises:
        OSError: among 500 ports too few are free; the user must free some.
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
    """Tell whether a server could listen on `port` at this moment."""
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
        self._pid = 0  # a child that a fork made claims a block of its own
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
                self._ports = range(first, first + _BLOCK_PORTS)
                return
        # More processes than blocks, or no directory for temporary files: any ports, in any order.
        self._ports = _random.sample(range(_LOWEST, _HIGHEST), k=_BLOCK_PORTS)


def _lock_block(first: int) -> bool:
    """Lock the block that begins at `first`; False: another process has it.

    The file stays open, so that the lock ends with the process.
    """
    directory = Path(tempfile.gettempdir()) / f"halfbridge-ports-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(directory / str(first), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True


_mine = _Block()

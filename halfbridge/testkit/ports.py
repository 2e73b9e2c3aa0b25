"""Free ports on the loopback interface."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below every system's ephemeral range (Linux 32768, macOS 49152): a client that reconnects to a
# dead broker's port in that range can be given that very port as its own and connect to itself.
_LOWEST, _HIGHEST = 15_000, 32_000
_TRIES_MAX = 200
_random = random.SystemRandom()


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different ports that nobody listens on at this moment.

    Another process may take one before it is used; whoever starts a server tries again.

    Raises:
        OSError: none was found in 200 tries; the user must free some.
    """
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            return tuple(found)
        port = _random.randrange(_LOWEST, _HIGHEST)
        if port not in found and is_free(port):
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

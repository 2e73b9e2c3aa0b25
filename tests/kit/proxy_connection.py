"""A client's connection through the proxy and the one to the server that belongs to it."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import Any

from tests.kit.proxy_faults import Faults, Mode
from tests.kit.proxy_lane import Lane

# How long a server is given to take what arrives from a client that is gone already.
STRANDED_S_MAX = 5.0
SILENT = frozenset((Mode.DROP_ANSWERS, Mode.BLACKHOLE))
_AT_ONCE = pack("ii", 1, 0)  # a linger of 0 s: closing sends a reset, not an orderly end


class Side(asyncio.Protocol):
    """One end of a connection: bytes go to `take`, the end to `ended`."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[Side], None]) -> None:
        self._take = take
        self._ended = ended
        self.transport: Any = None
        self.peer: Side | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether something can be written."""
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Asyncio's: bytes came."""
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's: the connection has ended, in order or not."""
        self._ended(self)

    def pause_writing(self) -> None:
        """Asyncio's: too much waits to be sent, so read no more of it."""
        if self.peer is not None and self.peer.is_open:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Asyncio's: it was sent."""
        if self.peer is not None and self.peer.is_open:
            self.peer.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send, unless the connection has ended."""
        if self.is_open:
            self.transport.write(data)

    def reset(self) -> None:
        """Send a reset at once, and nothing that waits."""
        if self.is_open:
            self.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
            self.transport.abort()

    def finish(self) -> None:
        """Send what was written, then an orderly end."""
        if self.transport is not None:
            self.transport.close()


class Connection(ABC):
    """Both ends; what passes between them is the subclass's to say.

    Args:
        faults: Those of the proxy.
        node: The server, as the routes number it.
        closed: Called when the connection is no more.
    """

    def __init__(self, faults: Faults, node: int, closed: Callable[[Connection], None]) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.torn = False  # something was swallowed: no TCP connection continues after a hole
        self.client = Side(self.requests, self.ended)
        self.broker = Side(self.answers, self.ended)
        self.faults = faults
        self.closed = closed
        self.to_broker = Lane(loop, self.broker.write)
        self.to_client = Lane(loop, self.client.write)

    @property
    def mode(self) -> Mode:
        """What becomes of everything with this server."""
        return self.faults.mode(self.node)

    @property
    def delay_s(self) -> float:
        """How late everything arrives, each way."""
        return self.faults.delays_ms.get(self.node, 0) / 1000

    @abstractmethod
    def requests(self, data: bytes) -> None:
        """Take what the client sent."""

    @abstractmethod
    def answers(self, data: bytes) -> None:
        """Take what the server sent."""

    @abstractmethod
    def ended(self, side: Side) -> None:
        """Learn that one side has ended, in order or not."""

    async def connect(self, host: str, port: int) -> None:
        """Connect to the server; a server that is not there resets the client."""
        self.client.transport.pause_reading()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.broker, host, port)
        except OSError:
            self.faults.counts["refused"] += 1
            self.client.reset()
            return
        self.client.peer, self.broker.peer = self.broker, self.client
        if self.client.transport.is_closing():
            self.broker.reset()
        else:
            self.client.transport.resume_reading()

    def reset(self) -> None:
        """Reset both ends."""
        self.client.reset()
        self.broker.reset()

    def swallow(self, what: str, count: int) -> None:
        """Note that something did not arrive."""
        self.torn = True
        self.faults.counts[f"{what} lost"] += count

    def give_up(self, error: Exception) -> None:
        """Reset a connection that cannot go on, and say why."""
        sys.stderr.write(f"proxy: a connection to server {self.node} is reset: {error}\n")
        self.reset()

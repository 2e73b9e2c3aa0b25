"""The proxy's own process: listeners in front of brokers, steered over standard input.

Reads one line of JSON a command and answers each with one. Ends when standard input does, so it
never outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import TYPE_CHECKING, Any

from halfbridge.testkit.ports import HOST
from halfbridge.testkit.proxy_answers import with_error
from halfbridge.testkit.proxy_faults import Act, Faults, Mode, rule_from
from halfbridge.testkit.proxy_frames import (
    Frames,
    NotKafkaError,
    answer_header,
    refusal,
    request_header,
)
from halfbridge.testkit.proxy_lane import Lane, LaneFullError

if TYPE_CHECKING:
    from collections.abc import Callable

# How long a broker is given to take what arrives from a client that is gone already.
STRANDED_S_MAX = 5.0
_AT_ONCE = pack("ii", 1, 0)  # a linger of 0 s: closing sends a reset, not an orderly end
_ON_REQUESTS = (Act.HOLD, Act.STRAND, Act.REFUSE)
_SILENT = frozenset((Mode.DROP_ANSWERS, Mode.BLACKHOLE))


class _Side(asyncio.Protocol):
    """One end of a connection: bytes go to `take`, its end to `ended`."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[_Side], None]) -> None:
        self._take = take
        self._ended = ended
        self.transport: Any = None
        self.peer: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ended(self)

    def pause_writing(self) -> None:
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def reset(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
            self.transport.abort()


class Connection:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: Proxy, node: int) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.torn = False  # something was swallowed: no TCP connection goes on after a hole
        self.client = _Side(self._requests, self._ended)
        self.broker = _Side(self._answers, self._ended)
        self._proxy = proxy
        self._faults = proxy.faults
        self._request_frames, self._answer_frames = Frames(), Frames()
        self._open: dict[int, tuple[int, int]] = {}  # correlation id -> api key and version
        self._to_broker = Lane(loop, self.broker.write)
        self._to_client = Lane(loop, self.client.write)

    async def connect(self, host: str, port: int) -> None:
        """Connect to the broker; a broker that is not there resets the client."""
        self.client.transport.pause_reading()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.broker, host, port)
        except OSError:
            self._proxy.faults.counts["refused"] += 1
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

    def _requests(self, data: bytes) -> None:
        try:
            frames = self._request_frames.feed(data)
            self._pass_requests(frames)
        except (NotKafkaError, LaneFullError, ValueError) as error:
            self._give_up(error)

    def _pass_requests(self, frames: list[bytes]) -> None:
        faults, node = self._faults, self.node
        delay_s = faults.delays_ms.get(node, 0) / 1000
        if faults.mode(node) is Mode.BLACKHOLE:
            self._swallow("requests", len(frames))
            return
        plain: list[bytes] = []
        stranded = False
        for frame in frames:
            api, version, correlation_id = request_header(frame)
            self._open[correlation_id] = api, version
            rule = faults.take(node, api, _ON_REQUESTS, frame=frame)
            if rule is None:
                plain.append(frame)
                continue
            if rule.act is Act.REFUSE:
                del self._open[correlation_id]
                self._to_client.put(refusal(frame, rule.error), delay_s)
                continue
            self._to_broker.put(b"".join(plain), delay_s)
            plain = []
            self._to_broker.put(frame, delay_s + rule.delay_ms / 1000)
            stranded = stranded or rule.act is Act.STRAND
        self._to_broker.put(b"".join(plain), delay_s)
        if stranded:
            self.client.reset()

    def _answers(self, data: bytes) -> None:
        try:
            frames = self._answer_frames.feed(data)
            self._pass_answers(frames)
        except (NotKafkaError, LaneFullError) as error:
            self._give_up(error)

    def _pass_answers(self, frames: list[bytes]) -> None:
        faults, node = self._faults, self.node
        silent = faults.mode(node) in _SILENT
        plain: list[bytes] = []
        for frame in frames:
            api, version = self._open.pop(answer_header(frame), (-1, 0))
            if silent:
                self._swallow("answers", 1)
                continue
            rule = faults.take(node, api, (Act.SWALLOW, Act.FAIL))
            if rule is None:
                plain.append(frame)
            elif rule.act is Act.SWALLOW:
                self.torn = True
            else:
                plain.append(with_error(api, version, frame, code=rule.error))
        self._to_client.put(b"".join(plain), faults.delays_ms.get(node, 0) / 1000)

    def _swallow(self, what: str, count: int) -> None:
        self.torn = True
        self._faults.counts[f"{what} lost"] += count

    def _give_up(self, error: Exception) -> None:
        sys.stderr.write(f"proxy: a connection to broker {self.node} is reset: {error}\n")
        self.reset()

    def _ended(self, side: _Side) -> None:
        """End the other side too; what the client had sent arrives first, as it would by TCP."""
        if side is self.broker:
            self._to_broker.close()
            self.client.reset()
        elif left_s := self._to_broker.left_s:
            loop = asyncio.get_running_loop()
            loop.call_later(left_s + STRANDED_S_MAX, self.broker.reset)
        else:
            self.broker.reset()
        self._to_client.close()
        self._proxy.connections.discard(self)


class Proxy:
    """All listeners, their connections and the faults between them."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, node: int, port: int, *, broker_port: int) -> None:
        """Listen on `port` for the broker on `broker_port`."""
        loop = asyncio.get_running_loop()

        def accept() -> asyncio.Protocol:
            return _Accepting(self, node, broker_port)

        self._servers.append(await loop.create_server(accept, HOST, port))

    def opened(self, connection: Connection, broker_port: int) -> None:
        """Take a client's new connection."""
        self.faults.counts["connections"] += 1
        if self.faults.mode(connection.node) is Mode.CUT:
            self.faults.counts["refused"] += 1
            connection.client.reset()
            return
        self.connections.add(connection)
        task = asyncio.ensure_future(connection.connect(HOST, broker_port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says, and return the answer."""
        word = command["do"]
        if word == "link":
            self._set_link(command["nodes"], Mode(command["mode"]), int(command["delay_ms"]))
        elif word == "rule":
            self.faults.add(rule_from(command["rule"]))
        elif word == "heal":
            self.faults.clear_rules()
            self._set_link(list(self.faults.modes), Mode.OPEN, 0)
            self._reset(lambda connection: connection.torn, "reset when healed")
        elif word != "counts":
            raise ValueError(f"no such command: {word}")
        return {"counts": dict(self.faults.counts), "connections": len(self.connections)}

    def _set_link(self, nodes: list[int], mode: Mode, delay_ms: int) -> None:
        self.faults.set_link(nodes, mode, delay_ms)
        hit = set(nodes)
        if mode is Mode.CUT:
            self._reset(lambda connection: connection.node in hit, "cut")
        elif mode is Mode.OPEN:
            self._reset(
                lambda connection: connection.torn and connection.node in hit, "reset when healed"
            )

    def _reset(self, chosen: Callable[[Connection], bool], what: str) -> None:
        for connection in [each for each in self.connections if chosen(each)]:
            self.faults.counts[what] += 1
            connection.reset()


class _Accepting(asyncio.Protocol):
    """What asyncio makes for a new client: hands the socket over to a connection."""

    def __init__(self, proxy: Proxy, node: int, broker_port: int) -> None:
        self._proxy = proxy
        self._node = node
        self._broker_port = broker_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = Connection(self._proxy, self._node)
        connection.client.connection_made(transport)
        transport.set_protocol(connection.client)
        self._proxy.opened(connection, self._broker_port)


async def serve() -> None:
    """Serve until standard input ends; its first line has the routes."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    proxy = Proxy()
    try:
        for node, port, broker_port in json.loads(await reader.readline()):
            await proxy.listen(node, port, broker_port=broker_port)
    except OSError as error:
        _say({"error": str(error)})
        return
    _say({"counts": {}, "connections": 0})
    while line := await reader.readline():
        _say(_obeyed(proxy, line))


def _obeyed(proxy: Proxy, line: bytes) -> dict[str, Any]:
    try:
        return proxy.obey(json.loads(line))
    except (ValueError, KeyError) as error:
        return {"error": repr(error)}


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve())

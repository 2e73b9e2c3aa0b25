"""The proxy's own process: listeners in front of servers, steered over standard input.

Reads one line of JSON a command and answers each with one. Ends when standard input does, so it
never outlives whoever started it.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from halfbridge.testkit.ports import HOST
from tests.kit.proxy_connection import Connection
from tests.kit.proxy_faults import Faults, Mode, rule_from
from tests.kit.proxy_kafka import KafkaConnection
from tests.kit.proxy_raw import RawConnection

_CLOSED = frozenset((Mode.CUT, Mode.REFUSE))  # to new connections


class Proxy:
    """All listeners, their connections and the faults between them.

    Args:
        kind: What its connections understand of what passes.
    """

    def __init__(self, kind: type[Connection]) -> None:
        self.faults = Faults()
        self.kind = kind
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, node: int, port: int, *, broker_port: int) -> None:
        loop = asyncio.get_running_loop()

        def accept() -> asyncio.Protocol:
            return _Accepting(self, node, broker_port)

        self._servers.append(await loop.create_server(accept, HOST, port))

    def opened(self, connection: Connection, broker_port: int) -> None:
        """Take a client's new connection."""
        self.faults.counts["connections"] += 1
        if self.faults.mode(connection.node) in _CLOSED:
            self.faults.counts["refused"] += 1
            connection.client.reset()
            return
        self.connections.add(connection)
        task = asyncio.ensure_future(connection.connect(HOST, broker_port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
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
        proxy = self._proxy
        connection = proxy.kind(proxy.faults, self._node, proxy.connections.discard)
        connection.client.connection_made(transport)
        transport.set_protocol(connection.client)
        self._proxy.opened(connection, self._broker_port)


async def serve() -> None:
    """Serve until standard input ends; its first line has the routes, and whether bytes are raw."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = json.loads(await reader.readline())
    proxy = Proxy(RawConnection if first["raw"] else KafkaConnection)
    try:
        for node, port, broker_port in first["routes"]:
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

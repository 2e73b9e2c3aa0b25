"""A server in the test's own process, connection by connection, and reading of what it sends."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from halfbridge.testkit.ports import HOST

LIMIT_S = 20.0
SILENCE_S = 0.3


class Server:
    """Listens on a free port; `serve` has each connection in a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._socket = socket.create_server((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)


def receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly `count` bytes; fewer at an orderly end."""
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


def is_silent(connection: socket.socket) -> bool:
    """Tell whether the connection stays open and silent for a moment."""
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LIMIT_S)
    return False

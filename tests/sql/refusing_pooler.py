"""A fake PgBouncer, which refuses a client that gives settings at the start of its connection."""

import socket
import struct
from threading import Thread

_LENGTH = struct.Struct("!i")
_CHUNK = 65_536
_HOST = "127.0.0.1"
_ENCRYPTION_CODES = {80_877_103, 80_877_104}  # SSLRequest, GSSENCRequest: "N" declines
_TEXT = "unsupported startup parameter in options: statement_timeout"


class RefusingPooler:
    """Refuses clients that give `options` with PgBouncer 1.20's error; forwards the others.

    It speaks the protocol on a real socket, but does not share connections between clients.

    Args:
        server_port: PostgreSQL's, on the loopback interface.

    Attributes:
        port: For clients.
        refused: How many connections were refused.
    """

    def __init__(self, server_port: int) -> None:
        self.refused = 0
        self._server_port = server_port
        self._listening = socket.create_server((_HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            startup = _startup(client)
            if b"\0options\0" in startup:
                self.refused += 1
                fields = f"SFATAL\0C08P01\0M{_TEXT}\0\0".encode()
                client.sendall(b"E" + _LENGTH.pack(4 + len(fields)) + fields)
                return
            with socket.create_connection((_HOST, self._server_port)) as server:
                server.sendall(startup)
                answers = Thread(target=_pass, args=(server, client), daemon=True)
                answers.start()
                _pass(client, server)
                answers.join()


def _startup(client: socket.socket) -> bytes:
    """Return the startup message; requests for encryption before it are declined."""
    while True:
        head = client.recv(4, socket.MSG_WAITALL)
        (length,) = _LENGTH.unpack(head)
        body = client.recv(length - 4, socket.MSG_WAITALL)
        if _LENGTH.unpack(body[:4])[0] not in _ENCRYPTION_CODES:
            return head + body
        client.sendall(b"N")


def _pass(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until the end of the stream."""
    try:
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other side has gone
        return

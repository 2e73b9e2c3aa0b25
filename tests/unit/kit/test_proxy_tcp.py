"""The proxy of any protocol: plain sockets, and a server that greets first, as databases do."""

import socket
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from time import monotonic

import pytest

from halfbridge.testkit.ports import HOST
from tests.kit.proxy_tcp import Act, TcpProxy
from tests.kit.sockets import LIMIT_S, SILENCE_S, Server, is_silent, receive

pytestmark = pytest.mark.process

GREETING = b"hello "  # no frame of Kafka's


class EchoServer(Server):
    """Greets each client, sends back what it reads; notes what arrives, b"" at an end."""

    def __init__(self) -> None:
        self.arrived: SimpleQueue[bytes] = SimpleQueue()
        self.served: SimpleQueue[socket.socket] = SimpleQueue()
        super().__init__(self._echo)

    def next(self) -> bytes:
        return self.arrived.get(timeout=LIMIT_S)

    def _echo(self, connection: socket.socket) -> None:
        self.served.put(connection)
        try:
            connection.sendall(GREETING)
            while data := connection.recv(65_536):
                self.arrived.put(data)
                connection.sendall(data)
            self.arrived.put(b"")
        except OSError:
            self.arrived.put(b"reset")


@pytest.fixture
def server() -> Iterator[EchoServer]:
    made = EchoServer()
    yield made
    made.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as started:
        yield started


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    """A connection through it that was greeted."""
    with connected(proxy) as made:
        assert receive(made, len(GREETING)) == GREETING
        yield made


def connected(proxy: TcpProxy) -> socket.socket:
    """Return a new connection."""
    return socket.create_connection((HOST, proxy.port), timeout=LIMIT_S)


def is_refused(proxy: TcpProxy) -> bool:
    """Tell whether a new connection is reset: while it is made, or when it is used."""
    try:
        with connected(proxy) as late:
            return late.recv(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_pass_as_they_are(client: socket.socket) -> None:
    """Single ones and many, both ways; what would be a wrong frame of Kafka's as well."""
    sent = b"\xff\xff\xff\xff" + bytes(range(256)) * 4_000
    client.sendall(b"x")
    assert receive(client, 1) == b"x"
    threading.Thread(target=client.sendall, args=(sent,)).start()
    assert receive(client, len(sent)) == sent


def test_an_orderly_end_stays_one(server: EchoServer, client: socket.socket) -> None:
    """Behind what was sent before it, in each direction."""
    client.sendall(b"last words")
    assert server.next() == b"last words"
    assert receive(client, 10) == b"last words"
    server.served.get().shutdown(socket.SHUT_RDWR)
    assert client.recv(1) == b""


def test_the_end_arrives_behind_late_bytes(
    server: EchoServer, proxy: TcpProxy, client: socket.socket
) -> None:
    """A client that writes and goes: the server reads all of it, then an orderly end."""
    proxy.delay(100)
    client.sendall(b"COMMIT")
    client.close()
    assert server.next() == b"COMMIT"
    assert server.next() == b""


def test_cut(server: EchoServer, proxy: TcpProxy, client: socket.socket) -> None:
    """Open connections are reset on both sides, new ones too; healed, a new one works."""
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert server.next() == b"reset"
    assert is_refused(proxy)
    proxy.heal()
    with connected(proxy) as late:
        assert receive(late, len(GREETING)) == GREETING
    assert proxy.counts()["cut"] == 1


def test_refuse(proxy: TcpProxy, client: socket.socket) -> None:
    """New connections are reset, the open one continues."""
    proxy.refuse()
    assert is_refused(proxy)
    client.sendall(b"still here")
    assert receive(client, 10) == b"still here"


def test_a_black_hole_takes_new_connections_and_greetings(
    server: EchoServer, proxy: TcpProxy, client: socket.socket
) -> None:
    """A new client is accepted and hears nothing; nothing arrives; healed, both are reset."""
    proxy.blackhole()
    client.sendall(b"lost")
    with connected(proxy) as late:
        assert is_silent(late)
        assert is_silent(client)
        assert server.arrived.empty()
        proxy.heal()
        for each in (client, late):
            with pytest.raises(ConnectionResetError):
                each.recv(1)
    assert proxy.counts()["requests lost"] == 1


def test_a_black_hole_takes_ends_too(
    server: EchoServer, proxy: TcpProxy, client: socket.socket
) -> None:
    """A server continues for a client that is gone, until the black hole is healed."""
    proxy.blackhole()
    client.close()
    with pytest.raises(Empty):
        server.arrived.get(timeout=SILENCE_S)
    proxy.heal()
    assert server.next() == b"reset"


def test_delay_is_each_way(proxy: TcpProxy, client: socket.socket) -> None:
    """An answer takes at least twice the delay."""
    proxy.delay(100)
    began = monotonic()
    client.sendall(b"slow")
    assert receive(client, 4) == b"slow"
    assert monotonic() - began >= 0.2


@pytest.mark.parametrize("act", [Act.REFUSE, Act.STRAND])
def test_a_message_arrives_or_not_and_its_sender_is_cut_off(
    server: EchoServer, proxy: TcpProxy, client: socket.socket, act: Act
) -> None:
    """The one that holds the text; those before it, and later connections, are left alone."""
    proxy.aim(act, "COMMIT")
    client.sendall(b"before")
    assert receive(client, 6) == b"before"
    assert server.next() == b"before"
    client.sendall(b"a COMMIT of mine")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert server.next() == (b"reset" if act is Act.REFUSE else b"a COMMIT of mine")
    assert proxy.hits(act) == 1
    with connected(proxy) as late:
        receive(late, len(GREETING))
        late.sendall(b"COMMIT")
        assert receive(late, 6) == b"COMMIT"


def test_the_answer_to_a_message_is_lost(
    server: EchoServer, proxy: TcpProxy, client: socket.socket
) -> None:
    """It arrives, its sender hears nothing, until the reset that healing brings."""
    proxy.aim(Act.SWALLOW, "COMMIT")
    client.sendall(b"COMMIT")
    assert server.next() == b"COMMIT"
    assert is_silent(client)
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_held_message_arrives_late(proxy: TcpProxy, client: socket.socket) -> None:
    """And what is behind it no earlier."""
    proxy.aim(Act.HOLD, "COMMIT", delay_ms=200)
    began = monotonic()
    client.sendall(b"COMMIT")
    assert receive(client, 6) == b"COMMIT"
    assert monotonic() - began >= 0.2

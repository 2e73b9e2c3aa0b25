"""The proxy with planted traffic: plain sockets that speak Kafka's frames."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

import pytest

from halfbridge.testkit.ports import HOST, free_ports, is_free
from tests.kit.proxy import Act, Api, KafkaProxy, ProxyError, Route, Rule
from tests.kit.sockets import LIMIT_S, SILENCE_S, Server, is_silent, receive
from tests.kit.waiting import until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
NODE = 7


class Broker(Server):
    """Answers each request with its correlation id and body; notes (api, body) in order."""

    def __init__(self) -> None:
        self.arrived: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        super().__init__(self._answer)

    def next(self) -> tuple[int, bytes]:
        """Return the request that arrives next."""
        return self.arrived.get(timeout=LIMIT_S)

    def nothing_arrives(self) -> bool:
        """Tell whether it stays silent for a moment."""
        try:
            self.arrived.get(timeout=SILENCE_S)
        except Empty:
            return True
        return False

    def _answer(self, connection: socket.socket) -> None:
        while len(head := receive(connection, 12)) == 12:
            length, api, _, correlation_id = struct.unpack(">ihhi", head)
            body = receive(connection, length - 8)
            self.arrived.put((api, body))
            answer = struct.pack(">i", correlation_id) + body
            connection.sendall(struct.pack(">i", len(answer)) + answer)


class Client:
    """A connection through the proxy."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=LIMIT_S)
        self._sent = 0

    def send(self, api: int, body: bytes) -> None:
        """Send a request; they are numbered from 1."""
        self._sent += 1
        request = struct.pack(">hhi", api, 3, self._sent) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """Return (number of the request, body) of the next answer."""
        (length,) = struct.unpack(">i", receive(self._socket, 4))
        answer = receive(self._socket, length)
        return struct.unpack(">i", answer[:4])[0], answer[4:]

    def ask(self, api: int, body: bytes) -> bytes:
        """Send a request and return the body of the next answer."""
        self.send(api, body)
        return self.answer()[1]

    def nothing_comes(self) -> bool:
        """Tell whether the connection stays open and silent for a moment."""
        return is_silent(self._socket)

    def is_reset(self) -> bool:
        """Wait for the end of the connection and close it; tell whether it was a reset."""
        try:
            return self._socket.recv(1) != b""
        except ConnectionResetError:
            return True
        finally:
            self.close()

    def close(self) -> None:
        self._socket.close()


def is_refused(port: int) -> bool:
    """Tell whether a new connection is reset: at once, while it is made, or when it is used."""
    try:
        return Client(port).is_reset()
    except ConnectionResetError:
        return True


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[KafkaProxy]:
    (port,) = free_ports(1)
    with KafkaProxy([Route(NODE, port, broker.port)]) as started:
        yield started


@pytest.fixture
def clients(proxy: KafkaProxy) -> Iterator[list[Client]]:
    """Yield three connections through the proxy."""
    made = [Client(proxy._routes[0].port) for _ in range(3)]
    yield made
    for client in made:
        client.close()


def test_everything_passes_in_order(broker: Broker, clients: list[Client]) -> None:
    """Small and large requests, many at once: all arrive, all are answered, in order."""
    client = clients[0]
    bodies = [bytes([n % 256]) * size for n, size in enumerate([0, 1, 400_000, 3] * 25)]
    sender = threading.Thread(target=lambda: [client.send(Api.PRODUCE, body) for body in bodies])
    sender.start()

    answers = [client.answer() for _ in bodies]
    sender.join()

    assert answers == list(enumerate(bodies, start=1))
    assert [broker.next() for _ in bodies] == [(Api.PRODUCE, body) for body in bodies]


def test_cut_resets_and_refuses_until_healed(
    broker: Broker, proxy: KafkaProxy, clients: list[Client]
) -> None:
    """Open connections are reset, new ones as well; afterwards a new one works."""
    assert clients[0].ask(Api.FETCH, b"before") == b"before"
    broker.next()
    proxy.cut(NODE)

    assert all(client.is_reset() for client in clients)
    assert is_refused(proxy._routes[0].port)
    proxy.heal()
    late = Client(proxy._routes[0].port)
    assert late.ask(Api.FETCH, b"after") == b"after"
    assert broker.next() == (Api.FETCH, b"after")
    assert proxy.counts()["cut"] == 3
    late.close()


def test_answers_dropped(broker: Broker, proxy: KafkaProxy, clients: list[Client]) -> None:
    """Requests arrive, nothing comes back; what lost an answer is reset when healed, only that."""
    assert clients[0].ask(Api.FETCH, b"x") == b"x"
    broker.next()
    proxy.drop_answers()
    clients[0].send(Api.PRODUCE, b"unanswered")

    assert broker.next() == (Api.PRODUCE, b"unanswered")
    assert clients[0].nothing_comes()
    proxy.heal()
    assert clients[0].is_reset()
    assert clients[1].ask(Api.FETCH, b"y") == b"y"
    assert proxy.counts()["answers lost"] == 1


def test_blackhole(broker: Broker, proxy: KafkaProxy, clients: list[Client]) -> None:
    """Nothing arrives, on a connection that stays open until it is healed."""
    proxy.blackhole(NODE)
    clients[0].send(Api.PRODUCE, b"lost")

    assert broker.nothing_arrives()
    assert clients[0].nothing_comes()
    proxy.heal(NODE)
    assert clients[0].is_reset()
    assert proxy.counts()["requests lost"] == 1


def test_delay_is_each_way(proxy: KafkaProxy, clients: list[Client]) -> None:
    """An answer takes at least twice the delay; healed, the connection continues."""
    proxy.delay(100, NODE)
    began = monotonic()
    assert clients[0].ask(Api.FETCH, b"slow") == b"slow"
    assert monotonic() - began >= 0.2
    proxy.heal()
    assert clients[0].ask(Api.FETCH, b"quick") == b"quick"


def test_one_kind_of_answer_swallowed(
    broker: Broker, proxy: KafkaProxy, clients: list[Client]
) -> None:
    """Only EndTxn's answer is missing; others on the same connection come."""
    proxy.add(Rule(api=Api.END_TXN, act=Act.SWALLOW, times=1))
    clients[0].send(Api.END_TXN, b"end")
    clients[0].send(Api.FETCH, b"fetch")

    assert clients[0].answer() == (2, b"fetch")
    assert [broker.next() for _ in range(2)] == [(Api.END_TXN, b"end"), (Api.FETCH, b"fetch")]
    assert clients[1].ask(Api.END_TXN, b"again") == b"again"
    assert proxy.hits(Act.SWALLOW, Api.END_TXN) == 1


def test_an_answer_says_another_error_code(
    broker: Broker, proxy: KafkaProxy, clients: list[Client]
) -> None:
    """The request arrives, and of its answer only the code is another one."""
    proxy.add(Rule(api=Api.END_TXN, act=Act.FAIL, error=999, times=1))
    body = bytes(5) + b"\0\0" + b"rest"  # no tags, throttle time, code

    assert clients[0].ask(Api.END_TXN, body) == bytes(5) + struct.pack(">h", 999) + b"rest"
    assert broker.next() == (Api.END_TXN, body)
    assert clients[0].ask(Api.END_TXN, body) == body
    assert proxy.hits(Act.FAIL, Api.END_TXN) == 1


def test_a_held_request_holds_up_its_own_connection_only(
    broker: Broker, proxy: KafkaProxy, clients: list[Client]
) -> None:
    """What is behind it arrives after it; another connection's requests overtake."""
    proxy.add(Rule(api=Api.END_TXN, act=Act.HOLD, delay_ms=400, times=1))
    clients[0].send(Api.END_TXN, b"held")
    clients[0].send(Api.FETCH, b"behind")
    assert clients[1].ask(Api.FETCH, b"other") == b"other"

    assert clients[0].answer() == (1, b"held")
    assert clients[0].answer() == (2, b"behind")
    assert [broker.next()[1] for _ in range(3)] == [b"other", b"held", b"behind"]


def test_a_stranded_request_arrives_after_its_repetition(
    broker: Broker, proxy: KafkaProxy, clients: list[Client]
) -> None:
    """The client is reset and asks again elsewhere; the first request arrives late, even healed."""
    proxy.add(Rule(api=Api.END_TXN, act=Act.STRAND, delay_ms=400, times=1))
    clients[0].send(Api.END_TXN, b"first")

    assert clients[0].is_reset()
    assert clients[1].ask(Api.END_TXN, b"repeated") == b"repeated"
    proxy.heal()
    assert [broker.next()[1] for _ in range(2)] == [b"repeated", b"first"]


def test_what_is_not_kafka_is_reset(clients: list[Client]) -> None:
    """Bytes without frames end their connection, and no other."""
    clients[0].send_raw(b"GET / HTTP/1.1\r\n\r\n")

    assert clients[0].is_reset()
    assert clients[1].ask(Api.FETCH, b"x") == b"x"


def test_a_broker_that_is_away_resets_the_client(proxy: KafkaProxy, broker: Broker) -> None:
    """Nobody is kept waiting for a broker that does not listen."""
    absent, port = free_ports(2)
    with KafkaProxy([Route(NODE, port, absent)]):
        assert is_refused(port)


def test_a_taken_port_is_named(proxy: KafkaProxy) -> None:
    """The proxy does not start, and says why."""
    route = proxy._routes[0]
    with pytest.raises(ProxyError, match="address already in use"):
        KafkaProxy([route]).start()


def test_it_ends_with_its_owner() -> None:
    """SIGKILL of whoever started it frees the port."""
    (port,) = free_ports(1)
    script = (
        "import sys, time; from tests.kit.proxy import KafkaProxy, Route;"
        f" KafkaProxy([Route(1, {port}, 1)]).start(); print('ready', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        assert not is_free(port)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        until("the port is free", lambda: is_free(port), within_s=LIMIT_S)

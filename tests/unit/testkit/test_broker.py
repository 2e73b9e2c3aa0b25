"""What a cluster refuses before anything is started."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.java.locked_jars import JarSettings
from halfbridge.testkit import containers, jars
from halfbridge.testkit.broker import BrokerStartError, EmbeddedBroker, EmbeddedCluster
from halfbridge.testkit.jars import KAFKA_VERSION, KafkaChoice, broker_jars
from halfbridge.testkit.ports import HOST, free_ports, is_free
from halfbridge.testkit.properties import (
    NodeAddress,
    as_environment,
    internal_topics,
    node_properties,
    render,
)
from halfbridge.testkit.ready import NotReadyError, wait_ready
from halfbridge.testkit.source import KafkaMissingError, open_kafka


def test_one_port_a_node() -> None:
    """Fewer ports than nodes, or no node at all, is the caller's mistake."""
    with pytest.raises(ValueError, match="3 nodes with 1 ports"):
        EmbeddedCluster(3, ports=(9092,))
    with pytest.raises(ValueError, match="0 nodes"):
        EmbeddedCluster(0)


def test_not_started() -> None:
    """Asking for an address too early says what to do; stopping too early does nothing."""
    broker = EmbeddedBroker()
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        _ = broker.bootstrap_servers
    broker.stop()


@pytest.mark.broker
def test_port_in_use(tmp_path: Path) -> None:
    """A port that was asked for and is taken is named at once, before any process starts."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BrokerStartError, match=f"port {port} is in use"):
            EmbeddedBroker(tmp_path, port).start()


# --- server.properties of one node and of three --------------------------------------------

ONE = NodeAddress(1, 1001, 2001)
TWO = NodeAddress(2, 1002, 2002)


def test_every_node_knows_all_voters() -> None:
    """The quorum is the same text everywhere; the listeners are the node's own."""
    made = node_properties(TWO, [ONE, TWO], data_directory=Path("/d"), overrides={})
    assert made["controller.quorum.voters"] == "1@127.0.0.1:2001,2@127.0.0.1:2002"
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:1002,CONTROLLER://127.0.0.1:2002"
    assert made["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1002"
    assert (made["node.id"], made["log.dirs"]) == ("2", "/d")


def test_a_proxied_node_has_a_listener_that_names_the_proxy() -> None:
    """Clients that come by the proxy are sent back to it; brokers talk to each other directly."""
    proxied = NodeAddress(1, 1001, 2001, client_port=3001, proxy_port=4001)
    made = node_properties(proxied, [proxied], data_directory=Path("/d"), overrides={})
    assert made["listeners"].endswith(",CLIENT://127.0.0.1:3001")
    advertised = "PLAINTEXT://127.0.0.1:1001,CLIENT://127.0.0.1:4001"
    assert made["advertised.listeners"] == advertised
    assert made["listener.security.protocol.map"].endswith(",CLIENT:PLAINTEXT")
    assert proxied.bootstrap == "127.0.0.1:1001"
    assert proxied.proxied == "127.0.0.1:4001"


def test_overrides_win() -> None:
    """What the test asks for replaces our own choice."""
    overrides = {"auto.create.topics.enable": "true"}
    made = node_properties(ONE, [ONE], data_directory=Path("/d"), overrides=overrides)
    assert made["auto.create.topics.enable"] == "true"


def test_three_nodes_hold_three_replicas_with_two_in_sync() -> None:
    """One node more than needed may die; a single node has one replica of everything."""
    three, one = internal_topics(3), internal_topics(1)
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert three[f"{topic}.replication.factor"] == "3"
        assert one[f"{topic}.replication.factor"] == "1"
    assert (three["transaction.state.log.min.isr"], one["transaction.state.log.min.isr"]) == (
        "2",
        "1",
    )


def test_rendering_escapes_what_java_would_eat() -> None:
    """A backslash or a line end in a value arrives as it was given."""
    assert render({"a": "x\\y", "b": "1\n2"}) == "a=x\\\\y\nb=1\\n2\n"


def test_environment_of_the_image() -> None:
    """Dots, underscores and hyphens come back as they were: the image's own rule, reversed."""
    assert as_environment({"a.b_c-d": "v"}) == {"KAFKA_A_B__C___D": "v"}


# --- waiting for a cluster ends: in an answer, at the limit, or when waiting is pointless --


@pytest.mark.process
def test_nothing_listens() -> None:
    """The error comes at the limit and names the address."""
    (port,) = free_ports(1)
    with pytest.raises(NotReadyError, match=f"nothing listens on {HOST}:{port}"):
        wait_ready(f"{HOST}:{port}", timeout_s=0.1)


@pytest.mark.process
def test_something_else_listens() -> None:
    """A server that speaks no Kafka is not ready either."""
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        with pytest.raises(NotReadyError, match=f"{address} is not ready"):
            wait_ready(address, timeout_s=0.1)


def test_check_ends_the_wait() -> None:
    """A caller that knows that the process died need not wait for the limit."""

    def died() -> None:
        raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        wait_ready(f"{HOST}:1", check=died)


# --- which Kafka tests get, where none is needed to tell -----------------------------------


@pytest.mark.process
def test_given_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, under the variable's name; nothing else is tried in its place."""
    monkeypatch.setattr("halfbridge.testkit.source._GIVEN_S_MAX", 0.1)
    (port,) = free_ports(1)
    environ = {"HALFBRIDGE_TEST_BOOTSTRAP": f"{HOST}:{port}", "HALFBRIDGE_TEST_DOCKER": "1"}
    with (
        pytest.raises(KafkaMissingError, match="HALFBRIDGE_TEST_BOOTSTRAP: nothing listens"),
        open_kafka(environ),
    ):
        pass


@pytest.mark.process
def test_docker_asked_for_in_ci_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job that asked for Docker does not pass on another broker."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert not containers.docker_answers(os.environ)
    with (
        pytest.raises(KafkaMissingError, match="no Docker daemon"),
        open_kafka({"HALFBRIDGE_TEST_DOCKER": "1", "CI": "true"}),
    ):
        pass


@pytest.mark.process
def test_neither_jars_nor_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what the embedded broker lacks: it needs the least."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("HALFBRIDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HALFBRIDGE_MAVEN_REPOSITORY", (tmp_path / "nowhere").as_uri())
    with pytest.raises(KafkaMissingError, match="no embedded broker"), open_kafka({}):
        pass


# --- which Kafka is fetched, and how it logs -----------------------------------------------


def test_version_is_pinned_unless_given() -> None:
    """HALFBRIDGE_KAFKA_VERSION wins; an empty one does not count."""
    assert KafkaChoice.from_environ({}).kafka_version == KAFKA_VERSION
    assert KafkaChoice.from_environ({"HALFBRIDGE_KAFKA_VERSION": ""}).kafka_version == KAFKA_VERSION
    assert KafkaChoice.from_environ({"HALFBRIDGE_KAFKA_VERSION": "3.9.1"}).kafka_version == "3.9.1"


@pytest.mark.parametrize("version", ["2.8.0", "next", "5.0.0"])
def test_unknown_version_is_refused(version: str) -> None:
    """A Kafka whose log binding is not known is an error that names the variable."""
    with pytest.raises(ValueError, match="HALFBRIDGE_KAFKA_VERSION"):
        broker_jars(version, JarSettings())


@pytest.mark.parametrize("binding", jars._LOG_BINDINGS.values())
def test_log_configuration_is_in_the_package(binding: jars._LogBinding) -> None:
    """Every binding's file is there and writes where the node tells it to."""
    assert "${" in (text := (jars._HERE / binding.config).read_text(encoding="utf-8"))
    assert "halfbridge.log" in text


def test_lock_lines_are_those_of_a_lock_file(tmp_path: Path) -> None:
    """Checksum, size and coordinate, in the order of the class path."""
    jar = tmp_path / "x.jar"
    jar.write_bytes(b"x")
    (line,) = jars.lock_lines({"b:x-y_2.13:3.0-rc1": jar})
    assert line == f"{hashlib.sha256(b'x').hexdigest()} 1 b:x-y_2.13:3.0-rc1\n"


# --- ports are free, different, and never a client's own -----------------------------------

EPHEMERAL_MIN = 32_768

# Draws ports, forks, and draws ports in the child too; prints the two lists.
_DRAW = """
import json, os
from halfbridge.testkit.ports import free_ports
mine = free_ports(180)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
print(json.dumps(mine if pid else free_ports(180)), flush=True)
os._exit(0)
"""


@pytest.mark.process
def test_different_and_below_the_ephemeral_range() -> None:
    """A client that reconnects to a dead broker can never be given the broker's port."""
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < EPHEMERAL_MIN


@pytest.mark.process
def test_a_port_in_use_is_not_free() -> None:
    """A listening server is seen."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


@pytest.mark.process
def test_a_broker_that_is_down_keeps_its_ports() -> None:
    """What a process was given, no other process is given, nor the same process soon after.

    A broker that is killed and started again listens on its ports again. Nobody listens there in
    between, so that `is_free` says nothing: a broker of other tests had been given such a port. A
    child that a fork made is another process.
    """
    first = free_ports(180)
    done = subprocess.run(
        [sys.executable, "-c", _DRAW], capture_output=True, check=True, text=True, timeout=60
    )
    others = [json.loads(line) for line in done.stdout.splitlines()]
    drawn = [*first, *free_ports(180), *others[0], *others[1]]
    assert len(set(drawn)) == len(drawn) == 4 * 180

"""Kafka or Redpanda in a Docker container, through Testcontainers (extra `testcontainers`)."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import get_docker_host

from halfbridge import environment
from halfbridge.testkit.jars import KafkaChoice
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.properties import PATIENT, as_environment, for_tests, internal_topics
from halfbridge.testkit.ready import READY_S_MAX, NotReadyError, wait_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

IMAGE = "apache/kafka:4.2.0"
REDPANDA_IMAGE = "redpandadata/redpanda:v26.1.2"
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_CLIENT_PORT = 9092  # Kafka's usual port
_INSIDE_PORT = 9094  # another one: for clients in containers
_PING_S_MAX = 5  # Docker answers within milliseconds; a dead socket never
_LOG_LINES = 30  # a screen


def docker_answers(environ: Mapping[str, str]) -> bool:
    """Return whether a Docker daemon, which `environ` may name, answers within 5 s."""
    host = get_docker_host() or _DEFAULT_HOST  # knows Docker contexts, which docker-py does not
    address = urlsplit(host)
    if address.scheme == "unix" and not _accepts(address.path):
        return False
    named = {**environ, "DOCKER_HOST": host}
    try:
        with closing(docker.from_env(timeout=_PING_S_MAX, environment=named)) as client:
            return bool(client.ping())
    except (DockerException, OSError):
        return False


def _accepts(path: str) -> bool:
    # docker-py leaves its socket open when nobody listens, which strict test runs report.
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PING_S_MAX)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class BrokerContainer(DockerContainer):
    """One broker, reachable on a free port of 127.0.0.1. A context manager.

    The port is chosen before the container starts, because the broker has to advertise it.
    """

    def __init__(self, image: str) -> None:
        super().__init__(image)
        (self._port,) = free_ports(1)
        # docker-py takes (interface, port), which Testcontainers' own annotation lacks.
        bindings: dict[str, Any] = self.ports
        bindings[f"{_CLIENT_PORT}/tcp"] = (HOST, self._port)

    @property
    def bootstrap_servers(self) -> str:
        """Return the broker's address on this machine."""
        return f"{HOST}:{self._port}"

    def start(self) -> Self:
        """Start and return when a client gets an answer.

        Raises:
            NotReadyError: the container is removed; the user acts on the last lines of its log,
                which are in the text.
        """
        super().start()
        try:
            wait_ready(self.bootstrap_servers, timeout_s=READY_S_MAX)
        except NotReadyError as error:
            log = b"".join(self.get_logs()).decode(errors="replace").splitlines()[-_LOG_LINES:]
            self.stop()
            raise NotReadyError("\n".join([str(error), *log])) from error
        except BaseException:
            self.stop()
            raise
        return self


class KafkaContainer(BrokerContainer):
    """One KRaft node of the image apache/kafka.

    The broker has a listener of its own for requests to itself.
    """

    def __init__(self, image: str | None = None) -> None:
        super().__init__(image or _chosen_image())
        for name, value in as_environment(_properties(self._port)).items():
            self.with_env(name, value)


class RedpandaContainer(BrokerContainer):
    """One Redpanda node, in its mode for developers' containers.

    Unlike our Kafka, that mode creates topics automatically when a client names one.
    """

    def __init__(self, image: str | None = None) -> None:
        super().__init__(image or REDPANDA_IMAGE)
        self.with_command(redpanda_command(self._port))


def broker_container() -> BrokerContainer:
    """Return the broker of HALFBRIDGE_TEST_IMAGE, else of the pinned image."""
    wanted = _chosen_image()
    return RedpandaContainer(wanted) if holds_redpanda(wanted) else KafkaContainer(wanted)


def _chosen_image() -> str:
    return KafkaChoice.from_environ(environment.variables()).test_image or IMAGE


def holds_redpanda(image: str) -> bool:
    """Return whether the last part of an image's name is Redpanda's, whatever the registry."""
    repository = image.partition("@")[0]
    return "redpanda" in repository.rpartition("/")[2]


def redpanda_command(port: int) -> list[str]:
    """Return the arguments of the image; clients connect to `port` of this machine.

    Testcontainers' own class for Redpanda starts a shell, waits for the port that Docker chose and
    writes a script for it.
    """
    inside = f"inside://127.0.0.1:{_INSIDE_PORT}"
    return [
        *("redpanda", "start", "--mode=dev-container", "--smp=1", "--memory=1G"),
        "--default-log-level=warn",
        f"--kafka-addr=host://0.0.0.0:{_CLIENT_PORT},{inside}",
        f"--advertise-kafka-addr=host://{HOST}:{port},{inside}",
    ]


def _properties(port: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://:{_CLIENT_PORT},CONTROLLER://:9093,INTERNAL://:{_INSIDE_PORT}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},INTERNAL://localhost:{_INSIDE_PORT}",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT"
        ),
        **internal_topics(1),
        **for_tests(1),
        **PATIENT,
    }

"""Chooses the Kafka that tests run against."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.extras import needs
from halfbridge.java.jvm import JavaNotFoundError
from halfbridge.java.locked_jars import JarsError
from halfbridge.testkit.jars import BOOTSTRAP_VARIABLE, DOCKER_VARIABLE, KafkaChoice
from halfbridge.testkit.properties import PATIENT
from halfbridge.testkit.ready import NotReadyError, wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

_GIVEN_S_MAX = 5.0  # a cluster that is already running answers at once or is down


class KafkaMissingError(RuntimeError):
    """No Kafka is available: the user must start or install one, or make one reachable."""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A Kafka that answers: "given", "docker" (the version is the image) or "embedded"."""

    kind: str
    bootstrap_servers: str
    version: str = ""


@contextmanager
def open_kafka(environ: Mapping[str, str]) -> Iterator[KafkaSource]:
    """Yield the cluster given, else one in Docker, else the embedded broker.

    Docker precedes the embedded broker only with HALFBRIDGE_TEST_DOCKER=1, if a daemon answers; in
    CI (CI=true) it is then an error if none answers: a job that asks for Docker must not pass
    without it. If the embedded broker is unavailable, Docker is tried unless the variable is 0.

    Raises:
        KafkaMissingError: one line with what to do; the user must act.
        BrokerStartError: the embedded broker was started and failed; the user acts on its log,
            which is in the text.
    """
    choice = KafkaChoice.from_environ(environ)
    if given := choice.test_bootstrap:
        try:
            wait_ready(given, timeout_s=_GIVEN_S_MAX)
        except NotReadyError as error:
            raise KafkaMissingError(f"{BOOTSTRAP_VARIABLE}: {error}") from error
        yield KafkaSource("given", given)
    elif choice.test_docker == "1" and _docker_usable(environ):
        with _in_docker() as source:
            yield source
    else:
        with _embedded_else_docker(choice, environ) as source:
            yield source


def open_kafka_of(kind: str, environ: Mapping[str, str]) -> AbstractContextManager[KafkaSource]:
    """Return a Kafka of one kind ("embedded", "docker"), to be opened as `open_kafka`.

    Raises ValueError: there is no such kind; the caller corrects it.
    """
    if kind not in {"docker", "embedded"}:
        raise ValueError(f"no kind of Kafka: {kind!r}")
    # In CI (CI=true) it is an error if Docker is asked for and no daemon answers.
    is_docker = kind == "docker"
    chosen = {BOOTSTRAP_VARIABLE: "", DOCKER_VARIABLE: str(int(is_docker)), "CI": "true"}
    return open_kafka({**environ, **chosen})


def _docker_usable(environ: Mapping[str, str]) -> bool:
    try:
        from halfbridge.testkit.containers import docker_answers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise KafkaMissingError(needs(f"{DOCKER_VARIABLE}=1", "testcontainers")) from error
    if docker_answers(environ):
        return True
    if environ.get("CI") == "true":
        raise KafkaMissingError(f"{DOCKER_VARIABLE}=1, but no Docker daemon answers: start one")
    return False


@contextmanager
def _embedded_else_docker(choice: KafkaChoice, environ: Mapping[str, str]) -> Iterator[KafkaSource]:
    """Yield the embedded broker; without Java or its jars, one in Docker."""
    from halfbridge.testkit.broker import EmbeddedBroker  # noqa: PLC0415  # not needed with Docker

    broker = EmbeddedBroker(properties=PATIENT, kafka_version=choice.kafka_version)
    missing = ""
    try:
        broker.start()
    except (JarsError, JavaNotFoundError) as error:
        missing = f"no embedded broker: {error}"
    if not missing:
        try:
            yield KafkaSource("embedded", broker.bootstrap_servers, choice.kafka_version)
        finally:
            broker.stop()
    elif choice.test_docker != "0" and _docker_is_there(environ):
        with _in_docker() as source:
            yield source
    else:
        raise KafkaMissingError(missing)


def _docker_is_there(environ: Mapping[str, str]) -> bool:
    try:
        from halfbridge.testkit.containers import docker_answers  # noqa: PLC0415  # an extra
    except ImportError:
        return False
    return docker_answers(environ)


@contextmanager
def _in_docker() -> Iterator[KafkaSource]:
    from halfbridge.testkit.containers import broker_container  # noqa: PLC0415  # an extra

    with broker_container() as container:
        yield KafkaSource("docker", container.bootstrap_servers, container.image)

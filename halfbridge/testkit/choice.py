"""Which Kafka tests run against, as the environment says it."""

from __future__ import annotations

from dataclasses import dataclass

from halfbridge.serde.settings import setting, variable

KAFKA_VERSION = "4.2.0"
BOOTSTRAP_VARIABLE = variable("test_bootstrap")
DOCKER_VARIABLE = variable("test_docker")
IMAGE_VARIABLE = variable("test_image")
VERSION_VARIABLE = variable("kafka_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaChoice:
    """Settings of the testkit; each is a variable."""

    test_bootstrap: str = setting("", doc="host:port of a cluster that runs already.")
    test_docker: str = setting("", doc="1: Docker before the embedded broker; 0: never Docker.")
    test_image: str = setting("", doc="Image of the broker in Docker; default: the pinned one.")
    kafka_version: str = setting(KAFKA_VERSION, doc="Version of the embedded broker.")

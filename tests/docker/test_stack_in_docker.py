"""A stack whose broker starts and ends with it, in a container.

Asked for with HALFBRIDGE_TEST_DOCKER=1 (`make test-docker`), which names Kafka's image too.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.testkit.containers import (
    IMAGE,
    REDPANDA_IMAGE,
    BrokerContainer,
    RedpandaContainer,
    broker_container,
)
from halfbridge.testkit.jars import DOCKER_VARIABLE, IMAGE_VARIABLE
from halfbridge.testkit.stack import HalfbridgeStack
from tests.docker.image import succeeds

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

STAND_IN = "halfbridge-test-redpanda:latest"
BUILD_S_MAX = 120


@pytest.fixture(autouse=True)
def asked_for() -> None:
    """Leave these tests to whoever asked for containers."""
    if os.environ.get(DOCKER_VARIABLE) != "1":
        pytest.skip(f"asked for with {DOCKER_VARIABLE}=1")


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """Return an image that is started as Redpanda's is, and holds Kafka."""
    shutil.copy(Path(__file__).with_name("redpanda"), tmp_path)
    kafka = os.environ.get(IMAGE_VARIABLE) or IMAGE
    (tmp_path / "Dockerfile").write_text(
        f'FROM {kafka}\nCOPY redpanda /redpanda\nENTRYPOINT ["bash", "/redpanda"]\nCMD []\n',
        "utf-8",
    )
    command = ["docker", "build", "--quiet", "--tag", STAND_IN, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S_MAX)
    return STAND_IN


def test_the_start_of_a_stack_in_docker() -> None:
    """Broker, topics and daemon by one `with`; a transaction arrives; no container is left."""
    deliver(broker_container())


def test_a_stack_on_what_is_started_as_redpanda(stand_in: str) -> None:
    """The words for rpk make a broker that clients of this machine reach, on the port it names."""
    deliver(RedpandaContainer(stand_in))


def test_a_stack_on_redpanda() -> None:
    """The real one, where its image is."""
    if not succeeds("docker", "image", "inspect", REDPANDA_IMAGE):
        pytest.skip(f"not here: docker pull {REDPANDA_IMAGE}")
    deliver(RedpandaContainer())


def deliver(broker: BrokerContainer) -> None:
    """Start a stack on a broker, deliver one message through it, end it."""
    began = time.monotonic()
    with HalfbridgeStack(kafka=broker) as stack:
        print(f"stack on {broker.image}: ready after {time.monotonic() - began:.1f} s")
        container = broker.get_wrapped_container().id
        topic = stack.create_topic("orders")
        with stack.producer("order-service", checker=unknown) as producer, producer.begin() as tx:
            tx.send(Message(topic, value=b"two shirts"))
        stack.wait_until_decided()
        assert [record.value for record in stack.read_committed(topic)] == [b"two shirts"]
        assert succeeds("docker", "container", "inspect", container)
    assert not succeeds("docker", "container", "inspect", container)


def unknown(_view: MessageView) -> Resolution:
    """Answer that nothing is known."""
    return Resolution.UNKNOWN

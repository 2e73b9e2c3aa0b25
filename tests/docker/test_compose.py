"""docker-compose.yml, brought up for real: what the documents promise of one `up`.

Asked for with HALFBRIDGE_TEST_DOCKER=1 (`make test-docker`), which names the images too.
"""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from halfbridge import Message, MessageView, Resolution, TransactionProducer
from halfbridge.demo import BRINK, TOPICS, Kind, make_plan
from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.jars import DOCKER_VARIABLE, IMAGE_VARIABLE
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.reader import read_all
from tests.kit.http import answer_of
from tests.kit.waiting import until
from tests.tools import compose

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
GROUP = "order-service"
UP_S = 300.0  # containers on a machine that does other things too
CALL_S = 20.0
# A look starts a program.
wait_until = partial(until, within_s=UP_S, every_s=0.2)
TRANSACTIONS = 300
DEMO_ORDERS, DEMO_SERVICE = 3000, 2  # as docker-compose.yml has them


class Stack:
    """A compose project of its own, on ports of its own."""

    def __init__(self, compose: list[str]) -> None:
        self._compose = compose
        self.name = f"halfbridge-test-{secrets.token_hex(4)}"
        kafka_port, metrics_port = free_ports(2)
        self.bootstrap_servers = f"{HOST}:{kafka_port}"
        self._ready = f"http://{HOST}:{metrics_port}/readyz"
        self._environ = {
            **os.environ,
            "KAFKA_PORT": str(kafka_port),
            "METRICS_PORT": str(metrics_port),
        }
        if image := os.environ.get(IMAGE_VARIABLE):
            self._environ["KAFKA_IMAGE"] = image

    def compose(self, *words: str) -> str:
        """Run compose and return its output."""
        return run(*self._compose, "--project-name", self.name, *words, environ=self._environ)

    def up(self, *services: str) -> None:
        """Start what does not run, as a user does."""
        self.compose("up", "--detach", *services)

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self.compose("ps", "--quiet", service).strip()

    def is_ready(self) -> bool:
        """Tell whether every worker has its partitions."""
        return answer_of(self._ready)[0] == 200

    def topic(self, name: str) -> str:
        """Make a real topic, from this machine."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(name, 2)])[name].result(CALL_S)
        return name

    def producer(self, topic: str) -> TransactionProducer:
        """Return a client on this machine; what it is asked about, it does not know."""

        def check(_view: MessageView) -> Resolution:
            return Resolution.UNKNOWN

        return TransactionProducer(
            bootstrap_servers=self.bootstrap_servers,
            producer_group=GROUP,
            topics=[topic],
            checker=check,
        )

    def values(self, *topics: str) -> list[bytes | None]:
        """Return what a `read_committed` consumer on this machine sees."""
        return [record.value for record in read_all(self.bootstrap_servers, topics)]


def run(*command: str, environ: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; return its standard output."""
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=UP_S
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Yield Kafka, topics and daemon, brought up by one command; all of it is removed again."""
    if os.environ.get(DOCKER_VARIABLE) != "1":
        pytest.skip(f"asked for with {DOCKER_VARIABLE}=1")
    made = Stack(compose()[0])
    try:
        began = time.monotonic()
        made.up()
        wait_until("the daemon is ready", made.is_ready)
        print(f"compose: ready {time.monotonic() - began:.1f} s after `up`")
        yield made
    except BaseException:
        print(made.compose("logs", "--tail", "50"))
        raise
    finally:
        made.compose("--profile", "demo", "down", "--volumes", "--timeout", "20")


def test_a_transaction_from_the_host_arrives(stack: Stack) -> None:
    """Nothing is set but the address: the topics are there, and the daemon delivers."""
    topic = stack.topic("from-the-host")
    with stack.producer(topic) as producer, producer.begin() as tx:
        tx.send(Message(topic, key=b"42", value=b"two shirts"))
    wait_until("the message is there", lambda: stack.values(topic) == [b"two shirts"])


def test_killing_the_checker_loses_nothing(stack: Stack) -> None:
    """SIGKILL for its container in the midst of deliveries; after `up` each stands there once."""
    topic = stack.topic("killed")
    wanted = [f"order {number}".encode() for number in range(TRANSACTIONS)]
    with stack.producer(topic) as producer:
        for number, value in enumerate(wanted):
            with producer.begin() as tx:
                tx.send(Message(topic, value=value))
            if number == TRANSACTIONS // 2:
                run("docker", "kill", stack.container("checker"))
                assert not stack.is_ready()
    assert len(stack.values(topic)) < TRANSACTIONS, "it was killed before it was done"
    stack.up()
    wait_until("all is there", lambda: len(stack.values(topic)) >= TRANSACTIONS)
    assert sorted(filter(None, stack.values(topic))) == sorted(wanted)


def test_data_and_topics_outlive_the_containers(stack: Stack) -> None:
    """`down` and `up`: what was delivered is there, and the next transaction arrives too."""
    topic = stack.topic("kept")
    with stack.producer(topic) as producer, producer.begin() as tx:
        tx.send(Message(topic, value=b"before"))
    wait_until("the message is there", lambda: stack.values(topic) == [b"before"])
    stack.compose("down", "--timeout", "20")
    stack.up()
    wait_until("the daemon is ready", stack.is_ready)
    with stack.producer(topic) as producer, producer.begin() as tx:
        tx.send(Message(topic, value=b"after"))
    wait_until(
        "both are there", lambda: sorted(filter(None, stack.values(topic))) == [b"after", b"before"]
    )


def test_the_demo_profile_places_orders(stack: Stack) -> None:
    """Its order service commits what its plan says, rolled back ones excepted, each once."""
    stack.up("order-service")
    container = stack.container("order-service")
    wait_until("all are decided", lambda: BRINK in run("docker", "logs", container))
    wanted = [
        message.value
        for order in make_plan(DEMO_ORDERS)
        if order.service == DEMO_SERVICE and order.kind in (Kind.COMMITTED, Kind.MULTI)
        for message in order.messages
    ]
    wait_until("all are delivered", lambda: len(stack.values(*TOPICS)) >= len(wanted))
    assert sorted(filter(None, stack.values(*TOPICS))) == sorted(wanted)


def test_the_image_is_what_the_document_says(stack: Stack) -> None:
    """Not root, needs nothing to write to, has no pip beside the packages; labels, health."""
    (container,) = json.loads(run("docker", "inspect", stack.container("checker")))
    image = container["Config"]["Image"]
    assert container["State"]["Health"]["Status"] in ("starting", "healthy")
    version = run("docker", "run", "--rm", "--read-only", "--cap-drop=ALL", image, "--version")
    assert version.startswith("halfbridge")
    inside = ["docker", "run", "--rm", "--entrypoint", "python3", image, "-c"]
    assert run(*inside, "import os; print(os.getuid())").strip() == "10001"
    search = (
        "import importlib.util as u; print([n for n in ('pip', 'hatchling') if u.find_spec(n)])"
    )
    assert run(*inside, search).strip() == "[]"
    assert container["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"

"""A log directory of a broker goes offline: only the topics in it are away."""

import base64
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from halfbridge import Message, Resolution
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.reader import read_all
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.http import answer_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

# Kafka writes checkpoints into each log directory this often. One that it cannot write takes the
# directory offline.
CHECKPOINT_MS = 500
FOUND_S = 60.0
HEALED_S = 90.0


def _with_another_directory(broker: EmbeddedBroker) -> Path:
    """Restart a broker with a second, empty log directory: the next topic is made there."""
    node = broker.node()
    data, other = node.directory / "data", node.directory / "other"
    other.mkdir()
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatted = (data / "meta.properties").read_text("utf-8")
    formatted = re.sub(r"(?m)^directory.id=.*$", f"directory.id={identity}", formatted)
    (other / "meta.properties").write_text(formatted, "utf-8")
    config = node.directory / "server.properties"
    lines = config.read_text("utf-8").replace(f"log.dirs={data}\n", f"log.dirs={data},{other}\n")
    config.write_text(f"{lines}metadata.log.dir={data}\n", "utf-8")
    broker.restart()
    return other


def _explained(stack: HalfbridgeStack, transaction_id: str) -> str:
    command = [sys.executable, "-m", "halfbridge", "tx", "explain", transaction_id]
    command += ["--bootstrap-servers", stack.bootstrap_servers]
    command += ["--topic-prefix", stack.topic_prefix]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_a_topic_in_an_offline_log_directory_holds_up_no_other(tmp_path: Path) -> None:
    """Health and `tx explain` name its partition; once the directory is back all is delivered."""
    properties = {"log.flush.offset.checkpoint.interval.ms": str(CHECKPOINT_MS)}
    with (
        EmbeddedBroker(tmp_path, properties=properties) as broker,
        HalfbridgeStack(broker.bootstrap_servers) as stack,
    ):
        stack.create_topic("orders")

        def send(topic: str, value: bytes) -> str:
            with producer.begin() as tx:
                tx.send(Message(topic, value=value))
            return tx.id

        def delivered(topic: str) -> list[bytes | None]:
            return [each.value for each in stack.read_committed(topic)]

        with stack.producer("shop", checker=lambda _: Resolution.COMMIT) as producer:
            send("orders", b"before")  # Kafka's own topics exist from now on
            stack.wait_until_decided()
            directory = _with_another_directory(broker)
            stack.create_topic("reports")
            until("it is there", lambda: [*directory.glob("reports-*")], within_s=HEALED_S)
            send("reports", b"before")
            stack.wait_until_decided()

            directory.rename(directory.with_name("gone"))
            until(
                "the directory is offline",
                lambda: "Stopping serving logs in dir" in broker.log_path.read_text("utf-8"),
                within_s=FOUND_S,
            )
            waiting = send("reports", b"meanwhile")
            port = stack.config.metrics_port
            named = "partition 0 of topic reports"
            until(
                "health names it",
                lambda: named in answer_of(f"http://127.0.0.1:{port}/healthz")[1],
                within_s=FOUND_S,
            )
            assert "artition 0 of topic reports" in _explained(stack, waiting)
            send("orders", b"meanwhile")
            until(
                "the other topic is served",
                lambda: delivered("orders") == [b"before", b"meanwhile"],
                within_s=FOUND_S,
            )

            directory.with_name("gone").rename(directory)
            broker.restart()
            stack.wait_until_decided()
        found = read_all(stack.bootstrap_servers, ["reports"], timeout_s=HEALED_S)
        assert [each.value for each in found] == [b"before", b"meanwhile"]

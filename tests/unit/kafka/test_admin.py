"""What counts as an answer; and a client that becomes garbage while brokers owe it an answer."""

import subprocess
import sys
import textwrap
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from halfbridge.kafka import admin
from halfbridge.kafka.admin import KafkaAdmin, KafkaAnswer
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge

UNANSWERED = -1001
_ROOT = Path(__file__).resolve().parents[4]
SCRIPT = textwrap.dedent("""
    import gc
    import threading

    from confluent_kafka.admin import ConfigResource
    from {module} import AdminClient

    answered = threading.Event()
    gc.disable()
    admin = AdminClient({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    future = admin.describe_configs([resource], request_timeout=0.5)[resource]
    future.add_done_callback(lambda _: (gc.collect(), answered.set()))  # in the client's own thread
    cycle = [admin]
    cycle.append(cycle)
    del admin, cycle
    assert answered.wait(30)
    print("lives")
""")


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "lives"), [("halfbridge.kafka.admin", True), ("confluent_kafka.admin", False)]
)
def test_garbage_with_an_answer_to_come(module: str, *, lives: bool) -> None:
    """The garbage collection in the client's own thread does not destroy the client there.

    The second case is the control: the client library's own class ends the process by SIGABRT.
    """
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module=module)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("lives" in run.stdout, run.returncode == 0) == (lives, lives), run.stderr


@pytest.mark.process
def test_a_client_that_was_dropped_is_closed() -> None:
    """Its threads end: librdkafka's, which the system counts."""
    script = textwrap.dedent("""
        import os

        from halfbridge.kafka.admin import AdminClient
        from tests.kit.waiting import until

        def threads():
            return len(os.listdir("/proc/self/task"))

        AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        until("the first client's threads end", lambda: threads() <= 2)
        before = threads()
        clients = [
            AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}) for _ in range(10)
        ]
        assert threads() >= before + 10, (before, threads())
        del clients
        until("the clients' threads end", lambda: threads() <= before, explain=threads)
    """)
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr


class _Client:
    """Stands for the client library's AdminClient: every log ends where a test says."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def list_offsets(self, places: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        return dict.fromkeys(places, self._future)


def _asked(future: Future[Any], timeout_s: float = 1.0) -> KafkaAnswer:
    client: Any = _Client(future)
    return KafkaAdmin(client).ask_ends([("half", 0)], Edge.END, timeout_s)["half", 0]


def _reported(offset: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(ListOffsetsResultInfo(offset, -1, -1))
    return future


def test_an_offset() -> None:
    """An empty partition's is 0."""
    assert [_asked(_reported(offset)).result() for offset in (0, 7)] == [0, 7]


def test_a_broker_that_does_not_answer_has_no_end_to_tell() -> None:
    """Whoever asks again is answered; whoever took it for an end would call the log truncated."""
    with pytest.raises(KafkaFailure) as raised:
        _asked(_reported(UNANSWERED)).result()
    assert raised.value.code == Code.TIMED_OUT


def test_a_client_that_does_not_answer_is_reported_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operators' commands turn them into one line; another exception would be a traceback."""
    monkeypatch.setattr(admin, "_CLIENT_GRACE_S", 0.0)
    with pytest.raises(KafkaFailure) as raised:
        _asked(Future(), 0.0).result()
    assert raised.value.code == Code.TIMED_OUT


def test_what_a_broker_refuses_is_a_failure() -> None:
    """The answer raises what the broker said, in the project's own error."""
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
    answer = _asked(future)
    assert answer.done()
    with pytest.raises(KafkaFailure) as raised:
        answer.result()
    assert raised.value.code == Code.NOENT


def test_topics_that_cannot_be_seen_are_left_out() -> None:
    """One with an error, and one whose partitions the broker has not heard of."""
    partition = SimpleNamespace(replicas=(1, 2), isrs=(1,), leader=1)
    behind = SimpleNamespace(replicas=(1,), isrs=(1,), leader=-1)
    topics = {
        "orders": SimpleNamespace(error=None, partitions={0: partition, 1: behind}),
        "secret": SimpleNamespace(error=KafkaError(29), partitions={0: partition}),
        "new": SimpleNamespace(error=None, partitions={}),
    }
    seen = admin.seen_topics(SimpleNamespace(topics=topics))
    assert seen == {"orders": (2, 1, {1}, 1, (1, 1))}

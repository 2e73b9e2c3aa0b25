"""A client that becomes garbage while brokers owe it an answer ends no process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

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


@pytest.mark.parametrize(
    ("module", "lives"),
    [("halfbridge.bridge.admin_client.kafka_io", True), ("confluent_kafka.admin", False)],
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


def test_a_client_that_was_dropped_is_closed() -> None:
    """Its threads end: librdkafka's, which the system counts."""
    script = textwrap.dedent("""
        import os
        import time

        from halfbridge.bridge.admin_client.kafka_io import AdminClient

        def threads():
            return len(os.listdir("/proc/self/task"))

        AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        deadline = time.monotonic() + 30
        while (before := threads()) > 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        clients = [
            AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}) for _ in range(10)
        ]
        assert threads() >= before + 10, (before, threads())
        del clients
        while threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() <= before, threads()
    """)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr

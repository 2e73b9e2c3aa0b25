"""`halfbridge fence respond`: checks are answered from the database while no service runs."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence
from halfbridge.sql.responder import Responder, answering
from halfbridge.testkit.memory import MemoryStack, Step
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.http import answer_of
from tests.kit.waiting import until

GROUP = "order-service"
RUN_S_MAX = 60.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    yield made
    made.dispose()


def made_fence(engine: Engine, group: str = GROUP) -> Fence:
    fence = Fence(engine, producer_group=group)
    fence.create()
    return fence


@pytest.mark.parametrize("step", [Step.BEFORE_LOCAL_COMMIT, Step.AFTER_LOCAL_COMMIT])
def test_a_member_that_sends_nothing_answers_for_a_dead_service(
    engine: Engine, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    """Committed transactions are delivered, others are rolled back; each answer is logged."""
    fence = made_fence(engine)
    answer = "COMMIT" if step is Step.AFTER_LOCAL_COMMIT else "ROLLBACK"
    with MemoryStack() as stack, caplog.at_level(logging.INFO, "halfbridge.sql"):
        topic = stack.create_topic("orders")
        service = stack.producer(GROUP, checker=fence.check)
        with stack.crash_at(step), service, fence.transaction(service) as (tx, connection):
            tx.send(Message(topic, value=b"two shirts"))
            connection.exec_driver_sql("CREATE TABLE placed (what TEXT)")
        with stack.producer(GROUP, checker=answering(fence)):
            stack.wait_until_decided()
            assert len(stack.read_committed(topic)) == (answer == "COMMIT")
        assert stack.dead_letters() == []
    assert f"check of {tx.id} of {GROUP}: {answer}" in caplog.messages


@contextmanager
def running(*fences: Fence) -> Iterator[Responder]:
    """Yield a responder that probes its databases each 10 ms; stop it afterwards."""
    members = [
        (
            fence,
            TransactionProducer(
                checker=fence.check, bootstrap_servers="none:1", producer_group=fence.producer_group
            ),
        )
        for fence in fences
    ]
    made = Responder(members, probe_s=0.01)
    thread = Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(RUN_S_MAX)
        assert not thread.is_alive()


def test_health_is_that_of_all_databases(engine: Engine, tmp_path: Path) -> None:
    """It is ready once each has answered; the reason names the group whose table cannot be read."""
    other = create_engine(f"sqlite:///{tmp_path / 'bills.db'}")
    orders, bills = made_fence(engine), Fence(other, producer_group="billing-service")
    with running(orders, bills) as responder:
        until("a database fails", lambda: not responder.health().healthy)
        assert not responder.health().ready
        assert responder.health().reason.startswith("billing-service: no such table")
        bills.create()
        until("all answer", lambda: responder.health().ready)
        until("nothing fails", lambda: responder.health().healthy)
        bills.metadata.drop_all(other)
        until("it fails again", lambda: not responder.health().healthy)
        orders.metadata.drop_all(engine)
        until("both fail", lambda: "; order-service: no such" in responder.health().reason)
        registry = responder.metrics.registry
        troubles = {"what": "billing-service"}
        assert registry.get_sample_value("halfbridge_responder_troubles_total", troubles)
    other.dispose()


@contextmanager
def responding(directory: Path, *words: str) -> Iterator[Any]:
    """Yield the process of `halfbridge fence respond`; kill it at the end.

    Its log is in respond.log, and its output, with its spans, in respond.out.
    """
    with (
        (directory / "respond.log").open("wb") as log,
        (directory / "respond.out").open("wb") as out,
    ):
        child = subprocess.Popen(
            [sys.executable, "-m", "halfbridge", "fence", "respond", *words],
            env={**os.environ, "OTEL_TRACES_EXPORTER": "console"},
            stdout=out,
            stderr=log,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait(RUN_S_MAX)


@pytest.mark.broker
@pytest.mark.feature
def test_checks_are_answered_while_no_service_runs(
    halfbridge_stack: HalfbridgeStack, topic: str, tmp_path: Path
) -> None:
    """Two services die, one after the COMMIT of its database; one process answers for both."""
    stack = halfbridge_stack
    servers, prefix = stack.bootstrap_servers, stack.topic_prefix
    committed, open_ = f"{prefix}orders", f"{prefix}bills"
    urls = {group: f"sqlite:///{tmp_path / group}.db" for group in (committed, open_)}
    ids = {}
    for group, words in ((committed, ["committed"]), (open_, [])):
        service = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("dying_service.py")),
                servers,
                prefix,
                group,
                urls[group],
                topic,
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        assert service.returncode == -signal.SIGKILL, service.stderr
        ids[group] = service.stdout.strip()
    file = tmp_path / "respond.toml"
    tables = [f'[[fence]]\nproducer_group = "{g}"\nurl = "{urls[g]}"\n' for g in urls]
    head = f'bootstrap_servers = "{servers}"\ntopic_prefix = "{prefix}"\n'
    file.write_text(head + "".join(tables), "utf-8")
    (port,) = free_ports(1)
    words = ("--config", str(file), "--metrics-port", str(port), "--log-format", "json")
    with responding(tmp_path, *words, "--tracing") as child:
        log = (tmp_path / "respond.log").read_text
        ready = f"http://127.0.0.1:{port}/readyz"
        until("it is ready", lambda: answer_of(ready)[0] == 200, explain=log)
        stack.wait_until_decided()
        (record,) = stack.read_committed(topic, count=1)
        assert record.value == committed.encode()
        metrics = answer_of(f"http://127.0.0.1:{port}/metrics")[1]
        assert 'halfbridge_client_checks_total{outcome="answered"' in metrics
        child.send_signal(signal.SIGTERM)
        assert child.wait(RUN_S_MAX) == 0
    lines = [json.loads(line) for line in log().splitlines()]
    answers = {line["transaction_id"]: line["kind"] for line in lines if "kind" in line}
    assert answers == {ids[committed]: "COMMIT", ids[open_]: "ROLLBACK"}
    assert all(len(line["trace_id"]) == 32 for line in lines if "kind" in line)
    said = (tmp_path / "respond.out").read_text()
    assert said.count(f'"name": "check {topic}"') >= len(ids)  # the daemon may repeat a check
    assert all(each in said for each in ids.values())

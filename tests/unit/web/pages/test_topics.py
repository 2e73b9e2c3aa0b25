"""The topics of an installation and what is wrong with them, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.shape import DEAD_RETENTION_MS
from halfbridge.checker.admin.topics import RealTopic, create_real_topic
from halfbridge.serde.settings_topic import TopicType
from halfbridge.testkit.memory import MemoryStack
from tests.kit.web import MemoryWeb


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation."""
    with MemoryStack(partitions=1) as made:
        yield made


def test_page_and_api_say_what_the_command_says(stack: MemoryStack, tmp_path: Path) -> None:
    """Each problem with its topic and the command that mends it."""
    web = MemoryWeb(stack, tmp_path)
    stack.machine.broker.topic(stack.config.names.half).settings["cleanup.policy"] = "compact"
    body = web.get("/api/v1/topics").json()
    assert not body["ok"]
    (problem,) = [each for each in body["problems"] if "compact" in each["what"]]
    page = web.get("/topics").text
    assert "Problems" in page
    assert problem["subject"] in page
    assert problem["fix"].split()[0] in page


def test_topics_are_listed_with_their_use_and_retention(stack: MemoryStack, tmp_path: Path) -> None:
    """Internal topics, and of the real ones those with a type; each problem counts at its topic."""
    names, broker = stack.config.names, stack.machine.broker
    give_type(stack, RealTopic("orders", TopicType.TRANSACTION, partitions=3, replicas=1))
    stack.create_topic("others")  # somebody's, for all that the installation can tell
    broker.topic(names.half).settings["cleanup.policy"] = "compact"
    broker.topic("orders").settings["retention.ms"] = "-1"
    web = MemoryWeb(stack, tmp_path)
    listed = {each["name"]: each for each in web.get("/api/v1/topics").json()["topics"]}
    assert {name: each["use"] for name, each in listed.items()} == {
        names.half: "half",
        names.op: "op",
        names.dead: "dead letters",
        names.settings: "settings",
        names.audit: "audit",
        "orders": "transaction",
    }
    assert listed["orders"] == {
        "name": "orders",
        "use": "transaction",
        "partitions": 3,
        "retention_ms": -1,
        "is_compacted": False,
        "problems": 0,
    }
    assert listed[names.half]["is_compacted"]
    assert listed[names.half]["problems"] == 1
    assert listed[names.dead]["retention_ms"] == DEAD_RETENTION_MS
    page = web.get("/topics").text
    assert "<code>orders</code>" in page
    assert "30 d" in page
    assert "others" not in page


def give_type(stack: MemoryStack, topic: RealTopic) -> None:
    """Make a real topic with a type, as `topics create NAME --type` does."""
    machine = stack.machine
    cluster = Cluster("memory", ports=machine.ports(machine.process("operator")))
    with appending(cluster) as appender:
        log = OperatorLog(cluster, stack.config.names, appender, who="operator@host")
        create_real_topic(cluster, stack.config.names, log, appender, topic)

"""Incidents of docs/incidents/: alert, finding of doctor, mend, and nothing is lost.

Each test ends with what its incident touched delivered once, or given to the operator with a
reason.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge import HalfNotStoredError, Message, MessageView, Resolution
from halfbridge.checker.admin.dead.letters import Remedy
from halfbridge.checker.admin.init import InitRequest, init_partition
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.broker import Rights
from tests.deploy.promql import rules
from tests.drill.scene import GROUP, TOPIC, Drill, unknown
from tests.kit.dead_letters import Scene

pytestmark = pytest.mark.feature

DOCUMENT = Path(__file__).parents[2] / "docs" / "incidents" / "index.md"
WORKER = "worker memory-0"


@pytest.fixture
def drill() -> Iterator[Drill]:
    """An installation with one pair and a real topic."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        yield Drill(stack)


def test_a_checker_that_always_raises(drill: Drill) -> None:
    """Failed attempts are counted apart; a repaired checker decides what waited."""
    stack, broken = drill.stack, [True]

    def check(_: MessageView) -> Resolution:
        if broken:
            raise RuntimeError("no such table")
        return Resolution.COMMIT

    with stack.producer(GROUP, checker=check) as producer:
        alert, labels = "HalfbridgeCheckersFail", {"group": GROUP, "resolution": "FAILED"}
        before = drill.metric(alert, **labels)
        tx = producer.begin()
        tx.send(Message(TOPIC, value=b"v"))
        stack.advance(600)
        assert drill.metric(alert, **labels) > before
        assert drill.doctor() == {}
        broken.clear()
        stack.advance(600)
        assert drill.values() == [b"v"]


def test_a_hung_database(drill: Drill) -> None:
    """Checkers out of time are failed attempts; the answers count once the database is back."""
    stack, hung = drill.stack, [True]

    def check(_: MessageView) -> Resolution:
        stack.machine.scheduler.wait(producer.process, lambda: not hung, None)
        return Resolution.COMMIT

    with stack.producer(GROUP, checker=check) as producer:
        alert, labels = "HalfbridgeCheckersFail", {"group": GROUP, "resolution": "FAILED"}
        before = drill.metric(alert, **labels)
        transactions = [producer.begin() for _ in range(3)]
        for number, tx in enumerate(transactions):
            tx.send(Message(TOPIC, key=b"k", value=b"%d" % number))
        stack.advance(600)
        assert drill.metric(alert, **labels) >= before + len(transactions)
        assert producer.check_counts().hung == len(transactions)
        assert drill.doctor() == {}
        assert stack.undecided() == [tx.id for tx in transactions]
        hung.clear()
        stack.advance(10)
        assert producer.check_counts().hung == 0
        assert sorted(map(str, drill.values())) == ["b'0'", "b'1'", "b'2'"]
        assert stack.dead_letters() == []


def test_a_real_topic_deleted(drill: Drill) -> None:
    """Deliveries wait, the topic is made again within the time, and nothing is a dead letter."""
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        tx = producer.begin()
        tx.send(Message(TOPIC, value=b"v"))
        drill.broker.delete_topic(TOPIC)
        tx.commit()
        drill.stack.advance(20)
        assert drill.metric("HalfbridgeRealTopicMissing", topic=TOPIC) == 1
        assert "halfbridge topics create orders --type transaction" in drill.health.reason
        assert drill.doctor()["real-topic"].fix.startswith("halfbridge topics create orders ")
        drill.broker.create_topic(NewTopic(TOPIC, 1, 1, {}))
        drill.stack.advance(20)
        assert drill.values() == [b"v"]
        assert drill.stack.dead_letters() == []
        assert drill.health.all_well


def test_a_group_renamed(drill: Drill) -> None:
    """Its transactions stay undecided until a member has the old name again."""

    def commit(_: MessageView) -> Resolution:
        return Resolution.COMMIT

    with drill.stack.producer(GROUP, checker=commit) as producer:
        tx = producer.begin()
        tx.send(Message(TOPIC, value=b"v"))
    with drill.stack.producer("orders-v2", checker=commit):
        before = drill.metric("HalfbridgeNobodyAnswers", group=GROUP)
        drill.stack.advance(700)
        assert drill.metric("HalfbridgeNobodyAnswers", group=GROUP) > before
        assert drill.metric("HalfbridgeOldestUndecidedTooOld") > 600
        assert GROUP in drill.doctor()["no-responder"].what
    with drill.stack.producer(GROUP, checker=commit):
        drill.stack.advance(1_300)
        assert drill.values() == [b"v"]


def test_rights_taken_away(drill: Drill) -> None:
    """The message waits, then it is a dead letter; after the grant it is redelivered, once."""
    drill.broker.rights["doctor"] = drill.broker.rights[WORKER] = Rights(unwritten={TOPIC})
    before = drill.metric("HalfbridgeDeadLetters", reason="UNDELIVERABLE")
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.send(producer, b"v")
        drill.stack.advance(10)
        assert not drill.stack.dead_letters()
        drill.stack.advance(drill.stack.config.topic_gone_ms / 1000)
    (letter,) = drill.stack.dead_letters()
    assert letter.letter.reason is DeadReason.UNDELIVERABLE
    assert drill.metric("HalfbridgeDeadLetters", reason="UNDELIVERABLE") == before + 1
    assert "--operation Write --topic orders" in drill.doctor()["daemon-right"].fix
    drill.broker.rights.clear()
    drill.stack.advance(30)
    for _ in range(2):
        Scene(drill.stack).redo(Remedy.REDELIVER)
        drill.stack.advance(10)
    assert drill.values() == [b"v"]


def test_a_worker_that_cannot_join(drill: Drill) -> None:
    """What is committed meanwhile is delivered once a worker is in the group."""
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.stack.daemon.kill()
        drill.stack.advance(60)
        drill.send(producer, b"v")
        assert any(each["alert"] == "HalfbridgeDown" for each in rules())
        assert drill.doctor()["no-worker"].fix.startswith("halfbridge checker run")
        drill.stack.daemon.start()
        drill.stack.advance(10)
        assert drill.values() == [b"v"]


def test_retention_too_short(drill: Drill) -> None:
    """The running daemon says it within seconds, and is well again after the command."""
    half = drill.broker.topic(drill.names.half)
    kept = half.settings["retention.ms"]
    half.alter({"retention.ms": "60000"})
    drill.stack.advance(30)
    alert = {"topic": drill.names.half, "setting": "retention.ms"}
    assert drill.metric("HalfbridgeTopicSettings", **alert) == 1
    assert "retention.ms" in drill.health.reason
    fix = drill.doctor()["topic-setting"].fix
    assert f"--set retention.ms={kept}" in fix
    half.alter({"retention.ms": kept})
    drill.stack.advance(30)
    assert drill.health.all_well
    assert "topic-setting" not in drill.doctor()


def test_a_frozen_last_stable_offset(drill: Drill) -> None:
    """Somebody's open kafka_txn on a real topic holds its readers back until it is aborted."""
    ports = drill.stack.machine.ports(drill.stack.machine.process("somebody"))
    writer = ports.kafka.transactional_writer({"transactional.id": "x"})
    writer.init(10)
    writer.begin()
    writer.produce(TOPIC, b"open", None, 0, lambda *_: None, 0, [])
    writer.flush(10)
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.send(producer, b"v")
        drill.stack.advance(30)
        assert drill.values() == []
        frozen = drill.doctor()["frozen-lso"]
        assert "abort --topic orders --partition 0 --start-offset 0" in frozen.fix
        writer.abort(10)
        drill.stack.advance(10)
        assert drill.values() == [b"v"]


def test_a_poison_message(drill: Drill) -> None:
    """A record that cannot be read is a dead letter, and holds up nobody."""
    before = drill.metric("HalfbridgeDeadLetters", reason="INVALID")
    Scene(drill.stack).put(drill.names.half, b"k", b"poison", [("RMQ_HALF", b"\xff\x00")])
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.send(producer, b"v")
        drill.stack.advance(10)
    assert drill.values() == [b"v"]
    (letter,) = drill.stack.dead_letters()
    assert (letter.letter.reason, letter.record.value) == (DeadReason.INVALID, b"poison")
    assert drill.metric("HalfbridgeDeadLetters", reason="INVALID") == before + 1


def test_a_full_disk(drill: Drill) -> None:
    """The brokers are gone with their disk; once they are back, what was acknowledged arrives."""
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.send(producer, b"before", wait=True)
        network = drill.stack.machine.network
        network.is_down = True
        drill.stack.advance(120)
        tx = producer.begin()
        with pytest.raises(HalfNotStoredError):
            tx.send(Message(TOPIC, value=b"refused"))
        assert drill.metric("HalfbridgeCannotWork", cause="work") == 1
        assert not drill.health.all_well
        assert drill.doctor().keys() == {"unreachable"}
        network.is_down = False
        drill.stack.advance(60)
        assert drill.metric("HalfbridgeCannotWork", cause="work") == 0
        drill.send(producer, b"after")
        drill.stack.advance(10)
    assert drill.values() == [b"before", b"after"]
    assert drill.stack.dead_letters() == []


def test_a_wrong_clock(drill: Drill) -> None:
    """A client's clock an hour ahead decides nothing; doctor names the group."""
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        producer.process.skew_ms = 3_600_000
        drill.send(producer, b"v")
        drill.stack.advance(10)
        wrong = drill.doctor()["clock-client"]
    assert GROUP in wrong.what
    assert "3600 s ahead" in wrong.what
    assert drill.values() == [b"v"]


def test_a_lost_installations_offsets(drill: Drill) -> None:
    """The pair stops rather than guess; `checker init` finds where it stood, and delivers on."""
    with drill.stack.producer(GROUP, checker=unknown) as producer:
        drill.send(producer, b"before")
        drill.stack.advance(10)
        drill.stack.daemon.kill()
        drill.stack.advance(60)
        drill.broker.group(drill.names.daemon_group).committed.clear()
        drill.send(producer, b"meanwhile")
        with pytest.raises(TimeoutError, match="stopped"):
            drill.stack.daemon.start()
        assert drill.metric("HalfbridgePartitionStopped") == 1
        assert "checker init --partition 0" in drill.doctor()["offsets"].fix
        drill.stack.daemon.kill()
        drill.stack.advance(60)
        found = init_partition(
            drill.cluster(), drill.names, InitRequest(partition=0, half_start=-1, op_start=-1)
        )
        assert found.exact
        drill.stack.daemon.start()
        drill.stack.advance(10)
        assert drill.values() == [b"before", b"meanwhile"]


def test_the_document_names_each_drill() -> None:
    """Each section's test is there, each test of a drill has a section, and alerts exist."""
    text = DOCUMENT.read_text("utf-8")
    named = set(re.findall(r"`(test_[a-z_]+)`", text))
    assert named == {name for name in globals() if name.startswith("test_a_")} | {
        "test_rights_taken_away",
        "test_retention_too_short",
    }
    alerts = set(re.findall(r"`(Halfbridge[A-Za-z]+)`", text))
    assert alerts <= {each.get("alert") for each in rules()}

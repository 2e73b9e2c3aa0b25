"""Facts that doctor gathers from brokers in memory: rights, workers, logs, clocks."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, NoReturn

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.acls import daemon_acls, missing_of
from halfbridge.checker.admin.doctor.facts import (
    Severity,
    foreign_modules,
    host_facts,
    memory_bytes,
    write_bundle,
)
from halfbridge.checker.admin.doctor.gather import Questions
from halfbridge.checker.admin.doctor.judge import judge
from halfbridge.checker.admin.doctor.logs import END_MS
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.signing_keys import MARGIN_MS, Role
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.broker import Rights
from tests.kit.signing import ROLES, a_key, a_table, write_key_file
from tests.unit.checker.admin.doctor.scene import PROCESS, facts_of, found_by

GROUP = "order-service"


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic("orders")
        yield started


def unknown(_: MessageView) -> Resolution:
    """Return UNKNOWN."""
    return Resolution.UNKNOWN


def test_nothing_is_wrong_with_an_installation_that_works(stack: MemoryStack) -> None:
    """All questions of doctor are answered, and there is no finding."""
    with stack.producer(GROUP, checker=unknown) as producer, producer.begin() as tx:
        tx.send(Message("orders", value=b"v"))
    with stack.producer(GROUP, checker=unknown):
        stack.advance(10)
        facts = facts_of(stack, real_topics=("orders",), client_kafka={}, producer_groups=(GROUP,))
        assert facts.silent == {}
        assert found_by(stack, real_topics=("orders",)) == {}
    assert facts.workers is not None
    assert len(facts.workers) == 1
    assert facts.record is not None
    assert [clock.producer_group for clock in facts.clocks] == [GROUP]
    assert facts.newest_ms > 0
    assert facts.half_per_s == pytest.approx(1 / 3600)


def test_a_right_that_is_missing_is_named_with_its_grant(stack: MemoryStack) -> None:
    """The finding names the missing operation and topic; its fix is the command that grants it."""
    broker = stack.machine.broker
    broker.rights[PROCESS] = Rights(unwritten={"orders"})
    found = found_by(stack, real_topics=("orders",))
    assert "may not Write topic orders" in found["daemon-right"].what
    assert "--operation Write --topic orders" in found["daemon-right"].fix


def test_a_topic_that_deliveries_wait_for_is_named_without_being_asked_for(
    stack: MemoryStack,
) -> None:
    """A missing topic is an error with the command that creates it, until the topic exists."""
    broker = stack.machine.broker
    stack.create_topic("ghost")
    with stack.producer(GROUP, checker=unknown) as producer:
        for topic in ("ghost", "orders"):
            tx = producer.begin()
            tx.send(Message(topic, value=b"v"))
            if topic == "ghost":
                ghostly = tx.id
                broker.delete_topic(topic)
            tx.commit()
        stack.advance(5)
        found = found_by(stack)["real-topic"]
        assert found.severity is Severity.ERROR
        assert found.what.startswith("topic ghost does not exist: deliveries of 1 transaction wait")
        assert ghostly in found.what
        assert found.fix.startswith("halfbridge topics create ghost --type transaction")
        stack.create_topic("ghost")
        stack.advance(5)
        assert found_by(stack) == {}


def test_a_partition_that_is_away_is_named(stack: MemoryStack) -> None:
    """An offline real partition is named while a delivery waits, an internal one always."""
    broker, names = stack.machine.broker, stack.config.names
    with stack.producer(GROUP, checker=unknown) as producer:
        for place in (("orders", 0), (names.dead, 0), (names.check(GROUP), 0)):
            broker.go_away(place, is_leaderless=True)
        with producer.begin() as tx:
            tx.send(Message("orders", key=b"k", value=b"v"))
        stack.advance(5)
        found = judge(facts_of(stack), stack.config)
        away = [each.what for each in found if each.code == "topic-offline"]
        (waits,) = (each for each in found if each.code == "partition-offline")
        assert waits.what.startswith("partition 0 of topic orders has no leader: it needs broker 0")
        assert waits.severity is Severity.ERROR
        assert sorted(away) == sorted(
            f"{topic}: partition {number} has no leader: it needs broker 0; what needs the"
            " partition waits until then"
            for topic, number in ((names.dead, 0), (names.check(GROUP), 0))
        )


def test_silent_brokers_are_no_secret(stack: MemoryStack) -> None:
    """If brokers do not answer for a partition, doctor reports the deliveries that wait."""
    stack.machine.broker.go_away(("orders", 0), is_leaderless=False)
    with stack.producer(GROUP, checker=unknown) as producer:
        with producer.begin() as tx:
            tx.send(Message("orders", key=b"k", value=b"v"))
        stack.advance(20)
        found = found_by(stack)["delivery-waits"]
        assert "deliveries to orders wait" in found.what
        assert found.fix.startswith(f"halfbridge tx explain {tx.id} ")


def test_no_worker_and_nobody_who_answers(stack: MemoryStack) -> None:
    """Doctor reports that no worker runs, and that a producer group has no responder."""
    with stack.producer(GROUP, checker=unknown):
        pass
    stack.daemon.kill()
    stack.advance(60)
    found = found_by(stack)
    assert found["no-worker"].fix == "halfbridge checker run --bootstrap-servers memory"
    assert GROUP in found["no-responder"].what


def test_a_plain_writer_of_a_transaction_topic(tmp_path: Path) -> None:
    """Records that the daemon did not write are counted, in topics of type transaction only."""
    policy = tmp_path / "policy.toml"
    policy.write_text('default = "allow"\n[topics]\n"orders" = "transaction"\n', "utf-8")
    with MemoryStack(policy_file=policy) as stack:
        for topic in ("orders", "clicks"):
            stack.create_topic(topic)
        with stack.producer(GROUP, checker=unknown) as producer, producer.begin() as tx:
            tx.send(Message("orders", value=b"v"))
        stack.advance(10)
        assert facts_of(stack).plain == ()
        ports = stack.machine.ports(stack.machine.process("somebody"))
        writer = ports.kafka.writer({})
        for topic in ("orders", "orders", "clicks"):
            writer.produce(topic, b"plain", None, 0, lambda *_: None)
        writer.flush(10)
        (plain,) = facts_of(stack).plain
        assert (plain.topic, plain.records) == ("orders", 2)
        assert "transaction topic orders: 2" in found_by(stack)["plain-writer"].what


def test_a_topic_that_is_missing(stack: MemoryStack) -> None:
    """Doctor reports a missing internal topic with the command that creates it."""
    stack.machine.broker.delete_topic(stack.config.names.dead)
    found = found_by(stack)
    assert found["topic-missing"].fix.startswith("halfbridge topics create")


def test_an_open_kafka_txn_holds_back_readers(stack: MemoryStack) -> None:
    """The finding names partition and transaction, and the command that aborts the kafka_txn."""
    ports = stack.machine.ports(stack.machine.process("writer"))
    writer = ports.kafka.transactional_writer({"transactional.id": "somebody"})
    writer.init(10)
    writer.begin()
    headers = [("__transactionId__", b"A" * 32)]
    writer.produce("orders", b"v", None, 0, lambda *_: None, 0, headers)
    writer.flush(10)
    stack.advance(5)
    assert "frozen-lso" not in found_by(stack, real_topics=("orders",))
    stack.advance(30)
    frozen = found_by(stack, real_topics=("orders",))["frozen-lso"]
    assert "orders 0" in frozen.what
    assert "A" * 32 in frozen.what
    assert "abort --topic orders --partition 0 --start-offset 0" in frozen.fix
    writer.abort(10)
    assert "frozen-lso" not in found_by(stack, real_topics=("orders",))


# --- facts of this machine -----------------------------------------------------------------


def test_this_machine_answers() -> None:
    """The host facts have memory and client versions; no module comes from elsewhere."""
    reported = host_facts()
    assert reported.memory_bytes > 0
    assert reported.foreign == {}
    assert all(reported.kafka_client)


def test_a_control_group_limits_the_machines_memory(tmp_path: Path) -> None:
    """The smaller limit counts; `max` and a missing file are no limit."""
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "memory.max"
    assert memory_bytes(meminfo, cgroup) == 0
    meminfo.write_text("MemTotal:  1024 kB\nMemFree: 1 kB\n")
    assert memory_bytes(meminfo, cgroup) == 1 << 20
    cgroup.write_text("max\n")
    assert memory_bytes(meminfo, cgroup) == 1 << 20
    cgroup.write_text("4096\n")
    assert memory_bytes(meminfo, cgroup) == 4096


def test_rooms_that_come_from_elsewhere_are_named(tmp_path: Path) -> None:
    """Packages that are imported from another directory than the installed one are listed."""
    assert set(foreign_modules(tmp_path)) == {
        "halfbridge.serde",
        "halfbridge.bridge",
        "halfbridge.checker",
    }


# --- concurrent questions with one deadline ------------------------------------------------

TIMEOUT_S = 0.3


def refuse() -> NoReturn:
    """Raise the error of a broker that refuses."""
    raise KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED, "no")


def test_one_that_is_silent_holds_up_none() -> None:
    """Answers and refusals are recorded; all silent questions end at the one deadline."""
    never = Event()
    questions = Questions(system_ports(), TIMEOUT_S)
    began = monotonic()
    for number in range(5):
        questions.start(f"silent {number}", never.wait)
    questions.start("answered", lambda: 7)
    questions.start("refused", refuse)
    questions.wait()
    assert TIMEOUT_S <= monotonic() - began < 5 * TIMEOUT_S
    never.set()
    assert questions.answer("answered", 0) == 7
    assert questions.answer("silent 0", -1) == -1
    assert "no" in questions.silent["refused"]
    assert questions.silent["silent 4"] == "no answer within 0.3 s"
    assert "answered" not in questions.silent


# --- needed grants against the operations that brokers report -----------------------------

NAMES = TopicNames("p.")


def test_only_what_is_missing_is_granted() -> None:
    """Only missing operations are listed, and none if the broker reports no operations."""
    grants = {acl.name: acl for acl in daemon_acls(NAMES, "User:d", real_topics=("orders",))}
    half, op = grants[NAMES.half], grants[NAMES.op]
    lacks = missing_of(
        {NAMES.half: half, NAMES.op: op, "orders": grants["orders"]},
        {NAMES.half: frozenset(("Read", "Describe")), NAMES.op: None, "orders": frozenset()},
    )
    assert [(acl.name, acl.operations) for acl in lacks] == [
        (NAMES.half, ("Write", "DescribeConfigs")),
        ("orders", ("Write", "Describe", "DescribeConfigs")),
    ]


# --- findings about signatures: clients without signatures, keys that expire ---------------

OLD, NEW = "old-service", "new-service"
HOUR_MS = 3_600_000


def commit(_: MessageView) -> Resolution:
    """Return COMMIT."""
    return Resolution.COMMIT


def send(stack: MemoryStack, group: str, **settings: Any) -> None:
    """Commit one transaction as a client of a group."""
    with stack.producer(group, checker=commit, **settings) as producer, producer.begin() as tx:
        tx.send(Message("orders", value=b"v"))


def signing(tmp_path: Path, *, in_ms: int) -> MemoryStack:
    """Return an installation whose key file demands signatures `in_ms` after its first instant."""
    path = tmp_path / "keys.toml"
    write_key_file(path, a_table(demands=[]))
    with MemoryStack() as clock:
        now_ms = clock.machine.ports(clock.machine.process("clock")).clock.time_ms()
    demands = [{"groups": ["*"], "from_ms": now_ms + in_ms}]
    return MemoryStack(key_file=write_key_file(path, a_table(demands=demands)))


def test_clients_without_a_key_file_are_reported_before_the_demand(tmp_path: Path) -> None:
    """The warning names the producer group and how many of its half records are not signed."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        send(stack, NEW)
        (one,) = facts_of(stack).not_believed
        assert (one.producer_group, one.role, one.records) == (OLD, Role.CLIENT, 1)
        found = found_by(stack)["not-signed"]
        assert found.severity is Severity.WARNING
        assert f"producer group {OLD}: 1 half record of its clients would not be" in found.what
        assert str(stack.config.key_file) in found.fix


def test_a_demand_in_two_days_is_not_judged_yet(tmp_path: Path) -> None:
    """Unsigned records make no finding when the demand begins in 48 hours."""
    with signing(tmp_path, in_ms=48 * HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        assert facts_of(stack).not_believed == ()


def test_records_that_are_not_believed_are_an_error(tmp_path: Path) -> None:
    """Unsigned records are an error once the demand has begun, also when they are dead letters."""
    with signing(tmp_path, in_ms=-HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, NEW)
        send(stack, OLD, key_file="")
        found = found_by(stack)["not-signed"]
        assert found.severity is Severity.ERROR
        assert OLD in found.what
        assert "unsigned" in found.what
        stack.advance(5)
        assert [each.producer_group for each in facts_of(stack).not_believed] == [OLD]


def test_a_client_that_has_its_file_since_is_no_finding(tmp_path: Path) -> None:
    """Unsigned records older than the newest signed one by MARGIN_MS are no finding."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        stack.advance(MARGIN_MS / 1_000 + 1)
        send(stack, OLD)
        assert facts_of(stack).not_believed == ()
        send(stack, OLD, key_file="")
        send(stack, OLD)
        (one,) = facts_of(stack).not_believed
        assert one.records == 1


def test_copies_of_a_worker_without_a_key_file_are_the_workers(tmp_path: Path) -> None:
    """An unsigned put-back copy is reported for the daemon, not for the client."""
    keys = write_key_file(tmp_path / "keys.toml", a_table())
    with MemoryStack() as stack:  # its worker has no key file
        stack.create_topic("orders")
        producer = stack.producer(OLD, checker=unknown, key_file=str(keys))
        with producer:
            producer.begin().send(Message("orders", value=b"v"))
            stack.advance(600)
        config = replace(stack.config, key_file=keys)
        found = facts_of(stack, config=config).not_believed
    assert {(each.producer_group, each.role) for each in found} == {(OLD, Role.DAEMON)}


def test_a_key_that_ends_and_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """A key that expires soon is a warning; an invalid key file is an error."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        path = tmp_path / "keys.toml"
        now_ms = stack.machine.ports(stack.machine.process("clock")).clock.time_ms()
        ends = a_key("client", valid_until_ms=now_ms + END_MS)
        others = [a_key(role) for role in ROLES if role != "client"]
        write_key_file(path, a_table(ends, *others))
        found = found_by(stack)["keys"]
        assert found.severity is Severity.WARNING
        assert "key client-1 ends" in found.what
        path.write_text("no TOML", "utf-8")
        assert found_by(stack)["key-file"].severity is Severity.ERROR


def test_a_bundle_holds_no_secret(tmp_path: Path) -> None:
    """The bundle has the facts about unsigned records and no secret of a key."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        bundle = tmp_path / "bundle.zip"
        write_bundle(bundle, facts_of(stack), (), stack.config, version="1")
    with zipfile.ZipFile(bundle) as opened:
        texts = [opened.read(name).decode() for name in opened.namelist()]
    assert any(OLD in text for text in texts)
    assert not any(a_key(role)["secret"] in text for text in texts for role in ROLES)
    assert json.loads(texts[1])["not_believed"]

"""`halfbridge audit-log` on a real broker."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from halfbridge.bridge import MessageView, Resolution
from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.cli import cli
from halfbridge.serde.identity import TransactionIds
from halfbridge.serde.records import ActionOutcome
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _invoke(installation: Installation, *words: str) -> Result:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, [*words, *place, *prefix])


@pytest.mark.feature
def test_what_operators_did_is_listed(installation: Installation) -> None:
    """For people in lines that nobody forges, for machines as one object."""
    installation.make()
    cluster = Cluster(installation.servers)
    with appending(cluster) as appender:
        log = OperatorLog(cluster, installation.names, appender, who="ada@host")
        action = log.record("tx commit", "t1", why="a\nb", before="PREPARED", after="COMMITTED")
        log.conclude(action, ActionOutcome.DONE, after="COMMITTED at 0:7")
        appender.append((installation.names.audit, 0), b"nonsense", b"k")

    result = _invoke(installation, "audit-log", "list", "--since", "1h")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.stderr
    assert [line.split()[2] for line in lines if "ada@host" in line] == ["INTENDED", "DONE"]
    assert "why     a\\nb" in result.stdout
    assert "offset 2 cannot be read: OperatorAction: not in single-object encoding" in lines[-1]

    result = _invoke(installation, "audit-log", "list", "--action", "tx", "--json")
    first, second = json.loads(result.stdout)["actions"]
    assert first["outcome"] == "INTENDED"
    assert second["action_id"] == first["action_id"] == action.action_id
    assert (second["outcome"], second["after"]) == ("DONE", "COMMITTED at 0:7")


def test_without_its_topic_the_command_says_what_makes_it(installation: Installation) -> None:
    """An installation made before there was an audit topic keeps working."""
    installation.make()
    installation.delete(installation.names.audit)
    result = _invoke(installation, "audit-log", "list")
    assert result.exit_code == 1
    assert "is missing" in result.stderr
    assert f"topics create --bootstrap-servers {installation.servers}" in result.stderr


# --- `halfbridge groups` on a real broker --------------------------------------------------


def _groups(installation: Installation, *words: str) -> Result:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, ["groups", *words, *place, *prefix])


def _unknown(_: MessageView) -> Resolution:
    return Resolution.UNKNOWN


@pytest.mark.feature
def test_members_and_answers_are_shown(installation: Installation) -> None:
    """A member that answers a check is listed with its answer; nobody joins its group for it."""
    installation.make(groups=(GROUP,))
    topic = installation.topic("orders")
    installation.start(transaction_timeout_ms=500)
    with installation.producer(_unknown):
        half = installation.half(topic, TransactionIds().next())

        def is_answered() -> bool:
            body = json.loads(_groups(installation, "list", "--json").stdout)
            return any(each["last_answer"] for each in body["groups"])

        until("the answer is seen", is_answered)
        (facts,) = json.loads(_groups(installation, "list", "--json").stdout)["groups"]
        assert (facts["group"], facts["undecided"], len(facts["members"])) == (GROUP, 1, 1)
        assert facts["ops"]["UNKNOWN"] >= 1
        assert facts["oldest_undecided_id"] == half.transaction_id
        shown = _groups(installation, "show", GROUP)
        assert shown.exit_code == 0
        assert half.transaction_id in shown.stdout
        lines = _groups(installation, "list").stdout.splitlines()
    assert (lines[0].split()[0], lines[1].split()[0]) == ("GROUP", GROUP)


def test_a_group_that_nobody_saw_is_an_error(installation: Installation) -> None:
    """One line, exit status 1."""
    installation.make()
    result = _groups(installation, "show", "nobody")
    assert result.exit_code == 1
    assert "no group nobody was seen" in result.stderr


# --- `halfbridge doctor` on real brokers: one that is sound, and one that refuses rights ---

EVERYBODY = "User:ANONYMOUS"

# Findings about the machine that the tests run on.
OF_THE_MACHINE = {"memory", "open-files"}


@pytest.fixture
def made(guarded_servers: str, topic_prefix: str) -> Iterator[Installation]:
    """An installation with a real topic and a worker."""
    with closing(Installation(guarded_servers, topic_prefix)) as installation:
        installation.make(partitions=2)
        installation.topic("orders")
        yield installation


def doctor(made: Installation, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit status, and findings that are not of the machine, by code."""
    place = ("--bootstrap-servers", made.servers, "--topic-prefix", made.names.prefix)
    settings = ("--transaction-timeout-ms", "600000", "--real-topic", made.real("orders"))
    result = CliRunner().invoke(cli, ["doctor", "--json", *place, *settings, *words])
    assert result.stdout, result.stderr
    body: dict[str, Any] = json.loads(result.stdout)
    found = {each["code"]: each for each in body["findings"]}
    return result.exit_code, {c: each for c, each in found.items() if c not in OF_THE_MACHINE}


def deny(made: Installation, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Take one right on a resource away and leave all others."""
    literal, rights = ResourcePatternType.LITERAL, AclPermissionType
    acls = [
        AclBinding(kind, name, literal, EVERYBODY, "*", AclOperation.ALL, rights.ALLOW),
        AclBinding(kind, name, literal, EVERYBODY, "*", operation, rights.DENY),
    ]
    for future in made.admin.create_acls(acls).values():
        future.result()


@pytest.mark.feature
def test_a_sound_installation_has_no_findings(made: Installation) -> None:
    """Every question is answered by a real broker; without its worker that is the finding."""
    assert set(doctor(made)[1]) == {"no-worker"}
    made.start()
    status, found = doctor(made)
    assert found == {}
    assert status < 2


def test_pairs_that_no_worker_needs_are_noted(guarded_servers: str, topic_prefix: str) -> None:
    """With the rate of half messages that a real broker's offsets show; a note fails nothing."""
    with closing(Installation(guarded_servers, topic_prefix)) as made:
        made.make(partitions=8)
        made.topic("orders")
        made.start()
        status, found = doctor(made)
    assert set(found) == {"surplus-pairs"}
    assert found["surplus-pairs"]["what"].startswith("8 pairs, and 1 worker with 0 half messages")
    assert status < 2


def test_rights_are_tried(made: Installation) -> None:
    """On a topic, by what the broker says; of transactional ids, by taking one."""
    made.start()
    orders = made.real("orders")
    deny(made, ResourceType.TOPIC, orders, AclOperation.WRITE)
    status, found = doctor(made)
    assert status == 2
    assert f"--operation Write --topic {orders}" in found["daemon-right"]["fix"]
    own = f"{made.names.prefix}halfbridge-doctor"
    deny(made, ResourceType.TRANSACTIONAL_ID, own, AclOperation.WRITE)
    _, found = doctor(made)
    assert "transactional ids" in found["daemon-right"]["what"]


def test_a_frozen_end_is_found(made: Installation) -> None:
    """Somebody's kafka_txn on a real topic, older than the daemon's may become."""
    made.start()
    orders = made.real("orders")
    writer = Producer(
        {"bootstrap.servers": made.servers, "transactional.id": made.names.prefix + "somebody"}
    )
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(orders, b"v", timestamp=1_600_000_000_000)
    writer.flush()
    _, found = doctor(made)
    assert f"abort --topic {orders} --partition" in found["frozen-lso"]["fix"]
    writer.abort_transaction()

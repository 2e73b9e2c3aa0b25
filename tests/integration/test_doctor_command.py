"""`halfbridge doctor` on real brokers: one that is sound, and one that refuses rights."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from halfbridge.cli import cli
from tests.integration.installation import Installation

pytestmark = pytest.mark.broker

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


def test_rights_are_tried(made: Installation) -> None:
    """On a topic, by what the broker says; of transactional ids, by taking one."""
    made.start()
    orders = made.real("orders")
    deny(made, ResourceType.TOPIC, orders, AclOperation.WRITE)
    status, found = doctor(made)
    assert status == 2
    assert f"--operation Write --topic {orders}" in found["daemon-right"]["mend"]
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
    assert f"abort --topic {orders} --partition" in found["frozen-lso"]["mend"]
    writer.abort_transaction()

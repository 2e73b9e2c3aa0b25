"""Conformance case 30 on a real broker: types of topics gate messages, as far as Kafka allows."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from halfbridge.bridge import Message, MessageView, Resolution, TopicSetupError
from halfbridge.cli import cli
from halfbridge.serde.records import DeadReason
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _unknown(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


def _create(installation: Installation, *words: str) -> Any:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, ["topics", "create", *words, *place, *prefix])


@pytest.mark.feature
def test_case_030_a_plain_topic_takes_no_transaction(
    installation: Installation, tmp_path: Path
) -> None:
    """The client refuses, the daemon dead-letters, and a topic of another or no type takes all."""
    plain, typed = installation.real("clicks"), installation.real("payments")
    orders = installation.real("orders")  # without a type
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f'default = "allow"\n[topics]\n"{plain}" = "plain"\n"{typed}" = "transaction"\n', "utf-8"
    )
    installation.start(policy_file=policy)
    old = installation.producer(_unknown, topics=[])
    with old:
        early = [old.begin() for _ in range(2)]
        for name, kind in ((plain, "plain"), (typed, "transaction")):
            result = _create(
                installation, name, "--type", kind, "--policy-file", str(policy), "--json"
            )
            assert result.exit_code == 0, result.stderr
            body = json.loads(result.stdout)
            assert (body["created"], body["in_policy"]) == (True, True)

        half = installation.half(plain, "0" * 31 + "1")
        installation.commit(half)  # by a client that looks at no type

        def refused() -> bool:
            try:
                early[0].send(Message(plain, value=b"1"))
            except TopicSetupError as error:
                return "is plain" in str(error)
            return False

        until("the client refuses", refused)
        for name in (typed, orders):
            with old.begin() as transaction:
                transaction.send(Message(name, value=name.encode()))
    for name in (typed, orders):
        (real,) = installation.tail(name).until(1)
        assert real.value == name.encode()
    (letter, *_) = installation.tail(installation.names.dead).until(1)
    assert letter.dead.reason is DeadReason.NOT_ALLOWED
    bound = installation.producer(_unknown, topics=[plain])
    with bound, pytest.raises(TopicSetupError, match="is plain"):
        bound.begin()


def test_a_type_is_reported_with_its_grants(installation: Installation) -> None:
    """Messages have none: that of the topic is made known, with the daemon as its only writer."""
    name = installation.real("payments")
    result = _create(installation, name, "--type", "transaction", "--acls")
    assert result.exit_code == 0, result.stderr
    assert f'add below [topics] in the policy file of all workers: "{name}" =' in result.stdout
    (grant,) = (line for line in result.stdout.splitlines() if line.startswith("kafka-acls.sh"))
    assert "--allow-principal User:halfbridge --operation Write" in grant
    again = _create(installation, name, "--type", "transaction")
    assert again.stdout.startswith("exists")
    for words in ((name,), ("--type", "plain")):
        assert "NAME and --type need each other" in _create(installation, *words).stderr
    internal = _create(installation, installation.names.half, "--type", "plain")
    assert "is an internal name" in internal.stderr

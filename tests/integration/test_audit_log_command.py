"""`halfbridge audit-log` on a real broker."""

import json

import pytest
from click.testing import CliRunner, Result

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.cli import cli
from halfbridge.serde.records import ActionOutcome
from tests.integration.installation import Installation

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

"""`halfbridge groups` on a real broker."""

import json

import pytest
from click.testing import CliRunner, Result

from halfbridge.bridge import MessageView, Resolution
from halfbridge.cli import cli
from halfbridge.serde.identity import TransactionIds
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _invoke(installation: Installation, *words: str) -> Result:
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
            body = json.loads(_invoke(installation, "list", "--json").stdout)
            return any(each["last_answer"] for each in body["groups"])

        until("the answer is seen", is_answered)
        (facts,) = json.loads(_invoke(installation, "list", "--json").stdout)["groups"]
        assert (facts["group"], facts["undecided"], len(facts["members"])) == (GROUP, 1, 1)
        assert facts["ops"]["UNKNOWN"] >= 1
        assert facts["oldest_undecided_id"] == half.transaction_id
        shown = _invoke(installation, "show", GROUP)
        assert shown.exit_code == 0
        assert half.transaction_id in shown.stdout
        lines = _invoke(installation, "list").stdout.splitlines()
    assert (lines[0].split()[0], lines[1].split()[0]) == ("GROUP", GROUP)


def test_a_group_that_nobody_saw_is_an_error(installation: Installation) -> None:
    """One line, exit status 1."""
    installation.make()
    result = _invoke(installation, "show", "nobody")
    assert result.exit_code == 1
    assert "no group nobody was seen" in result.stderr

"""`halfbridge tx commit` and `rollback` on a real broker, beside a running daemon."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from halfbridge.bridge import Message
from halfbridge.cli import cli
from halfbridge.serde.identity import TransactionIds
from tests.integration.installation import GROUP, Installation

pytestmark = pytest.mark.broker
IDS = TransactionIds()
ACTING = ("--reason", "the row is there", "--actor", "ada@h", "--yes")
HOUR_MS = 3_600_000


def _invoke(installation: Installation, *words: str) -> Result:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, [*words, *place, *prefix])


def _json(installation: Installation, *words: str) -> tuple[int, Any]:
    result = _invoke(installation, *words, "--json")
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def _message(topic: str) -> Message:
    return Message(topic, value=b"two shirts")


@pytest.fixture
def orders(installation: Installation) -> str:
    """The real topic of an installation with a daemon that asks after an hour."""
    installation.make(partitions=2, groups=(GROUP,))
    topic = installation.topic("orders")
    installation.start(transaction_timeout_ms=HOUR_MS)
    return topic


@pytest.mark.feature
def test_one_transaction_is_committed_and_another_rolled_back(
    installation: Installation, orders: str
) -> None:
    """The command says what would happen and who won; the audit log has all of it."""
    first, second = (installation.half(orders, IDS.next(), partition=n) for n in range(2))
    words = ("tx", "commit", first.transaction_id, "--messages", "1", *ACTING)
    young = _invoke(installation, *words)
    assert young.exit_code == 1
    assert "give --force if its producer is dead" in young.stderr

    status, told = _json(installation, *words, "--force")
    assert (status, told["won"], told["outcome"]) == (0, True, "DONE")
    assert told["stands"] == {
        "decision": "COMMIT",
        "source": "OPERATOR",
        "actor": "ada@h",
        "reason": "the row is there",
        "offset": told["offset"],
    }
    result = _invoke(installation, "tx", "rollback", second.transaction_id, *ACTING, "--force")
    assert result.exit_code == 0, result.stderr
    assert "ROLLBACK delivers nothing of its 1 message" in result.stderr
    assert "won; ROLLBACK by OPERATOR ada@h" in result.stdout

    (real,) = installation.delivered(orders)
    assert real.transaction_id == first.transaction_id
    assert installation.dead_letters() == []
    again = _invoke(installation, *words)
    assert again.exit_code == 1
    assert "is COMMITTED already: COMMIT by OPERATOR ada@h" in again.stderr
    assert _json(installation, "tx", "show", first.transaction_id)[1]["state"] == "COMMITTED"
    _, log = _json(installation, "audit-log", "list", "--action", "tx commit")
    assert [each["outcome"] for each in log["actions"]] == ["INTENDED", "DONE"]
    assert {each["subject"] for each in log["actions"]} == {first.transaction_id}


def test_many_are_rolled_back_up_to_a_limit(installation: Installation, orders: str) -> None:
    """A dry run says what would be decided and writes nothing; then the oldest ones are."""
    halves = [installation.half(orders, IDS.next(), partition=n % 2) for n in range(5)]
    words = ("tx", "rollback", "--all", "--older-than", "0s", "--group", GROUP, "--force", *ACTING)
    status, told = _json(installation, *words, "--dry-run")
    assert (status, told["matching"], len(told["would"]), told["decided"]) == (0, 5, 5, [])
    assert _json(installation, "tx", "list")[1]["undecided"] == 5

    status, told = _json(installation, *words, "--limit", "4", "--rate", "100")
    assert (status, told["matching"], len(told["decided"])) == (0, 5, 4)
    assert all(each["won"] for each in told["decided"])
    (left,) = _json(installation, "tx", "list")[1]["transactions"]
    assert left["id"] in {each.transaction_id for each in halves}
    assert installation.delivered(orders) == []


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("tx", "commit", "t1"), "give one of --messages N, --messages all, and --fence-url"),
        (("tx", "commit", "t1", "--messages", "0"), "allowed: 1 to 1000, or all"),
        (("tx", "rollback"), "give either ID or --all"),
        (("tx", "rollback", "t1", "--all"), "give either ID or --all"),
        (("tx", "rollback", "--all"), "--all needs --older-than SPAN"),
        (("tx", "rollback", "t1", "--group", "g"), "--older-than and --group need --all"),
    ],
)
def test_wrong_usage_is_told(words: tuple[str, ...], wanted: str) -> None:
    """Before anything is asked of a broker."""
    result = CliRunner().invoke(cli, [*words, *ACTING])
    assert result.exit_code == 2
    assert wanted in result.stderr


def test_nobody_is_found_and_nobody_is_asked(installation: Installation, orders: str) -> None:
    """An id that nobody knows; and a question that nobody is there to answer."""
    unknown = _invoke(installation, "tx", "rollback", IDS.next(), *ACTING)
    assert unknown.exit_code == 1
    assert "was found: check the id and --topic-prefix" in unknown.stderr
    half = installation.half(orders, IDS.next())
    asked = _invoke(installation, "tx", "rollback", half.transaction_id, "--reason", "r", "--force")
    assert asked.exit_code == 2
    assert "standard input is no terminal; give --yes" in asked.stderr
    assert _json(installation, "tx", "list")[1]["undecided"] == 1


@pytest.mark.feature
def test_the_fence_decides(installation: Installation, orders: str, tmp_path: Path) -> None:
    """A rollback writes its row first; a commit takes its count from a committed row."""
    pytest.importorskip("sqlalchemy")
    from sqlalchemy import create_engine  # noqa: PLC0415  (an extra)

    from halfbridge.sql import Fence  # noqa: PLC0415

    url = f"sqlite:///{tmp_path / 'shop.db'}"
    fence = Fence(create_engine(url), producer_group=GROUP)
    fence.create()
    words = (*ACTING, "--force", "--fence-url", url)
    with installation.producer(fence.check, topics=[orders]) as producer:
        transactions = [producer.begin(context=fence.context()) for _ in range(2)]
        for each in transactions:
            each.send(_message(orders))
        (committed, open_one), unfenced = transactions, producer.begin()
        unfenced.send(_message(orders))
        with fence.engine.connect() as connection:
            fence.database.begin(connection)
            fence.enter(connection, committed)
            connection.commit()

    refused = _invoke(installation, "tx", "rollback", committed.id, *words)
    assert refused.exit_code == 1
    assert "says committed: its local transaction has committed" in refused.stdout
    status, told = _json(installation, "tx", "commit", committed.id, *words)
    assert (status, told["won"]) == (0, True)

    refused = _invoke(installation, "tx", "commit", open_one.id, *words)
    assert "has no row in halfbridge_fence" in refused.stdout
    status, told = _json(installation, "tx", "rollback", open_one.id, *words)
    assert (status, told["won"]) == (0, True)
    assert fence.roll_back(open_one.id)

    refused = _invoke(installation, "tx", "rollback", unfenced.id, *words)
    assert "was begun without a fence" in refused.stdout
    (real,) = installation.delivered(orders)
    assert real.transaction_id == committed.id

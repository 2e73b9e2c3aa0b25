"""`halfbridge dead` on a real broker, with a daemon at work."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from halfbridge import Resolution
from halfbridge.cli import cli
from halfbridge.serde.records import OpKind, OpSource
from tests.integration.installation import Installation
from tests.integration.tail import Stored
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
WHY = ("--reason", "the topic is there now", "--actor", "ann", "--yes")
TOPIC_GONE_MS = 3_000


def invoke(installation: Installation, *words: str) -> Any:
    """Run `halfbridge dead <words>`."""
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, ["dead", *words, *place, *prefix])


def reported(installation: Installation, *words: str, status: int = 0) -> Any:
    """Run a command with --json, and return the object."""
    done = invoke(installation, *words, "--json")
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def open_ids(installation: Installation) -> list[str]:
    """Return the transactions with open dead letters."""
    return [each["id"] for each in reported(installation, "list")["transactions"]]


def refused(installation: Installation, topic: str, count: int = 1) -> Stored:
    """Commit a transaction to a topic that is not there; return its last half message."""
    half = installation.half(topic, value=b"0")
    for index in range(1, count):
        half = installation.half(
            topic, half.transaction_id, value=b"%d" % index, message_index=index
        )
    installation.commit(half, message_count=count)
    return half


@pytest.mark.feature
def test_refused_transactions_are_redelivered_once(installation: Installation) -> None:
    """Listed, shown, delivered once however often the command runs, and purged."""
    installation.make()
    installation.start(topic_gone_ms=TOPIC_GONE_MS)
    absent = installation.real("absent")
    first, second = refused(installation, absent, 2), refused(installation, absent)
    ids = [first.transaction_id, second.transaction_id]
    until("both are dead letters", lambda: open_ids(installation) == ids)

    shown = invoke(installation, "list", "--topic", absent).stdout
    assert "UNDELIVERABLE" in shown.splitlines()[1]
    life = reported(installation, "show", ids[0], "--payload")["lives"][0]
    assert [b64decode(each["value"]) for each in life["payloads"]] == [b"0", b"1"]
    assert {each["standing"] for each in life["payloads"]} == {"PROVEN"}

    is_refused = invoke(installation, "redeliver", "--all", *WHY)
    create = f"halfbridge topics create {absent} --type transaction"
    assert f"topic {absent} is missing: run {create}" in is_refused.stdout
    assert is_refused.stdout.endswith("0 transactions would be stored again; 2 refused\n")
    assert (is_refused.exit_code, open_ids(installation)) == (1, ids)

    installation.create(absent)
    dry = reported(installation, "redeliver", "--all", "--dry-run", *WHY)
    assert [each["id"] for each in dry["would_be_done"]] == ids
    assert open_ids(installation) == ids
    for words in (("redeliver", "--all", "--dry-run", *WHY), ("export",)):
        part = invoke(installation, *words, "--limit", "1")
        assert "note: 1 more; see --limit" in part.stderr
    done = reported(installation, "redeliver", "--all", *WHY)
    assert [(each["id"], each["messages"]) for each in done["done"]] == [
        (ids[0], [0, 1]),
        (ids[1], [0]),
    ]
    assert reported(installation, "redeliver", "--all", *WHY) == {
        "would_be_done": [],
        "refused": [],
    }
    assert [each.value for each in installation.delivered(absent)] == [b"0", b"1", b"0"]

    purged = reported(installation, "purge", *WHY)
    assert purged["dead_letters"] == 3
    assert reported(installation, "list", "--done")["transactions"] == []
    assert reported(installation, "purge", *WHY)["dead_letters"] == 0
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    words = ("audit-log", "list", "--action", "dead", "--json", *place, *prefix)
    kept = CliRunner().invoke(cli, words)
    actions = json.loads(kept.stdout)["actions"]
    assert [(each["action"], each["subject"], each["outcome"]) for each in actions[:4]] == [
        ("dead redeliver", ids[0], "INTENDED"),
        ("dead redeliver", ids[1], "INTENDED"),
        ("dead redeliver", ids[0], "DONE"),
        ("dead redeliver", ids[1], "DONE"),
    ]


@pytest.mark.feature
def test_a_discarded_transaction_is_resumed(installation: Installation) -> None:
    """The group is asked about it again, and its answer has it delivered."""
    installation.make()
    orders = installation.topic("orders")
    installation.start(transaction_timeout_ms=200)
    half = installation.half(orders, value=b"resumed")
    installation.op(OpKind.DISCARD, half, source=OpSource.OPERATOR)
    until("it is a dead letter", lambda: open_ids(installation) == [half.transaction_id])
    assert reported(installation, "redeliver", half.transaction_id, *WHY, status=1)["refused"]
    asked: list[str] = []

    def check(view: Any) -> Resolution:
        asked.append(view.transaction_id)
        return Resolution.COMMIT

    with installation.producer(check, topics=[orders]):
        reported(installation, "resume", half.transaction_id, *WHY)
        (record,) = installation.tail(orders).until(1)
    assert (record.value, asked) == (b"resumed", [half.transaction_id])


def test_an_export_is_repaired_and_given_back(installation: Installation, tmp_path: Path) -> None:
    """A message with a reserved header is refused until a file has it without that header."""
    installation.make()
    orders = installation.topic("orders")
    installation.start()
    half = installation.half(orders, value=b"flawed", headers=[("RMQ_DEAD", b"forged")])
    installation.commit(half)
    until("it is a dead letter", lambda: open_ids(installation) == [half.transaction_id])
    (refusal,) = reported(installation, "redeliver", half.transaction_id, *WHY, status=1)["refused"]
    assert "reserved header RMQ_DEAD" in refusal["why"]

    exported = invoke(installation, "export", half.transaction_id).stdout
    line = json.loads(exported)
    line["headers"] = []
    file = tmp_path / "repaired.jsonl"
    file.write_text(json.dumps(line) + "\n")
    reported(installation, "redeliver", half.transaction_id, "--with", str(file), *WHY)
    assert [each.value for each in installation.delivered(orders)] == [b"flawed"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("redeliver", *WHY), "give ids, or --all"),
        (("redeliver", "--all"), "--reason"),
        (("redeliver", "--all", "--message", "1", *WHY), "--message needs exactly one ID"),
        (("list", "--since", "yesterday"), "'yesterday' is no time"),
    ],
)
def test_wrong_usage_names_the_flag(
    installation: Installation, words: tuple[str, ...], text: str
) -> None:
    """One line, exit status 2."""
    done = invoke(installation, *words)
    assert done.exit_code == 2
    assert text in done.stderr


def test_a_missing_topic_is_reported(installation: Installation) -> None:
    """Nothing was made under this prefix: the error names the command that makes it."""
    done = invoke(installation, "list")
    assert done.exit_code == 1
    assert "topics create" in done.stderr

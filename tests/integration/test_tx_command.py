"""`halfbridge tx` on a real broker, with a running daemon and without one."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine

from halfbridge.bridge import Message
from halfbridge.cli import cli
from halfbridge.serde.headers import HALF
from halfbridge.serde.identity import TransactionIds
from halfbridge.sql import Fence
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
IDS = TransactionIds()


def _invoke(installation: Installation, *words: str) -> Result:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, ["tx", *words, *place, *prefix])


def _json(installation: Installation, *words: str) -> Any:
    return json.loads(_invoke(installation, *words, "--json").stdout)


@pytest.mark.feature
def test_beside_a_daemon_the_life_of_each_is_shown(installation: Installation) -> None:
    """Undecided, committed and rolled back ones; nobody joins the daemon's group for it."""
    installation.make(partitions=2, groups=(GROUP,))
    topic = installation.topic("orders", partitions=3)
    installation.start(transaction_timeout_ms=1_000)
    halves = [installation.half(topic, IDS.next(), partition=number % 2) for number in range(3)]
    undecided, committed, rolled_back = halves
    installation.commit(committed)
    installation.rollback(rolled_back)
    (record,) = installation.tail(topic).until(1)
    installation.checks(1)
    installation.await_marker(0)

    def counted() -> bool:
        (listed,) = _json(installation, "list")["transactions"]
        return bool(listed["checks_asked"])

    until("the request is seen", counted)
    body = _json(installation, "list")
    (only,) = body["transactions"]
    assert (only["id"], only["state"], body["undecided"]) == (
        undecided.transaction_id,
        "PREPARED",
        1,
    )
    assert (only["producer_group"], only["real_topic"], only["partition"]) == (GROUP, topic, 0)
    assert (only["offset"], only["messages"], only["wait"]) == (
        undecided.offset,
        1,
        "NOBODY_ANSWERS",
    )

    life = _json(installation, "show", committed.transaction_id)
    assert (life["id"], life["state"], life["is_applied"]) == (
        committed.transaction_id,
        "COMMITTED",
        True,
    )
    assert [each["kind"] for each in life["events"]] == ["half", "decision", "delivery"]
    delivery = life["events"][-1]
    assert (delivery["topic"], delivery["partition"], delivery["offset"]) == (
        topic,
        record.partition,
        record.offset,
    )
    assert _json(installation, "show", rolled_back.transaction_id)["state"] == "ROLLED_BACK"
    waiting = _json(installation, "show", undecided.transaction_id)
    assert [each["kind"] for each in waiting["events"]][:2] == ["half", "check"]

    shown = _invoke(installation, "show", committed.transaction_id)
    assert shown.exit_code == 0
    assert f"{topic}[{record.partition}]@{record.offset}" in shown.stdout
    explained = _invoke(installation, "explain", undecided.transaction_id)
    assert "NOBODY_ANSWERS" in explained.stdout
    table = _invoke(installation, "list").stdout.splitlines()
    assert (table[0].split()[0], table[1].split()[0]) == ("ID", undecided.transaction_id)
    assert table[-1] == "1 undecided transaction"


def test_a_transaction_is_found_by_a_key(installation: Installation) -> None:
    """With what became of it; text, printed bytes and hexadecimal digits name the same key."""
    installation.make(partitions=2)
    topic, other = installation.topic("orders"), installation.topic("bills")
    installation.start()
    key = b"order-42\xff"
    delivered = installation.half(topic, IDS.next(), key=key)
    open_ = installation.half(other, IDS.next(), key=key, partition=1)
    installation.half(topic, IDS.next(), key=b"order-4")
    installation.commit(delivered)
    (record,) = installation.tail(topic).until(1)

    table = _invoke(installation, "find", "--key", "order-42\\xff")
    assert table.exit_code == 0
    assert f"delivered to {topic}[{record.partition}]@{record.offset}" in table.stdout
    assert table.stdout.splitlines()[-1].startswith("2 transactions with the key order-42\\xff (3 ")
    body = _json(installation, "find", "--key", f"0x{key.hex()}", "--topic", other)
    assert [each["id"] for each in body["transactions"]] == [open_.transaction_id]
    assert body["transactions"][0]["half"]["offset"] == open_.offset
    limited = _invoke(installation, "find", "--key", "order-42\\xff", "--limit", "1").stdout
    assert "the newest 1 of them shown" in limited
    listed = {each["id"]: each["key"] for each in _json(installation, "list")["transactions"]}
    assert listed[open_.transaction_id] == "order-42\\xff"

    nothing = _invoke(installation, "find", "--key", "order-42", "--json")
    assert (nothing.exit_code, json.loads(nothing.stdout)["transactions"]) == (1, [])
    assert "no transaction with the key order-42 was found (3 half records read" in nothing.stderr
    assert nothing.stderr.endswith("search further back with --since, such as --since 7d\n")


def test_without_a_daemon_the_log_alone_tells(installation: Installation) -> None:
    """Nothing was applied yet, and the decision is valid all the same."""
    installation.make(partitions=2)
    topic = installation.topic("orders")
    decided, open_ = (installation.half(topic, IDS.next()) for _ in range(2))
    installation.commit(decided)
    body = _json(installation, "list")
    assert [each["id"] for each in body["transactions"]] == [open_.transaction_id]
    assert body["transactions"][0]["wait"] == "NOT_DUE"
    life = _json(installation, "show", decided.transaction_id)
    assert (life["state"], life["is_applied"]) == ("COMMITTED", False)


def test_a_real_topic_that_is_missing_is_named_by_explain_and_doctor(
    installation: Installation,
) -> None:
    """With the command that creates it, and when the message becomes a dead letter otherwise."""
    installation.make(partitions=2)
    topic, other = installation.topic("ghost"), installation.topic("orders")
    installation.start(topic_gone_ms=120_000)
    waits = installation.half(topic, IDS.next(), partition=1)
    installation.delete(topic)
    installation.commit(waits)
    installation.commit(installation.half(other, IDS.next(), partition=1))
    assert installation.tail(other).until(1)

    until("it is deferred", lambda: installation.progress(1).deferred == (0,))
    text = _invoke(installation, "explain", waits.transaction_id).stdout
    create = f"halfbridge topics create {topic} --type transaction"
    assert f"Topic {topic} does not exist; run {create}." in text
    assert "UNDELIVERABLE, 2m0s after the decision" in text
    shown = _invoke(installation, "show", waits.transaction_id).stdout
    assert "COMMITTED, delivery deferred" in shown
    assert f"lacks: topic {topic} does not exist: {create}" in shown
    (lack,) = _json(installation, "show", waits.transaction_id)["lacks"]
    assert (lack["topic"], lack["fix"]) == (topic, create)

    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    doctor = CliRunner().invoke(cli, ["doctor", "--json", *place, *prefix])
    found = {each["code"]: each for each in json.loads(doctor.stdout)["findings"]}
    assert waits.transaction_id in found["real-topic"]["what"]
    assert found["real-topic"]["fix"].startswith(create)

    installation.create(topic)
    assert installation.tail(topic).until(1)
    assert "lacks:" not in _invoke(installation, "show", waits.transaction_id).stdout


def test_what_is_not_there_is_an_exit_status(installation: Installation) -> None:
    """1, with one line on standard error and an answer for machines; 2 for a wrong flag."""
    installation.make()
    missing = IDS.next()
    result = _invoke(installation, "show", missing, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "NOT_FOUND"
    assert f"no transaction {missing} was found" in result.stderr
    result = _invoke(installation, "show", uuid.uuid4().hex)
    assert result.exit_code == 1
    assert "--from TIME" in result.stderr
    assert _invoke(installation, "list", "--older-than", "soon").exit_code == 2
    result = _invoke(installation, "list", "--partition", "9")
    assert result.exit_code == 1
    assert "--partition 9" in result.stderr


def test_strangers_records_neither_break_nor_forge_lines(installation: Installation) -> None:
    """Junk in half and op topic, header names that are no UTF-8, and ids that are escapes."""
    installation.make(partitions=2)
    topic = installation.topic("orders")
    mine = installation.half(topic, IDS.next())
    forged = installation.half(topic, "\x1b[2J\nfake line", producer_group="strangers")
    for partition in (0, 1):
        installation.write(installation.names.half, b"junk" * 10_000, partition=partition)
        installation.write(
            installation.names.half, b"x", headers=[(HALF, b"\xc3\x01")], partition=partition
        )
        installation.write(installation.names.op, b"\x00" * 100_000, partition=partition)
    table = _invoke(installation, "list").stdout.splitlines()
    assert len(table) == 4
    assert any("\\x1b[2J\\nfake line" in line for line in table)
    result = _invoke(installation, "show", mine.transaction_id)
    assert result.exit_code == 0
    shown = _json(installation, "show", forged.transaction_id, "--from", "1h")
    assert shown["state"] == "PREPARED"


def test_a_stopped_pair_is_an_exit_status_and_a_way_out(installation: Installation) -> None:
    """Other pairs are listed all the same."""
    installation.make(partitions=2)
    topic = installation.topic("orders")
    half = installation.half(topic, IDS.next(), partition=1)
    installation.set_committed(installation.names.op, 0, "reset")
    result = _invoke(installation, "list")
    assert result.exit_code == 1
    assert half.transaction_id in result.stdout
    assert "halfbridge checker init --partition 0" in result.stderr


def test_watch_repeats_the_list(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON object a line, until Ctrl-C."""
    installation.make()
    half = installation.half(installation.topic("orders"), IDS.next())
    rounds = iter(range(2))

    def wait(_seconds: float) -> None:
        if next(rounds):
            raise KeyboardInterrupt

    monkeypatch.setattr("halfbridge.cli.tx.sleep", wait)
    result = _invoke(installation, "list", "--watch", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["transactions"][0]["id"] == half.transaction_id == second["transactions"][0]["id"]
    assert result.exit_code == 130


# --- `halfbridge tx commit` and `rollback` on a real broker, beside a running daemon -------

ACTING = ("--reason", "the row is there", "--actor", "ada@h", "--yes")
HOUR_MS = 3_600_000


def _decide(installation: Installation, *words: str) -> Result:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    return CliRunner().invoke(cli, [*words, *place, *prefix])


def _decided_json(installation: Installation, *words: str) -> tuple[int, Any]:
    result = _decide(installation, *words, "--json")
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
    young = _decide(installation, *words)
    assert young.exit_code == 1
    assert "give --force if its producer is dead" in young.stderr

    status, reported = _decided_json(installation, *words, "--force")
    assert (status, reported["won"], reported["outcome"]) == (0, True, "DONE")
    assert reported["first_decision"] == {
        "decision": "COMMIT",
        "source": "OPERATOR",
        "actor": "ada@h",
        "reason": "the row is there",
        "offset": reported["offset"],
    }
    result = _decide(installation, "tx", "rollback", second.transaction_id, *ACTING, "--force")
    assert result.exit_code == 0, result.stderr
    assert "ROLLBACK delivers nothing of its 1 message" in result.stderr
    assert "won; ROLLBACK by OPERATOR ada@h" in result.stdout

    (real,) = installation.delivered(orders)
    assert real.transaction_id == first.transaction_id
    assert installation.dead_letters() == []
    again = _decide(installation, *words)
    assert again.exit_code == 1
    assert "is COMMITTED already: COMMIT by OPERATOR ada@h" in again.stderr
    assert (
        _decided_json(installation, "tx", "show", first.transaction_id)[1]["state"] == "COMMITTED"
    )
    _, log = _decided_json(installation, "audit-log", "list", "--action", "tx commit")
    assert [each["outcome"] for each in log["actions"]] == ["INTENDED", "DONE"]
    assert {each["subject"] for each in log["actions"]} == {first.transaction_id}


def test_many_are_rolled_back_up_to_a_limit(installation: Installation, orders: str) -> None:
    """A dry run says what would be decided and writes nothing; then the oldest ones are."""
    halves = [installation.half(orders, IDS.next(), partition=n % 2) for n in range(5)]
    words = ("tx", "rollback", "--all", "--older-than", "0s", "--group", GROUP, "--force", *ACTING)
    status, reported = _decided_json(installation, *words, "--dry-run")
    assert (status, reported["matching"], len(reported["would"]), reported["decided"]) == (
        0,
        5,
        5,
        [],
    )
    assert _decided_json(installation, "tx", "list")[1]["undecided"] == 5

    status, reported = _decided_json(installation, *words, "--limit", "4", "--rate", "100")
    assert (status, reported["matching"], len(reported["decided"])) == (0, 5, 4)
    assert all(each["won"] for each in reported["decided"])
    (left,) = _decided_json(installation, "tx", "list")[1]["transactions"]
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
def test_wrong_usage_is_reported(words: tuple[str, ...], wanted: str) -> None:
    """Before anything is asked of a broker."""
    result = CliRunner().invoke(cli, [*words, *ACTING])
    assert result.exit_code == 2
    assert wanted in result.stderr


def test_nobody_is_found_and_nobody_is_asked(installation: Installation, orders: str) -> None:
    """An id that nobody knows; and a question that nobody is there to answer."""
    unknown = _decide(installation, "tx", "rollback", IDS.next(), *ACTING)
    assert unknown.exit_code == 1
    assert "was found: check the id and --topic-prefix" in unknown.stderr
    half = installation.half(orders, IDS.next())
    asked = _decide(installation, "tx", "rollback", half.transaction_id, "--reason", "r", "--force")
    assert asked.exit_code == 2
    assert "standard input is no terminal; give --yes" in asked.stderr
    assert _decided_json(installation, "tx", "list")[1]["undecided"] == 1


@pytest.mark.feature
def test_the_fence_decides(installation: Installation, orders: str, tmp_path: Path) -> None:
    """A rollback writes its row first; a commit takes its count from a committed row."""
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

    refused = _decide(installation, "tx", "rollback", committed.id, *words)
    assert refused.exit_code == 1
    assert "says committed: its local transaction has committed" in refused.stdout
    status, reported = _decided_json(installation, "tx", "commit", committed.id, *words)
    assert (status, reported["won"]) == (0, True)

    refused = _decide(installation, "tx", "commit", open_one.id, *words)
    assert "has no row in halfbridge_fence" in refused.stdout
    status, reported = _decided_json(installation, "tx", "rollback", open_one.id, *words)
    assert (status, reported["won"]) == (0, True)
    assert fence.roll_back(open_one.id)

    refused = _decide(installation, "tx", "rollback", unfenced.id, *words)
    assert "was begun without a fence" in refused.stdout
    (real,) = installation.delivered(orders)
    assert real.transaction_id == committed.id

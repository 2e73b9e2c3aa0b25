"""`halfbridge topics` and `halfbridge checker init` on a real broker."""

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import ConfigResource

from halfbridge.cli import cli
from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.serde.progress import START
from halfbridge.serde.topics import PAIRS
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
STAMPED = {"message_timestamp_type": "LogAppendTime"}


class Commanded(Installation):
    """An installation that commands are run on."""

    @property
    def orders(self) -> str:
        """The real topic."""
        return self.real("orders")

    def invoke(self, *words: str) -> Any:
        """Run `halfbridge <words>`."""
        place = ("--bootstrap-servers", self.servers, "--topic-prefix", self.names.prefix)
        return CliRunner().invoke(cli, [*words, *place])

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run `halfbridge <words> --json` and return status and object."""
        result = self.invoke(*words, "--json")
        assert result.stdout, result.stderr
        return result.exit_code, json.loads(result.stdout)

    def fails(self, *words: str) -> str:
        """Run a command that fails and return its line."""
        result = self.invoke(*words)
        assert result.exit_code == 1
        return result.stderr

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result()
        return {name: entry.value for name, entry in entries.items()}

    def partitions(self, topic: str) -> int:
        """Return a topic's number of partitions."""
        return len(self.admin.list_topics(timeout=20).topics[topic].partitions)

    def deliver(self, transaction_id: str) -> None:
        """Append to the real topic what the daemon would."""
        self.write(self.orders, b"body", headers=[(TRANSACTION_ID, transaction_id.encode())])

    def forget_offsets(self) -> None:
        """Delete the daemon's group, as brokers do when offsets expire."""
        group = self.names.daemon_group
        self.admin.delete_consumer_groups([group])[group].result()


@pytest.fixture
def installation(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Commanded]:
    """An installation without topics; they are deleted afterwards."""
    with closing(Commanded(kafka_bootstrap_servers, topic_prefix)) as made:
        yield made


def _create(installation: Commanded, *words: str) -> dict[str, Any]:
    status, report = installation.run(
        "topics", "create", "--producer-group", GROUP, "--replication-factor", "1", *words
    )
    assert status == 0, report
    return report


@pytest.mark.feature
def test_create_makes_topics_and_first_offsets(installation: Commanded) -> None:
    """All six topics as docs/how-to/deploy.md has them, and a start for every partition."""
    names = installation.names

    report = _create(installation)

    mine = {names.half, names.op, names.dead, names.check(GROUP), names.settings, names.audit}
    assert set(report["created"]) == mine
    assert report["initialised"] == [*range(PAIRS)]
    assert installation.partitions(names.half) == installation.partitions(names.op) == PAIRS
    assert installation.settings(names.op)["message.timestamp.type"] == "LogAppendTime"
    for partition in range(PAIRS):
        assert not installation.committed(names.half, partition).metadata
        assert installation.progress(partition) == START


def test_create_again_changes_nothing(installation: Commanded) -> None:
    """It is idempotent; a further producer group only gets its check topic."""
    _create(installation)

    again = _create(installation)
    other = _create(installation, "--producer-group", "billing")

    assert (again["created"], again["initialised"]) == ([], [])
    assert other["created"] == [installation.names.check("billing")]


def test_existing_topic_is_checked_and_not_altered(installation: Commanded) -> None:
    """A difference is reported with its command, by create and by check, and left alone."""
    names = installation.names
    _create(installation)
    installation.alter(names.half, retention_bytes="1000")

    for command in ("create", "check"):
        status, report = installation.run("topics", command, "--replication-factor", "1")
        (problem,) = report["problems"]
        assert status == 1
        assert problem["subject"] == names.half
        assert f"{names.half} --set retention.bytes=-1" in problem["fix"]

    assert installation.settings(names.half)["retention.bytes"] == "1000"


def test_a_half_topic_that_is_raised_alone_is_reported(
    installation: Commanded, tmp_path: Path
) -> None:
    """Dead-letter and check topics take less than a copy then, and real topics less than it."""
    names = installation.names
    _create(installation)
    installation.topic("orders")
    installation.alter(names.half, max_message_bytes="4000000")
    wanted = {names.dead: 4_000_000 + 131_072, names.check(GROUP): 4_000_000 + 131_072}

    def problems(*words: str) -> dict[str, int]:
        status, report = installation.run("topics", "check", "--replication-factor", "1", *words)
        assert status == int(any(each["blocking"] for each in report["problems"]))
        return {each["subject"]: int(each["fix"].split("=")[-1]) for each in report["problems"]}

    assert problems() == wanted
    with_real = {**wanted, installation.orders: 4_000_000 - 65_536}
    assert problems("--real-topic", installation.orders) == with_real
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[groups]\n"{GROUP}" = ["{installation.orders}"]\n', "utf-8")
    assert problems("--policy-file", str(policy)) == with_real
    for topic, limit in wanted.items():
        installation.alter(topic, max_message_bytes=str(limit))
    assert problems("--real-topic", installation.orders) == {
        installation.orders: 4_000_000 - 65_536
    }
    _create(installation, "--producer-group", "late")
    assert problems() == {}


def test_check_tells_how_long_what_is_needed_stays(installation: Commanded) -> None:
    """From the half message at H; with less than a day, it is a problem."""
    names = installation.names
    _create(installation, "--partitions", "1")
    words = ("topics", "check", "--replication-factor", "1")
    assert installation.run(*words)[1]["retention_left_s"] is None
    installation.half(installation.orders, "a" * 32)
    status, report = installation.run(*words)
    week_s = 7 * 24 * 3600
    assert status == 0
    assert week_s - 3600 < report["retention_left_s"] <= week_s + 3600
    for topic in (names.half, names.op):
        installation.alter(topic, retention_ms=str(3_600_000))
    _, report = installation.run(*words)
    assert report["retention_left_s"] < 2 * 3600
    (problem,) = (each for each in report["problems"] if each["subject"] == f"{names.half} 0")
    assert problem["blocking"]
    assert problem["fix"].endswith(f"{names.half} --set retention.ms=-1")


@pytest.mark.feature
def test_check_names_everything_missing(installation: Commanded) -> None:
    """On an empty cluster each topic is named, with the command that makes it."""
    status, report = installation.run("topics", "check", "--producer-group", GROUP)

    assert status == 1
    assert len(report["problems"]) == 6
    for problem in report["problems"]:
        assert "halfbridge topics create" in problem["fix"]


@pytest.mark.feature
def test_grow_adds_partitions_and_their_first_offsets(installation: Commanded) -> None:
    """Both topics grow, the new partitions start at 0, the old ones keep their offsets."""
    names = installation.names
    _create(installation, "--partitions", "2")

    report = _create(installation, "--grow", "--partitions", "3")

    assert report["grown"] == [names.op, names.half]
    assert report["initialised"] == [2]
    assert installation.partitions(names.half) == installation.partitions(names.op) == 3


def test_more_partitions_without_grow_change_nothing(installation: Commanded) -> None:
    """--partitions alone is for new installations."""
    _create(installation, "--partitions", "2")

    report = _create(installation, "--partitions", "3")

    assert (report["grown"], report["initialised"]) == ([], [])


def test_missing_half_topic_gets_its_twins_partition_count(installation: Commanded) -> None:
    """A command cut off between the two topics is completed, whatever the count now asked."""
    names = installation.names
    installation.create(names.op, partitions=3, **STAMPED)

    installation.run("topics", "create", "--replication-factor", "1")

    assert installation.partitions(names.half) == 3


def test_a_wrong_setting_is_altered_by_the_command_that_is_printed(installation: Commanded) -> None:
    """`topics check` prints `topics alter`, which mends; an unknown setting is one line."""
    half = installation.names.half
    _create(installation)
    installation.alter(half, retention_bytes="1000")
    _, report = installation.run("topics", "check", "--replication-factor", "1")
    program, *words = shlex.split(report["problems"][0]["fix"])

    assert program == "halfbridge"
    assert CliRunner().invoke(cli, words).exit_code == 0
    until("altered", lambda: installation.settings(half)["retention.bytes"] == "-1")
    assert "no.such" in installation.fails("topics", "alter", half, "--set", "no.such=1")


def test_partitions_are_described_and_missing_topics_named(installation: Commanded) -> None:
    """Leader, replicas and state of each; without a name those of the installation."""
    _create(installation, "--partitions", "2")
    status, mine = installation.run("topics", "describe")
    halves = [each for each in mine["partitions"] if each["topic"] == installation.names.half]
    assert status == 0
    assert [(each["partition"], each["cause"]) for each in halves] == [(0, ""), (1, "")]
    assert halves[0]["in_sync"] == halves[0]["replicas"] == [halves[0]["leader"]]

    result = installation.invoke("topics", "describe", installation.names.op, "ghost")
    assert result.exit_code == 1
    assert "takes records" in result.stdout
    assert "halfbridge topics create ghost --type transaction" in result.stdout


def test_a_real_topic_grows(installation: Commanded) -> None:
    """`topics create NAME --grow` adds partitions; without --grow a topic keeps what it has."""
    _create(installation)
    orders = installation.orders
    create = ("topics", "create", orders, "--type", "transaction", "--partitions")
    assert installation.run(*create, "1", "--grow")[1]["created"]
    assert not installation.run(*create, "3")[1]["grown"]
    assert installation.partitions(orders) == 1
    assert installation.run(*create, "3", "--grow")[1]["grown"]
    assert installation.partitions(orders) == 3
    assert not installation.run(*create, "3", "--grow")[1]["grown"]


def test_offsets_are_never_guessed_where_ops_stand(installation: Commanded) -> None:
    """Expired offsets of a used partition are a problem for `checker init`, not a new start."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.commit(installation.half(installation.orders, "a" * 32))
    installation.forget_offsets()

    status, report = installation.run("topics", "create", "--replication-factor", "1")

    assert status == 1
    assert report["initialised"] == []
    assert "checker init --partition 0" in report["problems"][0]["fix"]
    assert installation.committed(names.op).offset < 0


@pytest.mark.feature
def test_init_continues_behind_delivered_records(installation: Commanded) -> None:
    """Delivered transactions are passed, undelivered and undecided ones are kept."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.topic("orders")
    ids = [letter * 32 for letter in "abc"]
    halves = [installation.half(installation.orders, each) for each in ids]
    installation.half(installation.orders, "d" * 32)  # undecided
    for half in halves:
        installation.commit(half)
    installation.write(names.half, b"junk")
    installation.write(names.op, b"junk")
    installation.deliver(ids[0])
    installation.forget_offsets()

    status, plan = installation.run("checker", "init", "--partition", "0")

    assert (status, plan["exact"], plan["committed"]) == (0, True, True)
    assert plan["applied"] == [ids[0]]
    assert plan["to_apply"] == ids[1:]
    assert [installation.committed(each).offset for each in (names.half, names.op)] == [1, 1]
    assert installation.progress().rebuild_to == 5
    assert installation.run("topics", "check", "--replication-factor", "1")[0] == 0


def test_init_refuses_to_choose_between_twice_and_never(installation: Commanded) -> None:
    """Delivered out of the prefix: the line names both ways out, and nothing is committed."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.topic("orders")
    for each in ("a" * 32, "b" * 32):
        installation.commit(installation.half(installation.orders, each))
    installation.deliver("b" * 32)
    before = installation.progress()

    line = installation.fails("checker", "init", "--partition", "0")
    _, dry = installation.run("checker", "init", "--partition", "0", "--dry-run")

    assert "--accept-duplicates" in line
    assert "--skip-undelivered" in line
    assert "b" * 32 in line
    assert (dry["exact"], dry["twice"]) == (False, ["b" * 32])
    assert installation.progress() == before

    _, plan = installation.run("checker", "init", "--partition", "0", "--skip-undelivered")
    assert (plan["never"], plan["twice"]) == (["a" * 32], [])
    assert installation.committed(names.op).offset == 2


def test_init_and_grow_refuse_while_a_worker_runs(installation: Commanded) -> None:
    """Both name the live member and what to do about it."""
    _create(installation, "--partitions", "1")
    with closing(installation._in_group()) as consumer:
        consumer.subscribe([installation.names.half])
        until("it has joined", lambda: (consumer.poll(0.1), consumer.assignment())[1])

        assert "stop every worker" in installation.fails("checker", "init", "--partition", "0")
        grow = ("topics", "create", "--grow", "--partitions", "2")
        assert "stopped" in installation.fails(*grow)


def test_a_daemon_that_runs_before_its_topics_is_to_be_stopped_first(
    installation: Commanded,
) -> None:
    """First offsets are refused while it runs; once it has ended, the same command completes."""
    names = installation.names
    for topic in (names.half, names.op):
        installation.create(topic, **STAMPED)
    with closing(installation._in_group()) as consumer:
        consumer.subscribe([names.half])
        until("it has joined", lambda: (consumer.poll(0.1), consumer.assignment())[1])

        said = installation.fails("topics", "create", "--replication-factor", "1")

        assert "started before its topics" in said
        assert "Stop it, run this again" in said

    assert _create(installation)["initialised"] == [0]

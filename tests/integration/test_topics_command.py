"""`halfbridge topics` and `halfbridge checker init` on a real broker."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from halfbridge.bridge.admin_client.kafka_io import AdminClient
from halfbridge.cli import cli
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF, TRANSACTION_ID
from halfbridge.serde.progress import START, parse_progress
from halfbridge.serde.records import OpKind, OpSource, new_half, new_op
from halfbridge.serde.topics import TopicNames
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker
GROUP = "orders-service"


class Installation:
    """An installation of its own on the shared broker, by a fresh prefix."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.names = TopicNames(f"t{uuid.uuid4().hex[:8]}.")
        self.real = f"{self.names.prefix}orders"
        self.admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run `halfbridge <words> --json` and return status and object."""
        options = ("--bootstrap-servers", self.bootstrap_servers)
        prefix = ("--topic-prefix", self.names.prefix, "--json")
        result = CliRunner().invoke(cli, [*words, *options, *prefix])
        assert result.stdout, result.stderr
        return result.exit_code, json.loads(result.stdout)

    def fails(self, *words: str) -> str:
        """Run a command that fails and return its line."""
        options = ("--bootstrap-servers", self.bootstrap_servers)
        prefix = ("--topic-prefix", self.names.prefix)
        result = CliRunner().invoke(cli, [*words, *options, *prefix])
        assert result.exit_code == 1
        return result.stderr

    def committed(self, topic: str, partition: int) -> tuple[int, str]:
        """Return the daemon group's offset and metadata."""
        with self.consumer() as consumer:
            (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=20)
            return found.offset, found.metadata or ""

    def consumer(self) -> Any:
        """Return a consumer in the daemon's group that is assigned nothing."""
        return _Closing(
            Consumer(
                {
                    "bootstrap.servers": self.bootstrap_servers,
                    "group.id": self.names.daemon_group,
                    "enable.auto.commit": False,
                }
            )
        )

    def alter(self, topic: str, key: str, value: str) -> None:
        """Set one setting of a topic by hand."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def settings(self, topic: str) -> dict[str, str]:
        """Return a topic's settings."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result()
        return {name: entry.value for name, entry in entries.items()}

    def partitions(self, topic: str) -> int:
        """Return a topic's number of partitions."""
        return len(self.admin.list_topics(timeout=20).topics[topic].partitions)

    def make_real_topic(self) -> None:
        """Make the real topic."""
        self.admin.create_topics([NewTopic(self.real, 1, 1)])[self.real].result()

    def produce(self, topic: str, value: bytes, headers: list[tuple[str, bytes]]) -> int:
        """Append a record to partition 0; return its offset."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        producer.produce(
            topic,
            value,
            partition=0,
            headers=headers,
            on_delivery=lambda error, message: offsets.append(message.offset()),
        )
        producer.flush(20)
        return offsets[0]

    def half(self, transaction_id: str) -> int:
        """Append a half message of partition 0."""
        metadata = new_half(
            transaction_id=transaction_id,
            born_timestamp=0,
            producer_group=GROUP,
            real_topic=self.real,
        )
        return self.produce(self.names.half, b"body", [(HALF, HALF_METADATA.encode(metadata))])

    def commit_op(self, transaction_id: str, half_offset: int) -> None:
        """Append a COMMIT to op partition 0."""
        source = OpSource.PRODUCER
        op = new_op(
            transaction_id=transaction_id,
            timestamp=0,
            half_offset=half_offset,
            producer_group=GROUP,
            kind=OpKind.COMMIT,
            message_count=1,
            source=source,
            actor="",
        )
        self.produce(self.names.op, OP.encode(op), [])

    def deliver(self, transaction_id: str) -> None:
        """Append to the real topic what the daemon would."""
        self.produce(self.real, b"body", [(TRANSACTION_ID, transaction_id.encode())])


class _Closing:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __enter__(self) -> Any:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


@pytest.fixture
def installation(kafka_bootstrap_servers: str) -> Iterator[Installation]:
    """An installation without topics; they are deleted afterwards."""
    it = Installation(kafka_bootstrap_servers)
    yield it
    known = it.admin.list_topics(timeout=20).topics
    mine = [topic for topic in known if topic.startswith(it.names.prefix)]
    if mine:
        for future in it.admin.delete_topics(mine).values():
            future.result()


def _create(installation: Installation, *words: str) -> dict[str, Any]:
    status, report = installation.run(
        "topics", "create", "--producer-group", GROUP, "--replication-factor", "1", *words
    )
    assert status == 0, report
    return report


def test_create_makes_topics_and_first_offsets(installation: Installation) -> None:
    """All five topics with the settings of docs/operations.md, and a start for every partition."""
    names = installation.names

    report = _create(installation)

    mine = {names.half, names.op, names.dead, names.check(GROUP), names.settings}
    assert set(report["created"]) == mine
    assert report["initialised"] == [0, 1, 2, 3]
    assert installation.partitions(names.half) == installation.partitions(names.op) == 4
    assert installation.settings(names.op)["message.timestamp.type"] == "LogAppendTime"
    for partition in range(4):
        half, text = installation.committed(names.half, partition)
        op, metadata = installation.committed(names.op, partition)
        assert text == ""
        assert parse_progress(half, op, metadata) == START


def test_create_again_changes_nothing(installation: Installation) -> None:
    """It is idempotent; a further producer group only gets its check topic."""
    _create(installation)

    again = _create(installation)
    other = _create(installation, "--producer-group", "billing")

    assert (again["created"], again["initialised"]) == ([], [])
    assert other["created"] == [installation.names.check("billing")]


def test_existing_topic_is_checked_and_not_altered(installation: Installation) -> None:
    """A difference is reported with its command, by create and by check, and left alone."""
    names = installation.names
    _create(installation)
    installation.alter(names.half, "retention.bytes", "1000")

    for command in ("create", "check"):
        status, report = installation.run("topics", command, "--replication-factor", "1")
        (problem,) = report["problems"]
        assert status == 1
        assert problem["subject"] == names.half
        assert f"--entity-name {names.half} --add-config retention.bytes=-1" in problem["fix"]

    assert installation.settings(names.half)["retention.bytes"] == "1000"


def test_a_half_topic_that_is_raised_alone_is_told(
    installation: Installation, tmp_path: Path
) -> None:
    """Dead-letter and check topics take less than a copy then, and real topics less than it."""
    names = installation.names
    _create(installation)
    installation.make_real_topic()
    installation.alter(names.half, "max.message.bytes", "4000000")
    wanted = {names.dead: 4_000_000 + 131_072, names.check(GROUP): 4_000_000 + 131_072}

    def problems(*words: str) -> dict[str, int]:
        status, report = installation.run("topics", "check", "--replication-factor", "1", *words)
        assert status == int(any(each["blocking"] for each in report["problems"]))
        return {each["subject"]: int(each["fix"].split("=")[-1]) for each in report["problems"]}

    assert problems() == wanted
    with_real = {**wanted, installation.real: 4_000_000 - 65_536}
    assert problems("--real-topic", installation.real) == with_real
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[groups]\n"{GROUP}" = ["{installation.real}"]\n', "utf-8")
    assert problems("--policy-file", str(policy)) == with_real
    for topic, limit in wanted.items():
        installation.alter(topic, "max.message.bytes", str(limit))
    assert problems("--real-topic", installation.real) == {installation.real: 4_000_000 - 65_536}
    _create(installation, "--producer-group", "late")
    assert problems() == {}


def test_check_tells_how_long_what_is_needed_stays(installation: Installation) -> None:
    """From the half message that H stands at; with less than a day, it is a problem."""
    names = installation.names
    _create(installation, "--partitions", "1")
    words = ("topics", "check", "--replication-factor", "1")
    assert installation.run(*words)[1]["retention_left_s"] is None
    installation.half("a" * 32)
    status, report = installation.run(*words)
    week_s = 7 * 24 * 3600
    assert status == 0
    assert week_s - 3600 < report["retention_left_s"] <= week_s + 3600
    for topic in (names.half, names.op):
        installation.alter(topic, "retention.ms", str(3_600_000))
    _, report = installation.run(*words)
    assert report["retention_left_s"] < 2 * 3600
    (problem,) = (each for each in report["problems"] if each["subject"] == f"{names.half} 0")
    assert problem["blocking"]
    assert problem["fix"].endswith(f"--entity-name {names.half} --add-config retention.ms=-1")


def test_check_names_everything_missing(installation: Installation) -> None:
    """On an empty cluster each topic is named, with the command that makes it."""
    status, report = installation.run("topics", "check", "--producer-group", GROUP)

    assert status == 1
    assert len(report["problems"]) == 5
    for problem in report["problems"]:
        assert "halfbridge topics create" in problem["fix"]


def test_grow_adds_partitions_and_their_first_offsets(installation: Installation) -> None:
    """Both topics grow, the new partitions start at 0, the old ones keep their offsets."""
    names = installation.names
    _create(installation, "--partitions", "2")

    report = _create(installation, "--grow", "--partitions", "3")

    assert report["grown"] == [names.op, names.half]
    assert report["initialised"] == [2]
    assert installation.partitions(names.half) == installation.partitions(names.op) == 3


def test_more_partitions_without_grow_change_nothing(installation: Installation) -> None:
    """--partitions alone is for new installations."""
    _create(installation, "--partitions", "2")

    report = _create(installation, "--partitions", "3")

    assert (report["grown"], report["initialised"]) == ([], [])


def test_missing_half_topic_gets_its_twins_partition_count(installation: Installation) -> None:
    """A command cut off between the two topics is completed, whatever the count now asked."""
    names = installation.names
    future = installation.admin.create_topics(
        [NewTopic(names.op, 3, 1, config={"message.timestamp.type": "LogAppendTime"})]
    )[names.op]
    future.result()
    known = installation.admin.list_topics
    until("the broker knows it", lambda: names.op in known(timeout=20).topics)

    installation.run("topics", "create", "--replication-factor", "1")

    assert installation.partitions(names.half) == 3


def test_offsets_are_never_guessed_where_ops_stand(installation: Installation) -> None:
    """Expired offsets of a used partition are a problem for `checker init`, not a new start."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.commit_op("a" * 32, installation.half("a" * 32))
    installation.admin.delete_consumer_groups([names.daemon_group])[names.daemon_group].result()

    status, report = installation.run("topics", "create", "--replication-factor", "1")

    assert status == 1
    assert report["initialised"] == []
    assert "checker init --partition 0" in report["problems"][0]["fix"]
    assert installation.committed(names.op, 0)[0] < 0


def test_init_goes_on_behind_what_was_delivered(installation: Installation) -> None:
    """Delivered transactions are passed, undelivered and undecided ones are kept."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.make_real_topic()
    ids = [letter * 32 for letter in "abc"]
    halves = [installation.half(each) for each in ids]
    installation.half("d" * 32)  # undecided
    for each, offset in zip(ids, halves, strict=True):
        installation.commit_op(each, offset)
    installation.produce(names.half, b"junk", [])
    installation.produce(names.op, b"junk", [])
    installation.deliver(ids[0])
    installation.admin.delete_consumer_groups([names.daemon_group])[names.daemon_group].result()

    status, plan = installation.run("checker", "init", "--partition", "0")

    assert (status, plan["exact"], plan["committed"]) == (0, True, True)
    assert plan["applied"] == [ids[0]]
    assert plan["to_apply"] == ids[1:]
    half, _ = installation.committed(names.half, 0)
    op, metadata = installation.committed(names.op, 0)
    assert (half, op) == (1, 1)
    assert parse_progress(half, op, metadata).rebuild_to == 5
    assert installation.run("topics", "check", "--replication-factor", "1")[0] == 0


def test_init_refuses_to_choose_between_twice_and_never(installation: Installation) -> None:
    """Delivered out of the prefix: the line names both ways out, and nothing is committed."""
    names = installation.names
    _create(installation, "--partitions", "1")
    installation.make_real_topic()
    for each in ("a" * 32, "b" * 32):
        installation.commit_op(each, installation.half(each))
    installation.deliver("b" * 32)
    before = installation.committed(names.op, 0)

    line = installation.fails("checker", "init", "--partition", "0")
    _, dry = installation.run("checker", "init", "--partition", "0", "--dry-run")

    assert "--accept-duplicates" in line
    assert "--skip-undelivered" in line
    assert "b" * 32 in line
    assert (dry["exact"], dry["twice"]) == (False, ["b" * 32])
    assert installation.committed(names.op, 0) == before

    _, plan = installation.run("checker", "init", "--partition", "0", "--skip-undelivered")
    assert (plan["never"], plan["twice"]) == (["a" * 32], [])
    assert installation.committed(names.op, 0)[0] == 2


def test_init_and_grow_refuse_while_a_worker_runs(installation: Installation) -> None:
    """Both name the live member and what to do about it."""
    _create(installation, "--partitions", "1")
    with installation.consumer() as consumer:
        consumer.subscribe([installation.names.half])
        while not consumer.assignment():
            consumer.poll(0.1)

        assert "stop every worker" in installation.fails("checker", "init", "--partition", "0")
        grow = ("topics", "create", "--grow", "--partitions", "2")
        assert "stopped" in installation.fails(*grow)


def test_a_daemon_that_runs_before_its_topics_is_to_be_stopped_first(
    installation: Installation,
) -> None:
    """First offsets are refused beside it; once it has ended, the same command completes."""
    names = installation.names
    for topic in (names.half, names.op):
        config = {"message.timestamp.type": "LogAppendTime"}
        new = NewTopic(topic, 1, 1, config=config)
        installation.admin.create_topics([new])[topic].result()
    with installation.consumer() as consumer:
        consumer.subscribe([names.half])
        while not consumer.assignment():
            consumer.poll(0.1)

        said = installation.fails("topics", "create", "--replication-factor", "1")

        assert "started before its topics" in said
        assert "Stop it, run this again" in said

    assert _create(installation)["initialised"] == [0]

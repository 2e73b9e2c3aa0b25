"""The audit on a real broker, with the real client and the real daemon, also while they work."""

import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession
from typing_extensions import Self

from halfbridge.bridge import Message, Resolution, TransactionProducer
from halfbridge.serde.headers import real_headers
from halfbridge.serde.records import OpSource
from halfbridge.spark_jobs.audit.command import main
from halfbridge.testkit.children import Children, Interrupts
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Stored
from tests.spark.marks import INTERPRETED
from tests.spark.real_topic import RealTopic

pytestmark = [*INTERPRETED, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
PAIRS = 2
TIMEOUT_S = 60.0
# Checks come early, so that what the client leaves open is decided within the test.
DAEMON = {
    "TRANSACTION_TIMEOUT_MS": "500",
    "CHECK_INTERVAL_MS": "500",
    "CHECK_BACKOFF_MS_MAX": "1000",
}


@pytest.fixture
def installation(installation: Installation) -> Installation:
    """Two pairs, and the real topic `orders` of three partitions."""
    installation.make(partitions=PAIRS, groups=(GROUP,))
    installation.topic("orders", partitions=3)
    return installation


def audit(installation: Installation, *words: str, exit_code: int) -> dict[str, Any]:
    """Return the report of the real command."""
    arguments = ["--bootstrap-servers", installation.servers, "--json", *words]
    if "--snapshot" not in words:  # which knows the prefix
        arguments += ["--prefix", installation.names.prefix]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == exit_code, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def kinds(report: dict[str, Any]) -> dict[str, int]:
    """Return how many findings there are of which kind."""
    return {kind: count for kind, count in report["findings_by_kind"].items() if count}


@contextmanager
def daemon_process(installation: Installation, directory: Path) -> Iterator[None]:
    """Run `halfbridge checker run` for the time of the block."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
    settings = {f"HALFBRIDGE_{name}": value for name, value in DAEMON.items()}
    command = [sys.executable, "-m", "halfbridge", "checker", "run"]
    command += ["--bootstrap-servers", installation.servers]
    command += [
        "--topic-prefix",
        installation.names.prefix,
        "--state-dir",
        str(directory / "state"),
    ]
    with Children(directory, interrupts=Interrupts(), keep_directory=True) as children:
        children.start("daemon", command, environ={**ours, **settings, "PYTHONPATH": str(ROOT)})
        yield


class Traffic:
    """A client at work in a thread of its own until it is stopped.

    It lives on then, until the block ends: it has left transactions undecided, and is asked.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._random = random.Random(5)
        self._stop, self._quiet, self._leave = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.committed = 0
        self.rolled_back = 0
        self.messages = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._leave.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        producer = self._installation.producer(self._resolve, topics=[self._orders])
        try:
            with producer:
                while not self._stop.wait(0.02):
                    self._transact(producer)
                self._quiet.set()
                self._leave.wait()
        except BaseException as error:  # noqa: BLE001 (raised again in the test's thread)
            self._error = error

    def rest(self) -> None:
        """Begin nothing more; return when what was begun is sent."""
        self._stop.set()
        assert self._quiet.wait(TIMEOUT_S), self._error

    @property
    def _orders(self) -> str:
        return self._installation.real("orders")

    def _resolve(self, view: Any) -> Resolution:
        return Resolution.COMMIT if view.value != b"roll back" else Resolution.ROLLBACK

    def _transact(self, producer: TransactionProducer) -> None:
        how = self._random.choice(("commit", "commit", "commit", "rollback", "silent"))
        count = self._random.choice((1, 1, 2))
        value = b"roll back" if how == "rollback" else b"%d" % self.committed
        transaction = producer.begin()
        for index in range(count):
            key = b"%d" % self._random.randrange(5)
            message = Message(self._orders, key=key, value=value, headers=[("n", b"%d" % index)])
            transaction.send(message)
        if how == "commit":
            transaction.commit()
        elif how == "rollback":
            transaction.rollback()
        self.committed += how != "rollback"
        self.rolled_back += how == "rollback"
        self.messages += count * (how != "rollback")


@pytest.mark.spark_long
def test_clean_while_client_and_daemon_are_at_work(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """No finding at any moment, each transaction counted in the end, and the same once more."""
    with daemon_process(installation, tmp_path), Traffic(installation) as traffic:
        seen = 0
        while traffic.committed < 100 or seen == 0:
            report = audit(installation, exit_code=0)
            seen = max(seen, report["transactions"]["committed"]["delivered"])
        traffic.rest()
        orders = installation.tail(installation.real("orders"))
        orders.until(traffic.messages, within_s=10 * TIMEOUT_S)
        for pair in range(PAIRS):
            installation.await_marker(pair)
        path = tmp_path / "report.json"
        settled = audit(installation, "--report", str(path), exit_code=0)
    fences = PAIRS
    counts = settled["transactions"]
    assert counts["committed"]["delivered"] == counts["committed"]["all"]
    assert counts["committed"]["all"] == traffic.committed + fences
    assert counts["rolled_back"] == traffic.rolled_back
    assert counts["undecided"] == 0
    assert settled["records"]["real"] == traffic.messages + fences
    assert json.loads(path.read_text()) == settled
    installation.pass_through(installation.real("orders"))
    again = audit(installation, "--snapshot", str(path), exit_code=0)
    for report in (settled, again):
        del report["seconds"]
    assert again == settled


@pytest.mark.feature
def test_defects_in_the_topics_are_found(spark: SparkSession, installation: Installation) -> None:
    """A copy of a delivery, an invented one, and a contradiction: those three and nothing else."""
    orders = installation.real("orders")
    installation.start()
    halves = [installation.pass_through(orders, value=b"%d" % n) for n in range(4)]
    rolled_back = installation.half(orders)
    installation.rollback(rolled_back)
    records = installation.tail(orders).until(len(halves))
    copied = records[0]
    installation.write(orders, copied.value, key=copied.key, headers=copied.headers)
    invented = real_headers([], "f" * 32, 1_700_000_000_000)
    installation.write(orders, b"invented", headers=invented)
    installation.write(orders, b"somebody else's")
    installation.commit(rolled_back, source=OpSource.OPERATOR)
    installation.await_marker()
    report = audit(installation, exit_code=2)
    assert kinds(report) == {"duplicate": 1, "phantom": 1, "conflict": 1}
    named = {each["kind"]: each["transaction_id"] for each in report["findings"]}
    assert named == {
        "duplicate": copied.transaction_id,
        "phantom": "f" * 32,
        "conflict": rolled_back.transaction_id,
    }
    assert report["records"]["foreign"] == 1


def test_another_installation_on_the_same_topic(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """What it delivered is no finding; what nobody delivered is one in the audit of either.

    A report whose snapshot has the other one is equal, without a query.
    """
    orders = installation.real("orders")
    with closing(Installation(installation.servers, f"eu.{installation.names.prefix}")) as other:
        other.make(partitions=PAIRS, groups=(GROUP,))
        for each in (installation, other):
            each.start()
        for count, each in ((2, installation), (3, other)):
            for number in range(count):
                each.pass_through(orders, value=b"%d" % number)
            each.await_marker()
        invented = real_headers([], "f" * 32, 1_700_000_000_000)
        installation.write(orders, b"invented", headers=invented)
        path = tmp_path / "report.json"
        report = audit(installation, "--topic", orders, "--report", str(path), exit_code=2)
        again = audit(installation, "--snapshot", str(path), exit_code=2)
        others = audit(other, "--topic", orders, exit_code=2)
        named = ("--topic", orders, "--other-prefix", other.names.prefix)
        assert kinds(audit(installation, *named, exit_code=2)) == {"phantom": 1}
        alone = audit(installation, "--topic", orders, "--no-others", exit_code=2)
    for each, delivered, of_others in ((report, 2, 3), (others, 3, 2)):
        assert kinds(each) == {"phantom": 1}
        assert each["findings"][0]["transaction_id"] == "f" * 32
        assert each["other_installations"]["transactions"] == of_others
        assert each["transactions"]["committed"]["delivered"] == delivered
    assert kinds(alone) == {"phantom": 1 + 3}
    for each in (report, again):
        del each["seconds"]
    assert again == report


def test_a_snapshot_of_a_topic_that_was_made_anew_is_refused(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """Its offsets are of other records now: the error names the topic, and what to do."""
    orders = installation.real("orders")
    installation.write(orders, b"somebody else's")
    path = tmp_path / "report.json"
    assert audit(installation, "--topic", orders, "--report", str(path), exit_code=0)["clean"]
    topic = RealTopic(installation.servers, orders)
    changes = (topic.make_anew, "created again"), (topic.delete, "were deleted, or")
    for change, named in changes:
        change()
        words = ["--bootstrap-servers", installation.servers, "--snapshot", str(path)]
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code == 1
        (line,) = [each for each in refused.stderr.splitlines() if each.startswith("Error")]
        assert named in line
        assert orders in line
        assert "without --snapshot" in line


def test_a_state_is_continued(
    spark: SparkSession, installation: Installation, tmp_path: Path
) -> None:
    """Only what is new is read, and the report is that of an audit of all.

    A delivery that is copied after its transaction was settled is found. Once a topic was made
    again, the state is refused: the line says what to do.
    """
    orders, path = installation.real("orders"), tmp_path / "report.json"
    state = ("--state", str(tmp_path / "state"))
    installation.start()
    for number in range(3):
        installation.pass_through(orders, value=b"%d" % number)
    undecided = installation.half(orders)
    records = installation.tail(orders).until(3)
    first = audit(installation, *state, exit_code=0)
    assert first["transactions"]["undecided"] == 1
    installation.commit(undecided)
    installation.write(orders, records[0].value, key=records[0].key, headers=records[0].headers)
    installation.await_marker()
    words = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    done = CliRunner().invoke(main, [*words, *state, "--report", str(path)])
    assert done.exit_code == 2, done.output
    report = json.loads(path.read_text())
    whole = audit(installation, "--snapshot", str(path), exit_code=2)
    assert kinds(report) == {"duplicate": 1}
    new = sum(report["records"].values()) - sum(first["records"].values())
    assert f"audit: read {new} records" in done.stderr.splitlines()
    for each in (report, whole):
        del each["seconds"], each["looked_at"]
    assert report == whole
    RealTopic(installation.servers, orders).make_anew()
    refused = CliRunner().invoke(main, [*words, *state])
    assert refused.exit_code == 1
    assert "created again" in refused.stderr.splitlines()[-1]
    assert "Begin with a new --state" in refused.stderr.splitlines()[-1]


def test_open_and_aborted_kafka_txns(spark: SparkSession, installation: Installation) -> None:
    """What an open one hides is not called lost, what an aborted one left is not there at all."""
    orders = installation.real("orders")
    installation.start()
    installation.pass_through(orders)
    record = installation.tail(orders).until(1)[0]
    aborted = begin(installation, record.topic, record.partition, record.headers)
    aborted.abort_transaction(TIMEOUT_S)
    assert kinds(audit(installation, exit_code=0)) == {}
    producer = begin(installation, record.topic, record.partition, [])
    installation.pass_through(orders)
    installation.await_marker()
    report = audit(installation, "--settle", "0.2", exit_code=0)
    assert report["hidden_by_open_kafka_txn"] == [orders]
    assert report["transactions"]["committed"]["pending"] == 1
    assert report["transactions"]["committed"]["delivered"] == 2  # the first, and the fence
    producer.commit_transaction(TIMEOUT_S)
    report = audit(installation, exit_code=0)
    assert report["hidden_by_open_kafka_txn"] == []
    assert report["transactions"]["committed"]["delivered"] == 3


def test_what_the_daemon_has_not_applied_is_pending(
    spark: SparkSession, installation: Installation
) -> None:
    """Without a daemon: committed and pending, overdue when it is older than the grace."""
    installation.pass_through(installation.real("orders"))
    report = audit(installation, exit_code=0)
    assert report["transactions"]["committed"]["pending"] == 1
    assert kinds(report) == {}
    assert kinds(audit(installation, "--grace", "0", exit_code=0)) == {"overdue": 1}


def test_empty_topics(spark: SparkSession, installation: Installation) -> None:
    """Nothing was written, nothing is wrong."""
    report = audit(installation, "--topic", installation.real("orders"), exit_code=0)
    assert report["transactions"]["all"] == 0
    assert report["records"] == {}


def test_deleted_halves_and_partitions_of_markers_only(
    spark: SparkSession, installation: Installation
) -> None:
    """Deliveries whose half messages were deleted are expired, a class of its own, not phantoms.

    Op and real topic keep their last marker only in one partition: no row, no waiting.
    """
    orders = installation.real("orders")
    daemon = installation.start()
    halves: list[Stored] = [installation.pass_through(orders, partition=n % 2) for n in range(4)]
    for pair in range(PAIRS):
        installation.await_marker(pair)
    installation.tail(orders).until(len(halves))
    daemon.stop()
    end = installation.progress(0).half
    deleted = installation.admin.delete_records([TopicPartition(installation.names.half, 0, end)])
    for each in deleted.values():
        each.result(TIMEOUT_S)
    fence = installation.real("fence")
    marks = installation.admin.delete_records([TopicPartition(fence, 0, 3)])
    for each in marks.values():
        each.result(TIMEOUT_S)
    report = audit(installation, "--topic", orders, "--topic", fence, exit_code=0)
    assert kinds(report)["expired"] >= 2
    assert set(kinds(report)) == {"expired"}


def test_deleted_deliveries_beside_old_times_of_others(
    spark: SparkSession, installation: Installation
) -> None:
    """Where a log begins is read from the daemon's records: others write what times they like."""
    orders = installation.topic("bills")
    daemon = installation.start()
    for count in range(1, 4):
        installation.pass_through(orders)
        installation.tail(orders).until(count)
    daemon.stop()
    others = Producer({"bootstrap.servers": installation.servers})
    others.produce(orders, b"old", partition=0, timestamp=1_700_000_000_000)
    assert others.flush(TIMEOUT_S) == 0
    high = installation.tail(orders).to_end()[-1].offset
    deleted = installation.admin.delete_records([TopicPartition(orders, 0, high)])
    for each in deleted.values():
        each.result(TIMEOUT_S)
    report = audit(installation, "--topic", orders, exit_code=0)
    assert kinds(report) == {"expired": 3}


def test_too_many_real_topics_are_one_clear_line(
    spark: SparkSession, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver collects no more names than its limit, and says how to name them."""
    for name in ("orders", "fixes"):
        installation.half(installation.real(name))
    limit = "halfbridge.spark_jobs.audit.command.TOPICS_MAX"
    arguments = ["--bootstrap-servers", installation.servers]
    arguments += ["--prefix", installation.names.prefix]
    monkeypatch.setattr(limit, 1)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "half messages name more than 1 topics: give --topic" in done.output


def test_a_missing_topic_is_one_clear_line(spark: SparkSession, installation: Installation) -> None:
    """The line names what is missing and what to do; the exit status is 1."""
    arguments = ["--bootstrap-servers", installation.servers, "--prefix", "absent-"]
    done = CliRunner().invoke(main, [*arguments, "--topic", "orders"])
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert "absent-RMQ_SYS_TRANS_HALF_TOPIC does not exist" in lines[-1]
    absent = installation.real("absent")
    arguments[-1] = installation.names.prefix
    done = CliRunner().invoke(main, [*arguments, "--topic", absent])
    assert done.exit_code == 1
    assert f"{absent} does not exist" in done.stderr.splitlines()[-1]


def begin(installation: Installation, topic: str, partition: int, headers: Any) -> Producer:
    """Write a record in a kafka_txn that stays open."""
    producer = Producer(
        {
            "bootstrap.servers": installation.servers,
            "transactional.id": f"{topic}-stranger",
            "transaction.timeout.ms": 600_000,  # several audits pass meanwhile
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key", partition=partition, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0
    return producer

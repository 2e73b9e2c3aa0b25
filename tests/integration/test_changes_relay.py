"""`halfbridge relay run --changes`: real processes that read events, are killed, and write once."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from halfbridge.bridge.kafka.deletion import delete_topics
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD, TRANSACTION_ID
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.ports import free_ports
from tests.kit.debezium import plain, with_schema
from tests.kit.http import answer_of
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from halfbridge.testkit.history import ReadRecord
    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack

pytestmark = pytest.mark.broker
PARTITIONS = 3
KEYS = 12
WAIT_S_MAX = 120.0
COLUMNS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "customer"},
]
MAPPING = 'topic = "{topic}"\nkey_column = "customer"\n'


class Relay:
    """`halfbridge relay run --changes` on a stack; a context manager that kills it."""

    def __init__(self, stack: HalfbridgeStack, changes: str, mapping: Path, *more: str) -> None:
        (self.port,) = free_ports(1)
        self._log = mapping.with_suffix(f".{self.port}.log")
        self._command = [
            *(sys.executable, "-m", "halfbridge", "relay", "run", "--changes", changes),
            *("--map", str(mapping), "--bootstrap-servers", stack.bootstrap_servers),
            *("--topic-prefix", stack.topic_prefix, "--metrics-port", str(self.port)),
            *("--state-dir", str(mapping.parent), "--session-timeout-ms", "6000"),
            *("--kafka-txn-timeout-ms", "5000", *more),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and return at once."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send it a signal, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_S_MAX)

    def said(self) -> str:
        """Return what it has printed."""
        return self._log.read_text("utf-8")

    def health(self) -> str:
        """Return what /healthz says; empty while it says nothing."""
        return answer_of(f"http://127.0.0.1:{self.port}/healthz", within_s=WAIT_S_MAX)[1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end()


class Events:
    """Writes change events, each row's to the partition of its key."""

    def __init__(self, stack: HalfbridgeStack, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": stack.bootstrap_servers,
                "enable.idempotence": True,
                "transactional.id": f"connect-{secrets.token_hex(4)}",
            }
        )
        self._producer.init_transactions(60)
        self._topic = topic

    def write(self, events: list[tuple[str, bytes | None]], *, aborts: bool = False) -> None:
        """Write events (key and value), as an exactly-once source of Connect does."""
        self._producer.begin_transaction()
        for key, value in events:
            partition = partition_of(key.encode(), PARTITIONS)
            self._producer.produce(self._topic, value, key.encode(), partition)
        self._producer.flush()
        if aborts:
            self._producer.abort_transaction(60)
        else:
            self._producer.commit_transaction(60)

    def insert(self, first: int, count: int) -> None:
        """Write inserts with ascending ids, with and without a schema by turns."""
        events: list[tuple[str, bytes | None]] = []
        for number in range(first, first + count):
            row = {"id": number, "customer": f"c{number % KEYS}"}
            made = with_schema("c", COLUMNS, after=row) if number % 2 else plain("c", after=row)
            events.append((row["customer"], made))  # type: ignore[arg-type]
        self.write(events)


@pytest.fixture
def changes(halfbridge_topics: OwnTopics) -> str:
    """A change topic."""
    return halfbridge_topics.create("shop.public.orders", partitions=PARTITIONS)


@pytest.fixture
def real(halfbridge_topics: OwnTopics) -> str:
    """A real topic."""
    return halfbridge_topics.create("orders", partitions=PARTITIONS)


@pytest.fixture
def mapping(tmp_path: Path, real: str) -> Path:
    """A mapping of rows to the real topic."""
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING.format(topic=real), "utf-8")
    return path


def test_each_change_becomes_one_message_while_relays_are_killed(
    halfbridge_stack: HalfbridgeStack, changes: str, real: str, mapping: Path
) -> None:
    """Rows = messages, each once, and those of a key in order, whenever relays die."""
    seed = int(os.environ.get("HALFBRIDGE_CHANGES_SEED", "0")) or secrets.randbits(32)
    print(f"HALFBRIDGE_CHANGES_SEED={seed}")  # noqa: T201 (pytest shows it when the test fails)
    dice, rows = random.Random(seed), 0
    events = Events(halfbridge_stack, changes)
    small = ("--batch-records-max", "20")
    with ExitStack() as stack:
        relays = [
            stack.enter_context(
                Relay(halfbridge_stack, changes, mapping, "--slot", f"s{number}", *small)
            )
            for number in range(2)
        ]
        for kill in range(12):
            events.insert(rows, 100)
            events.write([("c0", plain("c", after={"id": -1, "customer": "c0"}))], aborts=True)
            rows += 100
            if kill % 3 == 0:  # it works again, and is killed at work
                least = rows - 99
                _wait_for(halfbridge_stack, real, least)
            doomed = dice.choice(relays)
            assert doomed.process is not None
            sleep(dice.uniform(0.0, 1.0))  # at any moment
            doomed.end()
            doomed.start()
        found = _wait_for(halfbridge_stack, real, rows)
    assert judged(found) == []
    assert sorted(_row(each)["id"] for each in found) == list(range(rows))


def test_the_judge_notices_a_relay_without_a_kafka_txn(
    halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """What was sent and not noted as read is sent again: doubled ids, and keys out of order."""
    topic = halfbridge_topics.create("doubled", partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": halfbridge_stack.bootstrap_servers})
    for _life in range(2):  # it died between the two writes
        for number in range(4):
            value = json.dumps({"id": number}).encode()
            headers: Any = [(TRANSACTION_ID, b"change-0-0-%d" % number)]
            producer.produce(topic, value, b"c0", headers=headers)
        producer.flush()
    found = _wait_for(halfbridge_stack, topic, 8)
    assert len(judged(found)) > 4


def test_bad_events_become_dead_letters_and_the_others_go_on(
    halfbridge_stack: HalfbridgeStack, changes: str, real: str, mapping: Path
) -> None:
    """Bytes that are no event, a missing column, too large a row: each with its reason, in order.

    A row that is larger than the dead-letter topic takes leaves a stub.
    """
    events = Events(halfbridge_stack, changes)
    large = "x" * 1_100_000  # more than the real topic takes, less than the dead-letter topic does
    row = {"id": 1, "customer": "c1"}
    events.write(
        [
            ("c1", b"no event"),
            ("c1", plain("c", after={"id": 2})),
            ("c1", plain("c", after={"id": 0, "customer": "c1"})),
            ("c1", None),
            ("c1", json.dumps({"ddl": "CREATE TABLE", "databaseName": "shop"}).encode()),
        ]
    )
    events.insert(100, 20)
    big = Producer(
        {
            "bootstrap.servers": halfbridge_stack.bootstrap_servers,
            "message.max.bytes": 4_000_000,
            "compression.type": "gzip",
        }
    )
    big.produce(
        changes,
        plain("c", after={**row, "body": large}),
        b"c1",
        partition_of(b"c1", PARTITIONS),
    )
    big.flush()
    with Relay(halfbridge_stack, changes, mapping, "--slot", "one") as relay:
        found = _wait_for(halfbridge_stack, real, 21)
        letters: list[Any] = []

        def enough() -> bool:
            letters[:] = _letters(halfbridge_stack, changes)
            return len(letters) >= 3

        until("three dead letters", enough, within_s=WAIT_S_MAX, every_s=0.2)
        until("health", lambda: '"healthy": true' in relay.health(), within_s=WAIT_S_MAX)
        assert relay.end(signal.SIGTERM) == 0, relay.said()
    assert judged(found) == []
    assert sorted(each.reason for each in letters) == [
        DeadReason.INVALID,
        DeadReason.INVALID,
        DeadReason.UNDELIVERABLE,
    ]
    assert any("no column customer" in each.detail for each in letters)


def test_a_topic_that_is_missing_is_waited_for_and_then_given_up(
    halfbridge_stack: HalfbridgeStack, changes: str, real: str, tmp_path: Path
) -> None:
    """Its messages become dead letters after topic_gone_ms; those of other topics are sent."""
    path = tmp_path / "mapping.toml"
    path.write_text('topic = "{kind}"\nvalue_columns = ["id"]\n', "utf-8")
    events = Events(halfbridge_stack, changes)
    missing = f"{real}-missing"
    events.write(
        [
            (
                f"c{number}",
                plain("c", after={"id": number, "kind": missing if number % 2 else real}),
            )
            for number in range(10)
        ]
    )
    with Relay(halfbridge_stack, changes, path, "--slot", "one", "--topic-gone-ms", "3000"):
        _wait_for(halfbridge_stack, real, 5)
        until(
            "dead letters",
            lambda: len(_letters(halfbridge_stack, changes)) == 5,
            within_s=WAIT_S_MAX,
            every_s=0.2,
        )
    assert all(missing in each.detail for each in _letters(halfbridge_stack, changes))


def test_a_change_topic_that_is_created_again_stops_the_relay(
    halfbridge_stack: HalfbridgeStack, changes: str, real: str, mapping: Path
) -> None:
    """The error names the topic and the way on."""
    Events(halfbridge_stack, changes).insert(0, 10)
    with Relay(halfbridge_stack, changes, mapping, "--slot", "one") as relay:
        _wait_for(halfbridge_stack, real, 10)
        delete_topics(halfbridge_stack.bootstrap_servers, lambda name: name == changes)
        halfbridge_stack.create_topic(changes, partitions=PARTITIONS)
        assert relay.process is not None
        assert relay.process.wait(WAIT_S_MAX) == 1
        assert "was created again" in relay.said()
        assert "--accept-lost" in relay.said()


def judged(records: list[ReadRecord]) -> list[str]:
    """Return what is wrong with the messages of relayed inserts, whose ids ascend in each key."""
    problems = []
    ids = Counter(dict(each.headers or ())[TRANSACTION_ID] for each in records)
    problems += [f"{each!r} {count} times" for each, count in ids.items() if count > 1]
    order = defaultdict(list)
    for each in sorted(records, key=lambda one: (one.partition, one.offset)):
        order[each.key].append(_row(each)["id"])
    problems += [f"{key!r}: {got}" for key, got in order.items() if got != sorted(set(got))]
    return problems


def _row(record: ReadRecord) -> dict[str, Any]:
    assert record.value is not None
    row: dict[str, Any] = json.loads(record.value)
    return row


def _wait_for(stack: HalfbridgeStack, topic: str, count: int) -> list[ReadRecord]:
    found: list[ReadRecord] = []

    def enough() -> bool:
        found[:] = stack.read_committed(topic)
        return len(found) >= count

    until(f"{count} messages in {topic}", enough, within_s=WAIT_S_MAX, every_s=0.2)
    return found


def _letters(stack: HalfbridgeStack, changes: str) -> list[Any]:
    read = stack.read_committed(stack.config.names.dead)
    letters = [
        DEAD_LETTER.decode(each.headers[-1][1] or b"")
        for each in read
        if each.headers and each.headers[-1][0] == DEAD
    ]
    return [each for each in letters if each.source_topic == changes]

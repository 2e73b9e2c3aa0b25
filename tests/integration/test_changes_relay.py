"""`halfbridge relay run --changes`: real processes that read events, are killed, and write once."""

import json
import os
import random
import secrets
import signal
import statistics
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from halfbridge.changes.held import HELD_MAX
from halfbridge.checker.loop.outlet import STALL_S
from halfbridge.kafka.admin import AdminClient, delete_topics
from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.broker import EmbeddedCluster
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.kit.changes_relay import WAIT_S_MAX, Relay, judged, letters_of, row_of
from tests.kit.debezium import plain, with_schema
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
PARTITIONS = 3
KEYS = 12
COLUMNS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "customer"},
]
MAPPING = 'topic = "{topic}"\nkey_column = "customer"\n'


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
            events.append((row["customer"], made))
        self.write(events)


@pytest.fixture
def changes(halfbridge_topics: OwnTopics) -> str:
    return halfbridge_topics.create("shop.public.orders", partitions=PARTITIONS)


@pytest.fixture
def real(halfbridge_topics: OwnTopics) -> str:
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
    print(f"HALFBRIDGE_CHANGES_SEED={seed}")
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
    assert sorted(row_of(each)["id"] for each in found) == list(range(rows))


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


@pytest.mark.feature
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
        changes, plain("c", after={**row, "body": large}), b"c1", partition_of(b"c1", PARTITIONS)
    )
    big.flush()
    with Relay(halfbridge_stack, changes, mapping, "--slot", "one") as relay:
        found = _wait_for(halfbridge_stack, real, 21)
        letters: list[Any] = []

        def enough() -> bool:
            letters[:] = letters_of(halfbridge_stack, changes)
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
            lambda: len(letters_of(halfbridge_stack, changes)) == 5,
            within_s=WAIT_S_MAX,
            every_s=0.2,
        )
    assert all(missing in each.detail for each in letters_of(halfbridge_stack, changes))


def test_a_missing_topic_holds_up_no_other_and_gets_its_events_once_it_is_there(
    halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics, changes: str, real: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Events of a missing topic are held, over kills too, while others pass; each comes once."""
    path = tmp_path / "mapping.toml"
    path.write_text('topic = "{kind}"\nkey_column = "customer"\n', "utf-8")
    events, late, rows = Events(halfbridge_stack, changes), f"{real}-late", 0

    def write() -> None:
        nonlocal rows
        made: list[tuple[str, bytes | None]] = []
        for number in range(rows, rows + 120):
            row = {"id": number, "customer": f"c{number % KEYS}"}
            kind = late if number % 7 in (0, 1) else real
            made.append((row["customer"], plain("c", after={**row, "kind": kind})))
        events.write(made)
        rows += 120

    def others() -> int:
        return sum(number % 7 > 1 for number in range(rows))

    write()
    with Relay(halfbridge_stack, changes, path, "--slot", "one", "--batch-records-max", "20") as on:
        _wait_for(halfbridge_stack, real, others())
        until(
            "health names it", lambda: f"{late} does not exist" in on.health(), within_s=WAIT_S_MAX
        )
        for _ in range(2):
            on.end()
            write()
            on.start()
            _wait_for(halfbridge_stack, real, others())
        assert letters_of(halfbridge_stack, changes) == []
        assert halfbridge_topics.create("orders-late", partitions=PARTITIONS) == late
        found = _wait_for(halfbridge_stack, late, rows - others())
        until("health", lambda: '"healthy": true' in on.health(), within_s=WAIT_S_MAX)
        assert on.end(signal.SIGTERM) == 0, on.said()
    found += _wait_for(halfbridge_stack, real, others())
    assert sorted(row_of(each)["id"] for each in found) == list(range(rows))
    assert judged([each for each in found if each.topic == late]) == []
    assert judged([each for each in found if each.topic == real]) == []
    assert letters_of(halfbridge_stack, changes) == []


@pytest.mark.parametrize("others", [0, 100])
def test_more_events_than_can_be_held(  # noqa: PLR0917  (fixtures)
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    changes: str,
    real: str,
    tmp_path: Path,
    others: int,
) -> None:
    """The relay reads no further; where it would hold up others by that, it gives up the oldest."""
    path = tmp_path / "mapping.toml"
    path.write_text('topic = "{kind}"\nkey_column = "kind"\n', "utf-8")
    late, rows = f"{real}-late", HELD_MAX + 2_000
    numbers = [number for number in range(rows) if others and number % others == 0]
    Events(halfbridge_stack, changes).write(
        [
            ("c0", plain("c", after={"id": number, "kind": real if number in numbers else late}))
            for number in range(rows)
        ]
    )
    with Relay(
        halfbridge_stack, changes, path, "--slot", "one", "--batch-records-max", "500"
    ) as on:
        if others:
            _wait_for(halfbridge_stack, real, len(numbers))
        else:
            until("it is full", lambda: f"{HELD_MAX}.0" in on.metric("changes_held"), within_s=60)
        assert halfbridge_topics.create("orders-late", partitions=PARTITIONS) == late
        letters = len(letters_of(halfbridge_stack, changes))
        assert bool(letters) is bool(others)
        found = _wait_for(halfbridge_stack, late, rows - len(numbers) - letters)
    ids = [row_of(each)["id"] for each in found]
    assert ids == sorted({*ids})
    assert len(ids) == rows - len(numbers) - letters


@pytest.mark.long
@pytest.mark.parametrize("replicas", [[3], [1, 3]], ids=["rf1", "rf2"])
def test_others_go_on_while_a_broker_is_down(tmp_path: Path, replicas: list[int]) -> None:
    """A real topic without its broker, or below min.insync.replicas, gets its messages later."""
    session = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1500"}
    path = tmp_path / "mapping.toml"
    path.write_text('topic = "{kind}"\nkey_column = "customer"\n', "utf-8")
    away = "has no leader" if len(replicas) == 1 else "has 1 of 2 required replicas in sync"
    with (
        EmbeddedCluster(3, properties=session) as cluster,
        HalfbridgeStack(cluster.bootstrap_servers) as stack,
    ):
        everywhere = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        _placed(cluster, "changes", everywhere, 2)
        _placed(cluster, "orders", everywhere, 2)
        _placed(cluster, "reports", [replicas], len(replicas))
        events, rows = Events(stack, "changes"), 0

        def write(count: int = 20) -> int:
            nonlocal rows
            made: list[tuple[str, bytes | None]] = []
            for number in range(rows, rows + count):
                row = {"id": number, "customer": f"c{number % KEYS}"}
                kind = "reports" if number % 4 == 0 else "orders"
                made.append((f"c{number % KEYS}", plain("c", after={**row, "kind": kind})))
            events.write(made)
            rows += count
            return sum(number % 4 > 0 for number in range(rows))

        with Relay(stack, "changes", path, "--slot", "one", "--topic-gone-ms", "600000") as relay:
            _wait_for(stack, "orders", write())
            cluster.node(3).kill()
            _wait_for(stack, "orders", write())
            until(
                "health",
                lambda: f"reports partition 0 {away}" in relay.health(),
                within_s=WAIT_S_MAX,
            )
            took_s = []
            for _ in range(20):
                wanted, began = write(), monotonic()
                _wait_for(stack, "orders", wanted)
                took_s.append(monotonic() - began)
            # An attempt to write to the topic that is away takes seconds; most rows meet none.
            assert statistics.median(took_s) < STALL_S, took_s
            relay.end()
            relay.start()
            _wait_for(stack, "orders", write())
            cluster.node(3).spawn()
            cluster.node(3).wait_ready(brokers_min=3, timeout_s=WAIT_S_MAX)
            found = _wait_for(stack, "orders", write())
            found += _wait_for(stack, "reports", rows - len(found))
            until("health", lambda: '"healthy": true' in relay.health(), within_s=WAIT_S_MAX)
        assert sorted(row_of(each)["id"] for each in found) == list(range(rows))
        for topic in ("orders", "reports"):
            assert judged([each for each in found if each.topic == topic]) == []


def _placed(cluster: EmbeddedCluster, topic: str, places: list[list[int]], in_sync: int) -> None:
    """Make a topic with given replicas of each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    config = {"min.insync.replicas": str(in_sync)}
    made = NewTopic(topic, len(places), replica_assignment=places, config=config)
    admin.create_topics([made])[topic].result(60)


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


def _wait_for(stack: HalfbridgeStack, topic: str, count: int) -> list[ReadRecord]:
    found: list[ReadRecord] = []

    def enough() -> bool:
        found[:] = stack.read_committed(topic)
        return len(found) >= count

    until(f"{count} messages in {topic}", enough, within_s=WAIT_S_MAX, every_s=0.2)
    return found

"""`halfbridge relay run --table`, and a relay of the local message table that the log wakes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.bridge import Message
from halfbridge.sql.local_messages.service import RelayService
from tests.kit.http import answer_of
from tests.sql.log_scene import KINDS, Orders, make_durable
from tests.sql.relaying import running, scene, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack
    from tests.sql.databases import Database

pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("database", KINDS, indirect=True),
]
MAPPING = 'topic = "%s"\nkey_column = "customer"\nvalue_column = "body"\n'
NO_CLOCK_MS = 600_000  # longer than a test may take
STOP_S_MAX = 60.0
# How many connections there have been so far.
OPENED = {
    "postgresql": "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
    "mariadb": "SELECT variable_value + 0 FROM information_schema.global_status "
    "WHERE variable_name = 'Connections'",
}
BATCHES = 30  # each would open a connection
OPENED_MAX = 20  # the lag is asked for every 10 s, on a connection of its own


@contextmanager
def command(
    database: Database, stack: HalfbridgeStack, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """Run `halfbridge relay run` for a table called orders; it is killed at the end."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "halfbridge", "relay", "run", "--table", "orders"),
            *("--url", database.url, "--producer-group", "orders-relay"),
            *("--bootstrap-servers", stack.bootstrap_servers),
            *("--topic-prefix", stack.topic_prefix, *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_command_relays_shows_its_lag_and_ends_in_order(
    database: Database,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    tmp_path: Path,
) -> None:
    """Rows there and to come are relayed; metrics and health say so; SIGTERM ends it with 0."""
    topic = halfbridge_topics.create("orders")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING % topic)
    with closing(Orders(database)) as orders:
        orders.insert(1)
        words = ("--map", str(mapping), "--begin-at", "snapshot", "--metrics-port", "0")
        with command(database, halfbridge_stack, *words) as process:
            assert process.stdout is not None
            found = re.fullmatch(r"metrics on (\S+)\n", process.stdout.readline())
            assert found is not None
            assert process.stdout.readline() == "relaying inserts into orders as orders\n"
            halfbridge_stack.read_committed(topic, count=1)
            orders.insert(2)
            records = halfbridge_stack.read_committed(topic, count=2)
            assert [(each.key, each.value) for each in records] == [(b"c1", b"1"), (b"c2", b"2")]
            name = re.escape('{subscription="orders"}')
            wait_until(
                lambda: bool(re.search(rf"log_messages_total{name} 2\.0", _served(found[1])))
            )
            assert re.search(rf"halfbridge_log_lag_bytes{name} \d", _served(found[1]))
            assert '"healthy": true' in _served(found[1], "/healthz")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=STOP_S_MAX)
            assert process.returncode == 0, errors
        if database.name == "postgresql":
            orders.execute("SELECT pg_drop_replication_slot('halfbridge_orders')")


def test_the_command_keeps_its_connections(
    database: Database,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    tmp_path: Path,
) -> None:
    """Batch after batch is claimed on connections that are there already."""
    topic = halfbridge_topics.create("orders")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING % topic)
    opened = text(OPENED[database.name])
    with closing(Orders(database)) as orders:
        orders.insert(0)
        words = ("--map", str(mapping), "--begin-at", "snapshot")
        with command(database, halfbridge_stack, *words):
            halfbridge_stack.read_committed(topic, count=1)
            with orders.engine.connect() as connection:
                before = connection.scalar(opened)
            for number in range(1, BATCHES + 1):
                orders.insert(number)
                halfbridge_stack.read_committed(topic, count=number + 1)
            with orders.engine.connect() as connection:
                assert connection.scalar(opened) - before < OPENED_MAX


def test_a_mistake_is_one_line(
    database: Database, halfbridge_stack: HalfbridgeStack, tmp_path: Path
) -> None:
    """A field of the mapping that does not exist, and a missing beginning, are named."""
    mapping = tmp_path / "mapping.toml"
    with closing(Orders(database)):
        mapping.write_text('tpoic = "t"\nvalue_column = "body"\n')
        with command(database, halfbridge_stack, "--map", str(mapping)) as process:
            _, errors = process.communicate(timeout=STOP_S_MAX)
            assert process.returncode == 2
            assert re.search(r"halfbridge: tpoic: 't' .*mapping\.toml.*did you mean topic", errors)
        mapping.write_text(MAPPING % "t")
        with command(database, halfbridge_stack, "--map", str(mapping)) as process:
            _, errors = process.communicate(timeout=STOP_S_MAX)
            assert process.returncode == 1
            assert "--begin-at now or --begin-at snapshot" in errors


def test_the_log_wakes_a_relay_of_the_local_message_table(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """Nobody looks by the clock, and each row is relayed once, in order."""
    topic = halfbridge_topics.create("orders")
    if database.name == "mariadb":
        make_durable(database)
    with scene(database.engine(), halfbridge_stack, topic) as relaying:
        relay = relaying.relay(poll_ms_min=NO_CLOCK_MS, poll_ms_max=NO_CLOCK_MS)
        with running(RelayService(relay, relaying.producer, by_log=True)):
            for number in range(10):
                with relaying.messages.engine.begin() as connection:
                    relaying.messages.add(
                        connection, Message(topic, key=b"k", value=b"%d" % number)
                    )
                wait_until(lambda expected=number + 1: len(relaying.rows()) == expected)
                halfbridge_stack.read_committed(topic, count=number + 1)
        records = halfbridge_stack.read_committed(topic, count=10)
    assert [each.value for each in records] == [b"%d" % number for number in range(10)]
    with database.engine().connect() as connection:
        if database.name == "postgresql":
            slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
            assert connection.scalar(text(slots)) == 0


def _served(address: str, path: str = "/metrics") -> str:
    return answer_of(f"http://{address}{path}")[1]

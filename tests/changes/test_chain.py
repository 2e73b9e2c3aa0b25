"""The whole way of a change in one run: database, Debezium, change topic, relay, real topic."""

import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from halfbridge.kafka.errors import KafkaFailure
from halfbridge.serde.headers import TRANSACTION_ID
from halfbridge.testkit.connect import ConnectWorker
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.changes.streams import Stream, execute
from tests.kit.changes_relay import Relay, row_of
from tests.kit.waiting import until
from tests.sql.databases import Database, OwnDatabase

pytestmark = pytest.mark.broker
MAPPING = (
    'topic = "{topic}"\nkey_column = "customer"\noperations = ["insert", "update", "delete"]\n'
)
PARTITIONED = {
    "postgresql": "PARTITION BY LIST (day); CREATE TABLE d1 PARTITION OF orders FOR VALUES IN (1);"
    " CREATE TABLE d2 PARTITION OF orders FOR VALUES IN (2)",
    "mysql": "PARTITION BY LIST (day) (PARTITION d1 VALUES IN (1), PARTITION d2 VALUES IN (2))",
}
PARTITIONED["mariadb"] = PARTITIONED["mysql"]
# What becomes of a row that an UPDATE moves to another partition, or gives another primary key.
MOVED = [(None, "delete"), ("c1", None)]
ARRIVED_S_MAX = 180.0


def _messages(stack: HalfbridgeStack, topic: str, count: int) -> list[ReadRecord]:
    found: list[ReadRecord] = []

    def enough() -> bool:
        with suppress(KafkaFailure):
            found[:] = stack.read_committed(topic)
        return len(found) >= count

    until(f"{count} messages in {topic}", enough, within_s=ARRIVED_S_MAX, every_s=0.3)
    return found


def _reported(record: ReadRecord) -> tuple[Any, str | None]:
    """Return the value of column customer, and the operation."""
    operation = dict(record.headers or ()).get("__operation__")
    row = None if record.value is None else row_of(record)["customer"]
    return row, None if operation is None else operation.decode()


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_changes_of_a_partitioned_table_become_messages(
    database: Database, stream: Stream, halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics, tmp_path: Path,
) -> None:  # fmt: skip
    """Rows of the snapshot and of the log, moved rows, updates and deletes: each once, in order."""
    real = halfbridge_topics.create("orders")
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING.format(topic=real), "utf-8")
    columns = "(id int, day int, customer varchar(20), PRIMARY KEY (id, day))"
    execute(
        database,
        *f"CREATE TABLE orders {columns} {PARTITIONED[database.name]}".split(";"),
        "INSERT INTO orders VALUES (1, 1, 'c1')",
    )
    stream.apply("orders")
    with Relay(halfbridge_stack, stream.topic("orders"), path, "--slot", "one") as relay:
        snapshot = _messages(halfbridge_stack, real, 1)
        execute(
            database,
            "UPDATE orders SET customer = 'ä😀' WHERE id = 1",
            "UPDATE orders SET customer = 'c1' WHERE id = 1",
            "DELETE FROM orders WHERE id = 1",
            "INSERT INTO orders VALUES (2, 2, 'c2')",
        )
        found = _messages(halfbridge_stack, real, 5)
        assert ("__snapshot__", b"true") in (snapshot[0].headers or ())
        assert [_reported(each) for each in found] == [
            ("c1", None),
            ("ä😀", "update"),
            ("c1", "update"),
            (None, "delete"),
            ("c2", None),
        ], relay.said()
        execute(database, "UPDATE orders SET day = 1, customer = 'c1' WHERE id = 2")
        moved = _messages(halfbridge_stack, real, 5 + len(MOVED))[5:]
        assert [_reported(each) for each in moved] == MOVED


@pytest.mark.long
@pytest.mark.parametrize("own_database", ["postgresql", "mariadb"], indirect=True)
def test_each_row_becomes_one_message_whatever_is_killed(
    own_database: OwnDatabase,
    kafka_bootstrap_servers: str,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    tmp_path: Path,
) -> None:
    """SIGKILL of the relay, of Connect and of the database under load: rows = messages."""
    real = halfbridge_topics.create("orders", partitions=3)
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING.format(topic=real), "utf-8")
    execute(own_database, "CREATE TABLE orders (id int PRIMARY KEY, customer varchar(20))")
    stopping = threading.Event()
    writer = threading.Thread(target=_write, args=(own_database, stopping), daemon=True)
    group_id = f"connect-{secrets.token_hex(4)}"
    with ConnectWorker(kafka_bootstrap_servers, group_id=group_id) as worker:
        stream = Stream(own_database, worker, kafka_bootstrap_servers)
        stream.apply("orders")
        writer.start()
        try:
            with Relay(halfbridge_stack, stream.topic("orders"), path, "--slot", "one") as relay:
                seen = len(_messages(halfbridge_stack, real, 50))
                relay.end()
                worker.kill()
                relay.start()
                worker.restart()
                seen = len(_messages(halfbridge_stack, real, seen + 50))
                own_database.kill()
                own_database.restart()
                seen = len(_messages(halfbridge_stack, real, seen + 50))
                worker.kill()
                own_database.restart()
                relay.end()
                worker.restart()
                relay.start()
                _messages(halfbridge_stack, real, seen + 50)
                stopping.set()
                writer.join()
                execute(own_database, "INSERT INTO orders VALUES (-1, 'last')")
                rows = _rows(own_database)
                found = _messages(halfbridge_stack, real, len(rows))
        finally:
            stopping.set()
            writer.join()
        worker.rest.delete(stream.name)
    assert sorted(row_of(each)["id"] for each in found) == rows
    assert len({dict(each.headers or ())[TRANSACTION_ID] for each in found}) == len(rows)
    for key in {each.key for each in found}:
        ids = [row_of(each)["id"] for each in found if each.key == key]
        assert ids == sorted(ids)


def _write(database: OwnDatabase, stopping: threading.Event) -> None:
    """Insert rows, each in a transaction of its own, whether the server is there or not."""
    engine, number = database.engine(poolclass=NullPool), 0
    while not stopping.wait(0.02):
        number += 1
        with suppress(DBAPIError), engine.begin() as connection:
            values = {"id": number, "customer": f"c{number % 5}"}
            connection.execute(text("INSERT INTO orders VALUES (:id, :customer)"), values)


def _rows(database: OwnDatabase) -> list[int]:
    with database.engine(poolclass=NullPool).connect() as connection:
        return list(connection.scalars(text("SELECT id FROM orders ORDER BY id")))

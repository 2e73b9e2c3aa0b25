"""A service with a fence: its table of work, its message transactions, and queries of both."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge import Message, MessageView
from halfbridge.serde import Op
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.headers import CONTEXT
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.serde.records import FenceContext
from halfbridge.serde.topics import TopicNames
from halfbridge.sql import Fence
from halfbridge.sql.fence_table import write_committed, write_count
from tests.integration.producing import GROUP, PARTITIONS, Cluster
from tests.sql.databases import Database

WORK = Table("work", MetaData(), Column("number", Integer, primary_key=True), mysql_engine="InnoDB")


class Scene:
    """One service on one database. `work(connection, n)` is its local transaction.

    Attributes:
        engine: The service's.
        fence: The service's.
        producer: Started, of the fence's group; None without Kafka.
    """

    def __init__(
        self,
        database: Database,
        *,
        cluster: Cluster | None = None,
        producer: Any = None,
        **options: Any,
    ) -> None:
        self.database = database
        self.cluster = cluster
        self.producer = producer
        self.truth = database.engine()
        WORK.metadata.create_all(self.truth)
        self.engine = database.engine(**options)
        self.fence = self.fence_on(self.engine)
        self.fence.create()

    def fence_on(self, engine: Engine, **given: Any) -> Fence:
        """Return another fence of the same group."""
        return Fence(engine, producer_group=GROUP, **given)

    def message(self, value: bytes = b"two shirts") -> Message:
        """Return a message for the real topic."""
        assert self.cluster is not None
        return Message(self.cluster.orders, key=b"customer-42", value=value)

    @contextmanager
    def block(self, **given: Any) -> Iterator[tuple[Any, Any]]:
        """Enter a block of the fence, and send one message in it."""
        with self.fence.transaction(self.producer, **given) as (tx, handle):
            tx.send(self.message())
            yield tx, handle

    def check_committed(self, tx: Any, *work: int, messages: int = 1) -> None:
        """Check that only this work is there, and that fence row and op are of a commit."""
        assert self.worked() == list(work)
        assert self.fenced(tx.id) == ("committed", messages)
        assert self.decisions(tx.id) == [("COMMIT", messages)]

    def check_rolled_back(self, tx: Any, *work: int, messages: int = 1) -> None:
        """Check that only this work is there, and that fence row and op are of a rollback."""
        assert self.worked() == list(work)
        assert self.fenced(tx.id) == ("rolled_back", 0)
        assert self.decisions(tx.id) == [("ROLLBACK", messages)]

    def worked(self) -> list[int]:
        with self.truth.connect() as connection:
            return list(connection.execute(select(WORK.c.number).order_by(WORK.c.number)).scalars())

    def fenced(self, transaction_id: str) -> tuple[str, int] | None:
        """Return outcome and count of the transaction's fence row; None without one."""
        table = self.fence.tables[0]
        mine = table.c.transaction_id == transaction_id
        with self.truth.connect() as connection:
            row = connection.execute(select(table.c.outcome, table.c.message_count).where(mine))
            found = row.one_or_none()
        return None if found is None else (found[0], found[1])

    def rows(self) -> int:
        """Return how many transactions have a fence row."""
        table = self.fence.tables[0]
        count = select(func.count()).where(table.c.producer_group != "")
        with self.truth.connect() as connection:
            return connection.execute(count).scalar_one()

    def decisions(self, transaction_id: str) -> list[tuple[str, int]]:
        """Return kind and message count of the transaction's ops."""
        assert self.cluster is not None
        ops: list[Op] = [op for _, op in self.cluster.ops()]
        return [
            (op.kind.value, op.message_count) for op in ops if op.transaction_id == transaction_id
        ]

    def context_sent(self, transaction_id: str) -> str:
        """Return the fence table that the transaction's first half message names."""
        assert self.cluster is not None
        for record in self.cluster.read(self.cluster.names.half):
            headers = dict(record.headers() or [])
            if CONTEXT in headers and transaction_id.encode() in headers["RMQ_HALF"]:
                return FENCE_CONTEXT.decode(headers[CONTEXT]).table_id
        raise AssertionError(f"no context of {transaction_id}")

    def view(self, transaction_id: str, **given: Any) -> MessageView:
        """Return the view of a check of a transaction of this fence."""
        values: dict[str, Any] = {
            "topic": "orders",
            "partition": None,
            "key": b"k",
            "value": b"v",
            "headers": (),
            "transaction_id": transaction_id,
            "check_number": 1,
            "attempt": 1,
            "born_timestamp": 1,
            "producer_group": GROUP,
            "resume_count": 0,
            "context": FENCE_CONTEXT.encode(FenceContext(self.fence.table_id())),
            **given,
        }
        return MessageView(**values)

    def count(self, connection: Any, transaction_id: str, message_count: int) -> bool:
        """Write the number of messages into the row of the open transaction."""
        return write_count(
            self.fence._table,
            connection,
            producer_group=GROUP,
            transaction_id=transaction_id,
            message_count=message_count,
        )

    def commit(self, transaction_id: str, *, message_count: int = 1) -> None:
        """Commit a local transaction with its fence row."""
        with self.in_flight(transaction_id, message_count=message_count) as connection:
            connection.commit()

    @contextmanager
    def in_flight(self, transaction_id: str, *, message_count: int = 1) -> Iterator[Any]:
        """Yield the connection of a local transaction with its fence row; roll back at the end."""
        with self.engine.connect() as connection:
            self.fence.database.begin(connection)
            write_committed(
                self.fence._table,
                connection,
                producer_group=GROUP,
                transaction_id=transaction_id,
                message_count=message_count,
            )
            yield connection
            with suppress(DBAPIError):
                connection.rollback()


def new_cluster(bootstrap_servers: str) -> Cluster:
    """Return an installation with topics of its own."""
    made = Cluster(bootstrap_servers, TopicNames(f"t{secrets.token_hex(4)}-"))
    made.create(
        (made.names.half, PARTITIONS),
        (made.names.op, PARTITIONS),
        (made.names.check(GROUP), 1),
        (made.orders, 1),
    )
    return made


def work(connection: Any, number: int) -> None:
    """Insert a row of work in the open database transaction of a connection or a session."""
    connection.execute(insert(WORK).values(number=number))


def new_id(age_ms: int = 0) -> str:
    """Return a transaction id that was made `age_ms` ago."""
    made = TRANSACTION_IDS.next()
    return f"{int(made[:12], 16) - age_ms:012x}{made[12:]}"


def kill_session(database: Database, connection: Any) -> None:
    """Have the server end a connection, which the client sees as a cut network."""
    own, kill = "SELECT connection_id()", "KILL {}"
    if database.name == "postgresql":
        own, kill = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 5000)"
    number = connection.execute(text(own)).scalar_one()
    with database.admin_engine().connect() as admin:
        admin.execute(text(kill.format(number)))
        admin.commit()


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on some databases only."""
    return pytest.mark.parametrize("database", names, indirect=True)

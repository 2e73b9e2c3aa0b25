"""What an order service with a fence does in its blocks, and where it dies."""

import random
from enum import Enum

from sqlalchemy import Column, Integer, MetaData, String, Table

TABLES = MetaData()
# One row per message: the work of the local transactions, with which the topics are compared.
SHIPPED = Table(
    "shipped",
    TABLES,
    Column("transaction_id", String(32), primary_key=True),
    Column("message_index", Integer, primary_key=True, autoincrement=False),
    Column("topic", String(99), nullable=False),
    Column("order_key", String(99), nullable=False),
    Column("number", Integer, nullable=False),  # position of the message within its key
    Column("value", String(99), nullable=False),
    mysql_engine="InnoDB",
)
# Rows that blocks and their rivals lock.
STOCK = Table(
    "stock",
    TABLES,
    Column("item", Integer, primary_key=True, autoincrement=False),
    Column("amount", Integer, nullable=False),
    mysql_engine="InnoDB",
)
ITEMS = 16  # per thread; the rival of a block changes more rows, so InnoDB's victim is the block


class Step(str, Enum):
    """Where a service dies."""

    BEGUN = "in the block, before the first send"
    SENT = "after the sends"
    WORKED = "after the first statements, before late sends"
    ENTERED = "after enter, before COMMIT"
    COUNTED = "after the number of messages, before COMMIT"
    COMMITTED = "between the database's COMMIT and the messages'"
    ENDED = "after the block"
    ANY = "at any moment"


class Kind(str, Enum):
    """What a block does, and what is done to it."""

    ONE = "one message"
    SEVERAL = "several messages"
    AROUND = "sends before and after its statements"
    BEHIND = "sends after its statements"
    TAKEN = "takes a message by an inbox"
    LEFT = "left by an exception"
    LOCKED = "lock time-out"
    SWALLOWED = "lock time-out that is swallowed"
    DEADLOCK = "deadlock"
    SERIAL = "serialization failure of a statement"
    SKEWED = "serialization failure of COMMIT"
    LATE = "enters after its check"
    SLOW = "is in flight while it is checked"


_WEIGHTS = {
    Kind.ONE: 60,
    Kind.SEVERAL: 20,
    Kind.AROUND: 15,
    Kind.BEHIND: 15,
    Kind.TAKEN: 20,
    Kind.LEFT: 6,
    Kind.LOCKED: 3,
    Kind.SWALLOWED: 2,
    Kind.DEADLOCK: 2,
    Kind.SERIAL: 3,
    Kind.SKEWED: 3,
    Kind.LATE: 1,  # this and the next one take seconds
    Kind.SLOW: 0.2,
}
_WAITING = (Kind.LATE, Kind.SLOW)
# Kinds that a database lacks. SQLite has one writer: nothing deadlocks. PostgreSQL's transaction
# has failed after any error. MariaDB's and MySQL's SERIALIZABLE uses locks, and MySQL has no
# innodb_snapshot_isolation.
_LACKS = {
    "sqlite": {Kind.SWALLOWED, Kind.DEADLOCK, Kind.SERIAL, Kind.SKEWED},
    "postgresql": {Kind.SWALLOWED},
    "mariadb": {Kind.SKEWED},
    "mysql": {Kind.SERIAL, Kind.SKEWED},
}


def kinds_on(database: str) -> list[Kind]:
    """Return the kinds that a database can have."""
    return [kind for kind in Kind if kind not in _LACKS[database]]


def draw_kind(draw: random.Random, database: str, *, is_brief: bool = False) -> Kind:
    """Return the kind of the next block; `is_brief`: none that waits for a check."""
    kinds = [kind for kind in kinds_on(database) if not is_brief or kind not in _WAITING]
    return draw.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]

"""The three ways to write the local message table, on each database."""

from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfbridge.bridge.message import Message
from halfbridge.serde.partitioner import key_hash, partition_of
from halfbridge.sql.errors import FenceUsageError
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.rows import RowNotFoundError, RowStateError, headers_of
from halfbridge.sql.local_messages.settling import Settling
from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.sql.databases import WITH_MYSQL


def stored(messages: LocalMessages) -> list[dict[str, Any]]:
    """Return all rows, by id."""
    table = messages.tables.messages
    with messages.engine.connect() as connection:
        found = connection.execute(select(table).order_by(table.c.id)).mappings().all()
    return [dict(row) for row in found]


@WITH_MYSQL
@pytest.mark.feature
def test_a_row_commits_with_its_local_transaction_or_not_at_all(messages: LocalMessages) -> None:
    """`add` in a transaction that rolls back leaves nothing; in one that commits, a row."""
    with messages.engine.connect() as connection:
        messages.add(connection, Message("orders", value=b"lost"))
        connection.rollback()
        row_id = messages.add(connection, Message("orders", key=b"k", value=b"kept"))
        connection.commit()
    (row,) = stored(messages)
    assert (row["id"], row["state"], row["value"]) == (row_id, "LOCAL_COMMIT", b"kept")
    assert row["created_at"] == row["updated_at"] > 1_700_000_000_000
    assert (row["decision_acknowledged"], row["retries"], row["cause"]) == (False, 0, None)


@WITH_MYSQL
def test_bytes_are_stored_as_given(messages: LocalMessages) -> None:
    """Null and empty stay different, headers keep order, bytes and repeated names."""
    headers = [("a", b"\x00\xff"), ("a", None), ("ü", b"")]
    given = [
        Message("orders", key=None, value=None, headers=headers),
        Message("orders", key=b"", value=b"", partition=3),
        Message("orders", key=b"\xff" * 300, value=b"\x00" * 100_000),
    ]
    with messages.engine.begin() as connection:
        ids = messages.add_all(connection, given)
    rows = stored(messages)
    assert [row["id"] for row in rows] == ids == sorted(ids)
    assert [(row["key"], row["value"]) for row in rows] == [(m.key, m.value) for m in given]
    assert headers_of(rows[0]["headers"]) == tuple(headers)
    assert [row["partition"] for row in rows] == [None, 3, None]
    assert [row["key_hash"] for row in rows] == [None, key_hash(b""), key_hash(b"\xff" * 300)]


def test_a_session_of_the_orm_serves_too(messages: LocalMessages) -> None:
    """The row is part of the session's transaction."""
    with Session(messages.engine) as session:
        messages.add(session, Message("orders", value=b"1"))
        session.rollback()
        messages.add(session, Message("orders", value=b"2"))
        session.commit()
    assert [row["value"] for row in stored(messages)] == [b"2"]


def test_autocommit_is_refused(messages: LocalMessages) -> None:
    """A connection whose statements commit by themselves would not tie row and work together."""
    engine = messages.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(FenceUsageError, match="AUTOCOMMIT"):
        messages.add(connection, Message("orders", value=b"1"))
    assert stored(messages) == []


@pytest.mark.feature
def test_a_pre_sent_row_is_confirmed_by_its_local_transaction(messages: LocalMessages) -> None:
    """It is stored before the transaction, and is confirmed by its commit, not by a rollback."""
    row_id = messages.pre_send(Message("orders", value=b"1"))
    assert [row["state"] for row in stored(messages)] == ["UNKNOWN"]
    with messages.engine.connect() as connection:
        messages.confirm(connection, row_id)
        connection.rollback()
    assert [row["state"] for row in stored(messages)] == ["UNKNOWN"]
    with messages.engine.begin() as connection:
        messages.confirm(connection, row_id)
    assert [row["state"] for row in stored(messages)] == ["LOCAL_COMMIT"]


def test_a_withdrawn_row_makes_its_local_transaction_fail(messages: LocalMessages) -> None:
    """A confirmation that comes late raises, and COMMIT is refused even if that is swallowed."""
    row_id = messages.pre_send(Message("orders", value=b"1"))
    messages.withdraw(row_id)
    with messages.engine.connect() as connection:
        messages.add(connection, Message("orders", value=b"the work beside it"))
        with pytest.raises(RowStateError, match="LOCAL_ROLLBACK"):
            messages.confirm(connection, row_id)
        with pytest.raises(RowStateError, match="LOCAL_ROLLBACK"):
            connection.commit()
        connection.rollback()
        messages.add(connection, Message("orders", value=b"the next transaction"))
        connection.commit()
    with messages.engine.begin() as connection:
        messages.add(connection, Message("orders", value=b"the next connection"))
    assert [row["value"] for row in stored(messages)] == [
        b"1",
        b"the next transaction",
        b"the next connection",
    ]


def test_a_row_is_confirmed_once(messages: LocalMessages) -> None:
    """Neither a second confirmation nor a withdrawal finds a confirmed row."""
    row_id = messages.pre_send(Message("orders", value=b"1"))
    with messages.engine.begin() as connection:
        messages.confirm(connection, row_id)
    with messages.engine.connect() as connection, pytest.raises(RowStateError):
        messages.confirm(connection, row_id)
    with pytest.raises(RowStateError):
        messages.withdraw(row_id)
    with pytest.raises(RowNotFoundError, match=str(row_id + 1)) as raised:
        messages.withdraw(row_id + 1)
    assert raised.value.row_id == row_id + 1
    assert raised.value.table in str(raised.value)


@pytest.mark.feature
@pytest.mark.parametrize(("success", "after"), [(True, "LOCAL_SUCCESS"), (False, "LOCAL_ROLLBACK")])
def test_a_prepared_row_is_settled_once(messages: LocalMessages, success: bool, after: str) -> None:
    """The first settlement is final."""
    row_id = messages.prepare(Message("orders", value=b"1"))
    messages.settle(row_id, success=success)
    with pytest.raises(RowStateError):
        messages.settle(row_id, success=not success)
    assert [row["state"] for row in stored(messages)] == [after]


def test_creating_twice_changes_nothing(messages: LocalMessages) -> None:
    """Tables, rows and leases stay as they are; each bucket has one row."""
    with messages.engine.begin() as connection:
        messages.add(connection, Message("orders", value=b"1"))
        buckets = messages.tables.buckets
        connection.execute(buckets.update().where(buckets.c.bucket == 0).values(epoch=7))
    messages.create()
    assert len(stored(messages)) == 1
    with messages.engine.connect() as connection:
        query = select(buckets.c.bucket, buckets.c.epoch).order_by(buckets.c.bucket)
        found = connection.execute(query).all()
    assert [tuple(row) for row in found] == [(0, 7), *((n, 0) for n in range(1, BUCKETS))]


def test_other_names_make_other_tables(engine: Engine) -> None:
    """Two tables can be in one database, each with a relay table of its own."""
    first, second = LocalMessages(engine), LocalMessages(engine, name="second", relay_name="relay2")
    for each in (first, second):
        each.create()
    with engine.begin() as connection:
        second.add(connection, Message("orders", value=b"1"))
    assert (len(stored(first)), len(stored(second))) == (0, 1)


def test_the_hash_names_the_half_partition() -> None:
    """A row's key_hash modulo the count is the partition where the client places its key."""
    keys = (b"", b"k", b"customer-42")
    assert all(key_hash(key) % n == partition_of(key, n) for key in keys for n in (1, 4, 7))


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"k", -1), (b"k", None), (None, 7)], ids=["negative", "none", "no key"]
)
def test_a_row_with_an_impossible_hash_is_refused(
    messages: LocalMessages, key: bytes | None, hashed: int | None
) -> None:
    """The database refuses it, whatever the language that writes it."""
    with messages.engine.begin() as connection:
        row_id = messages.add(connection, Message("orders", key=key))
    table = messages.tables.messages
    statement = update(table).where(table.c.id == row_id).values(key_hash=hashed)
    with messages.engine.begin() as connection, pytest.raises(DBAPIError):
        connection.execute(statement)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_headers_nested_too_deep_are_the_rows_fault(text: str) -> None:
    """They raise ValueError like headers in any other form, which ends no relay."""
    with pytest.raises(ValueError, match="headers are no JSON list"):
        headers_of(text)


def test_a_prepared_row_that_cannot_be_shown_keeps_no_other_one_waiting(
    messages: LocalMessages,
) -> None:
    """With invalid headers it stays, with the cause, and is settled once they are repaired."""
    bad = messages.prepare(Message("orders", value=b"bad"))
    messages.prepare(Message("orders", value=b"good"))
    table = messages.tables.messages

    def change(**values: Any) -> None:
        with messages.engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == bad).values(**values))

    change(headers="no list")
    settling = Settling(messages, RelayConfig(prepared_ms_min=0), lambda row: row.value == b"good")
    assert settling.ask() == 1
    waiting, settled = stored(messages)
    assert (waiting["state"], settled["state"]) == ("PREPARED", "LOCAL_SUCCESS")
    assert waiting["retries"] == 1
    assert "headers" in waiting["cause"]
    assert settling.ask() == 0
    change(headers=None, next_attempt_at=None)
    assert settling.ask() == 1
    assert [row["state"] for row in stored(messages)] == ["LOCAL_ROLLBACK", "LOCAL_SUCCESS"]
    assert stored(messages)[0]["cause"] is None

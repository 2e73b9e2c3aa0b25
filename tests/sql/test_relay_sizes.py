"""Large rows: how many are read together, on each database. No Kafka."""

from typing import Any

import pytest
from sqlalchemy import insert, select, update

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.claims import Claims, Snapshot
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.marks import engine_of
from halfbridge.sql.local_messages.rows import ROW_BYTES_MAX, LocalMessage
from halfbridge.sql.local_messages.settling import PreparedMessage, Settling
from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.local_messages.writer import LocalMessages

ALL = range(BUCKETS)
KIB = 1 << 10
VALUE = b"x" * (100 * KIB)
WINDOW_BYTES = 250 * KIB  # two rows and a half


def add(messages: LocalMessages, count: int, *, key: bytes | None = b"k") -> list[int]:
    """Insert large rows; return their ids."""
    given = [Message("t", key=key, value=VALUE, headers=[("h", b"1")]) for _ in range(count)]
    with messages.engine.begin() as connection:
        return messages.add_all(connection, given)


def claims(messages: LocalMessages) -> Claims:
    """Return the Claims of a relay."""
    return Claims(messages, RelayConfig(window_rows=100, window_bytes=WINDOW_BYTES))


def read(messages: LocalMessages) -> Snapshot:
    """Poll once."""
    with engine_of(messages).connect() as connection:
        return claims(messages).read(connection, ALL)


def ids_of(rows: list[LocalMessage]) -> list[int]:
    """Return ids; each row has its body."""
    assert {row.value for row in rows} == {VALUE}
    return [row.id for row in rows]


def test_no_more_bytes_are_read_than_the_window_has(messages: LocalMessages) -> None:
    """A poll reads by id, up to the row that exceeds the limit; value, key and headers count."""
    ids = add(messages, 10)
    rows = read(messages).messages
    assert ids_of(rows) == ids[:3]
    table = messages.tables.messages
    query = select(table.c.size_bytes).where(table.c.id == ids[0])
    with messages.engine.connect() as connection:
        assert connection.execute(query).scalar_one() == rows[0].size_bytes


def test_no_row_is_stepped_over_where_bytes_end_one_state(messages: LocalMessages) -> None:
    """Rows of the other state after the end wait for the next poll."""
    ids = add(messages, 6)
    table = messages.tables.messages
    settled = update(table).where(table.c.id.in_((ids[1], ids[5]))).values(state="LOCAL_SUCCESS")
    with messages.engine.begin() as connection:
        connection.execute(settled)
    assert ids_of(read(messages).messages) == ids[:4]


def test_rows_without_a_key_are_read_up_to_the_limit(messages: LocalMessages) -> None:
    """`lock_keyless` has the limit of a poll."""
    ids = add(messages, 10, key=None)
    with engine_of(messages).connect() as connection:
        assert ids_of(claims(messages).lock_keyless(connection)) == ids[:3]
        connection.rollback()


@pytest.mark.parametrize("key", [b"k", None])
def test_a_row_that_nobody_can_send_is_not_read(messages: LocalMessages, key: bytes | None) -> None:
    """The row has its size and no value; its `message` raises a ValueError with the size."""
    half = ROW_BYTES_MAX // 2 + 1  # per statement, which MariaDB limits too
    given: dict[str, Any] = {"state": "LOCAL_COMMIT", "topic": "t", "value": b"x" * half}
    given |= {"created_at": 0, "updated_at": 0}
    given |= {} if key is None else {"key": key, "key_hash": 1}
    table = messages.tables.messages
    with messages.engine.begin() as connection:
        connection.execute(insert(table).values(**given))
        connection.execute(update(table).values(headers="x" * half))
    if key is None:
        with engine_of(messages).connect() as connection:
            (found,) = claims(messages).lock_keyless(connection)
    else:
        (found,) = read(messages).messages
    size_bytes = 2 * half + len(key or b"")
    assert (found.value, found.size_bytes) == (None, size_bytes)
    with pytest.raises(ValueError, match=str(size_bytes)):
        found.message()


def test_prepared_rows_are_read_one_after_the_other(messages: LocalMessages) -> None:
    """The callback sees the body of each, and one that is settled meanwhile is not asked about."""
    message = Message("t", key=b"k", value=VALUE)
    first, second, third = (messages.prepare(message) for _ in range(3))
    asked = []

    def callback(row: PreparedMessage) -> bool:
        assert row.value == VALUE
        asked.append(row.id)
        if row.id == first:
            messages.settle(second, success=False)
        return True

    settling = Settling(messages, RelayConfig(prepared_ms_min=0), callback)
    assert settling.ask() == 2
    assert asked == [first, third]

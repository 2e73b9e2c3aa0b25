"""The rows that a poll finds, on each database. No Kafka."""

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sqlalchemy import func, select, true, update

from halfbridge.bridge.message import Message
from halfbridge.cli import cli
from halfbridge.serde.partitioner import key_hash
from halfbridge.sql.local_messages import admin
from halfbridge.sql.local_messages.claims import Claims, Snapshot
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.marks import Failure, MarkedTransaction, Marks, engine_of
from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    pass

ALL = range(BUCKETS)
HOUR_MS = 3_600_000


def add(messages: LocalMessages, *keys: bytes | None) -> list[int]:
    """Insert a row for each key, in one transaction."""
    with messages.engine.begin() as connection:
        return messages.add_all(connection, [Message("t", key=key, value=key) for key in keys])


def change(messages: LocalMessages, row_id: int, **values: Any) -> None:
    """Change a row directly."""
    table = messages.tables.messages
    with messages.engine.begin() as connection:
        connection.execute(update(table).where(table.c.id == row_id).values(**values))


def claims(messages: LocalMessages, **given: Any) -> Claims:
    """Return the Claims of a relay."""
    return Claims(messages, RelayConfig(**{"window_rows": 100, "window_bytes": 1_000_000} | given))


def read(messages: LocalMessages, buckets: Any = ALL, **given: Any) -> Snapshot:
    """Poll once."""
    with engine_of(messages).connect() as connection:
        return claims(messages, **given).read(connection, buckets)


def found(messages: LocalMessages, buckets: Any = ALL, **given: Any) -> list[int]:
    """Return the ids of the rows that may be sent."""
    return [row.id for row in read(messages, buckets, **given).messages]


def test_rows_come_by_id_with_all_that_is_sent(messages: LocalMessages) -> None:
    """A poll returns rows of both states to relay, in one order, and no others."""
    first, second, third = add(messages, b"a", b"b", b"c")
    change(messages, first, state="LOCAL_SUCCESS")
    change(messages, third, state="LOCAL_ROLLBACK")
    rows = read(messages).messages
    assert [(row.id, row.key, row.value) for row in rows] == [
        (first, b"a", b"a"),
        (second, b"b", b"b"),
    ]
    assert (rows[0].topic, rows[0].partition, rows[0].headers) == ("t", None, None)
    assert (rows[0].key_hash, bool(rows[0].send_alone), rows[0].retries) == (
        key_hash(b"a"),
        False,
        0,
    )


def test_a_window_ends_where_the_first_of_its_states_does(messages: LocalMessages) -> None:
    """Rows after it are left, as a row of another state may be missing before them."""
    ids = add(messages, *[b"k"] * 6)
    change(messages, ids[0], state="LOCAL_SUCCESS")
    change(messages, ids[5], state="LOCAL_SUCCESS")
    assert found(messages, window_rows=3) == ids[:4]


@pytest.mark.parametrize("state", ["UNKNOWN", "PREPARED", "MESSAGE_ERROR"])
def test_a_row_that_waits_holds_back_later_rows_of_its_key_only(
    messages: LocalMessages, state: str
) -> None:
    """Earlier rows and other keys are found; by an option, later rows after an error too."""
    before, waiting, after, other = add(messages, b"k", b"k", b"k", b"l")
    change(messages, waiting, state=state)
    assert found(messages) == [before, other]
    expected = [before, after, other] if state == "MESSAGE_ERROR" else [before, other]
    assert found(messages, after_error="go-on") == expected


def test_a_row_that_waits_for_its_retry_holds_back_its_key(messages: LocalMessages) -> None:
    """`next_attempt_at` is compared with the database's clock."""
    resting, later, other = add(messages, b"k", b"k", b"l")
    change(messages, resting, next_attempt_at=NowMs() + HOUR_MS)
    assert found(messages) == [other]
    change(messages, resting, next_attempt_at=NowMs() - 1)
    assert found(messages) == [resting, later, other]


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_statement_has_one_moment(messages: LocalMessages) -> None:
    """A row that is due in one part of a poll is due in each other part."""
    # Enough for a clock in milliseconds to advance within the statement.
    pause = func.pg_sleep(0.02) if messages.database.name == "postgresql" else func.sleep(0.02)
    with messages.engine.connect() as connection:
        query = select(NowMs().label("one"), pause, NowMs().label("other"))
        before, _, after = connection.execute(query).one()
        assert before == after
        # Not the moment of the transaction, which may be long ago.
        assert connection.execute(select(NowMs())).scalar_one() > before


def test_a_query_returns_rows_of_the_wanted_buckets(messages: LocalMessages) -> None:
    """A poll finds no rows of other buckets."""
    keys = [b"key-%d" % n for n in range(20)]
    ids = add(messages, *keys)
    half = range(0, BUCKETS, 2)
    expected = [i for i, key in zip(ids, keys, strict=True) if key_hash(key) % BUCKETS in half]
    assert found(messages, half) == expected
    assert found(messages, []) == []


def test_a_marked_transaction_is_found_until_it_is_acknowledged(messages: LocalMessages) -> None:
    """It is found once, however many rows it has, with the data to repeat its COMMIT."""
    ids = add(messages, b"a", b"b", b"c")
    place = {"half_partition": 1, "half_offset": 77, "message_count": 2}
    for row_id in ids[:2]:
        change(messages, row_id, state="GLOBAL_COMMIT", transaction_id="t1", **place)
    seen = read(messages)
    assert seen.unacknowledged == [MarkedTransaction("t1", 1, 77, 2)]
    assert [row.id for row in seen.messages] == ids[2:]
    for row_id in ids[:2]:
        change(messages, row_id, decision_acknowledged=true())
    assert read(messages).unacknowledged == []


def test_rows_without_keys_are_returned_and_locked(messages: LocalMessages) -> None:
    """Another relay finds those that are not locked (on SQLite there are no such locks)."""
    assert not read(messages, []).has_keyless
    ids = add(messages, None, b"k", None)
    assert read(messages, []).has_keyless
    engine = engine_of(messages)
    with engine.connect() as first, engine.connect() as second:
        one = claims(messages, window_rows=1).lock_keyless(first)
        assert [row.id for row in one] == ids[:1]
        rest = claims(messages).lock_keyless(second)
        locked = messages.database.name != "sqlite"
        assert [row.id for row in rest] == ([ids[2]] if locked else [ids[0], ids[2]])


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_row_that_commits_late_is_not_stepped_over(messages: LocalMessages) -> None:
    """It is found, though its id is lower than that of a row that was relayed before."""
    with messages.engine.connect() as slow:
        low = messages.add(slow, Message("t", key=b"k"))
        (high,) = add(messages, b"k")
        assert low < high
        assert found(messages) == [high]
        change(messages, high, state="GLOBAL_COMMIT", decision_acknowledged=true())
        slow.commit()
    assert found(messages) == [low]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_query_stays_quick_beside_many_rows_that_are_done(messages: LocalMessages) -> None:
    """No part of the statement reads the table: PostgreSQL's plan has no sequential scan."""
    add(messages, *[b"key-%d" % (n % 50) for n in range(3_000)])
    table = messages.tables.messages
    with messages.engine.begin() as connection:
        done = {"state": "GLOBAL_COMMIT", "decision_acknowledged": True}
        connection.execute(update(table).values(**done, transaction_id="t"))
    add(messages, b"key-1", None)
    with messages.engine.connect() as connection:
        connection.exec_driver_sql(f"ANALYZE {table.name}")
        looking = claims(messages)
        arms = [looking._any_keyless(), looking._unacknowledged(ALL), *looking._to_relay(ALL)]
        for arm in arms:
            text = str(arm.compile(connection, compile_kwargs={"literal_binds": True}))
            plan = connection.exec_driver_sql("EXPLAIN " + text.replace("%", "%%")).scalars()
            assert not [line for line in plan if "Seq Scan" in line], text
        assert connection.execute(select(table.c.id).limit(1)).scalar() is not None


def test_a_failure_is_counted_for_rows_that_are_where_they_were(messages: LocalMessages) -> None:
    """A row that another relay has marked meanwhile neither waits nor is given up."""
    waiting, given_up, marked, last = add(messages, b"a", b"b", b"c", b"d")
    change(messages, given_up, retries=1)
    change(messages, last, retries=1)
    failures = [Failure(row, "why") for row in read(messages).messages]
    change(messages, marked, state="GLOBAL_COMMIT")
    change(messages, last, state="GLOBAL_COMMIT")
    with engine_of(messages).begin() as connection:
        found = Marks(messages).fail(connection, failures, RelayConfig(retries_max=2))
    assert found == ([waiting], [given_up])


def test_a_purge_keeps_what_a_dead_letter_may_still_need(messages: LocalMessages) -> None:
    """A purge of rows younger than transaction_age_ms_max is refused."""
    (row_id,) = add(messages, b"k")
    change(messages, row_id, state="GLOBAL_COMMIT", decision_acknowledged=True, updated_at=0)
    week_ms = 7 * 24 * HOUR_MS
    with pytest.raises(ValueError, match="transaction_age_ms_max"):
        admin.purge(messages, older_than_ms=week_ms, transaction_age_ms_max=week_ms + 1)
    command = ["local-messages", "purge", "--url", str(messages.engine.url)]
    refused = CliRunner().invoke(cli, [*command, "--transaction-age-ms-max", str(week_ms + 1)])
    assert refused.exit_code != 0
    assert "--older-than-ms" in refused.output
    assert admin.purge(messages, older_than_ms=week_ms, transaction_age_ms_max=week_ms) == 1

"""A relay that runs by itself: dead letters, refused rows, rows settled later, and health."""

from contextlib import suppress
from threading import Event

import pytest
from confluent_kafka.admin import NewTopic
from sqlalchemy import Connection, func, make_url, select, text, update
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.message import Message
from halfbridge.kafka.admin import AdminClient
from halfbridge.sql.local_messages import admin
from halfbridge.sql.local_messages.rows import RowStateError
from halfbridge.sql.local_messages.sending import RelayStep
from halfbridge.sql.local_messages.settling import PreparedMessage
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.databases import Database, killed_at_return
from tests.sql.relaying import Scene, running, wait_until

pytestmark = pytest.mark.broker
TOPIC_PARTITIONS = 1
SMALL_BYTES = 2_000
TIMEOUT_S = 30.0


@pytest.fixture
def small_topic(halfbridge_stack: HalfbridgeStack, topic: str) -> str:
    """A real topic that accepts small messages only."""
    name = f"{topic}-small"
    admin_client = AdminClient({"bootstrap.servers": halfbridge_stack.bootstrap_servers})
    config = {"max.message.bytes": str(SMALL_BYTES)}
    (made,) = admin_client.create_topics([NewTopic(name, 1, config=config)]).values()
    made.result(TIMEOUT_S)
    return name


def add(relaying: Scene, *messages: Message) -> list[int]:
    """Insert rows in one transaction; return their ids."""
    with relaying.messages.engine.begin() as connection:
        return relaying.messages.add_all(connection, messages)


def states_are(relaying: Scene, *expected: str) -> bool:
    """Tell whether the rows are in these states, by id."""
    return relaying.states() == list(expected)


@pytest.mark.feature
def test_a_dead_letter_takes_no_innocent_row_with_it(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, small_topic: str
) -> None:
    """The faulty row is MESSAGE_ERROR with the cause, the others are delivered, its key waits."""
    large = Message(small_topic, key=b"k", value=b"x" * 5_000)
    others = [Message(small_topic, key=b"k%d" % n, value=b"%d" % n) for n in range(3)]
    ids = add(relaying, others[0], large, *others[1:])
    done = "GLOBAL_COMMIT*"
    with running(relaying.service()):
        wait_until(lambda: states_are(relaying, done, "MESSAGE_ERROR", done, done))
        add(relaying, Message(small_topic, key=b"k", value=b"later"))
        add(relaying, Message(small_topic, key=b"k0", value=b"of another key"))
        wait_until(lambda: relaying.states()[5] == done)
        assert relaying.states()[4] == "LOCAL_COMMIT"
        row = relaying.rows()[1]
        assert row["cause"].startswith("UNDELIVERABLE: ")
        assert (row["transaction_id"], row["half_offset"]) == (None, None)
        assert admin.drop_errors(relaying.messages, ids[1:2]) == 1
        wait_until(lambda: states_are(relaying, *[done] * 5))
    records = halfbridge_stack.read_committed(small_topic, count=5)
    assert sorted(r.value or b"" for r in records) == [
        b"0",
        b"1",
        b"2",
        b"later",
        b"of another key",
    ]


def test_a_row_that_is_retried_continues_where_it_failed(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """A row for a missing topic becomes MESSAGE_ERROR; with the topic, a retry delivers it."""
    missing = f"{topic}-missing"
    add(relaying, Message(missing, key=b"k", value=b"1"), Message(topic, key=b"k", value=b"2"))
    with running(relaying.service(retries_max=3)):
        wait_until(lambda: states_are(relaying, "MESSAGE_ERROR", "LOCAL_COMMIT"))
        row = relaying.rows()[0]
        assert row["retries"] == 3
        assert missing in row["cause"]
        halfbridge_stack.create_topic(missing)
        assert admin.retry(relaying.messages, None) == 1
        wait_until(lambda: states_are(relaying, "GLOBAL_COMMIT*", "GLOBAL_COMMIT*"))
    halfbridge_stack.read_committed(missing, topic, count=2)


def test_later_rows_may_go_on_after_an_error(relaying: Scene, topic: str) -> None:
    """With after_error set to go-on, the key's other rows do not wait."""
    add(relaying, Message(topic, key=b"k", partition=99), Message(topic, key=b"k", value=b"2"))
    with running(relaying.service(retries_max=1, after_error="go-on")):
        wait_until(lambda: states_are(relaying, "MESSAGE_ERROR", "GLOBAL_COMMIT*"))


def test_an_unconfirmed_row_is_withdrawn_and_its_key_continues(relaying: Scene, topic: str) -> None:
    """Until then its key waits; a later confirmation fails."""
    messages = relaying.messages
    row_id = messages.pre_send(Message(topic, key=b"k", value=b"1"))
    add(relaying, Message(topic, key=b"k", value=b"2"), Message(topic, key=b"l", value=b"3"))
    with running(relaying.service()):
        wait_until(lambda: states_are(relaying, "UNKNOWN", "LOCAL_COMMIT", "GLOBAL_COMMIT*"))
    with running(relaying.service(unknown_ms_max=1)):
        wait_until(lambda: states_are(relaying, "LOCAL_ROLLBACK", *["GLOBAL_COMMIT*"] * 2))
    with messages.engine.connect() as connection, pytest.raises(RowStateError):
        messages.confirm(connection, row_id)


def test_a_callback_settles_prepared_rows(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """True relays the row, False rolls it back; after an error the callback is called again."""
    messages = relaying.messages
    sent = {
        messages.prepare(Message(topic, key=name, value=name)): name
        for name in (b"yes", b"no", b"later")
    }
    add(relaying, Message(topic, key=b"no", value=b"waited"))
    asked: list[bytes] = []
    may_say = Event()

    def callback(row: PreparedMessage) -> bool | None:
        asked.append(row.value or b"")
        assert sent[row.id] == row.key
        if row.value == b"later":
            if not may_say.is_set():
                raise ConnectionError("the other store is away")
            return True
        return row.value == b"yes"

    done = "GLOBAL_COMMIT*"
    with running(relaying.service(callback=callback, prepared_ms_min=0, retry_ms_max=200)):
        wait_until(lambda: states_are(relaying, done, "LOCAL_ROLLBACK", "PREPARED", done))
        wait_until(lambda: asked.count(b"later") > 1)
        may_say.set()
        wait_until(lambda: states_are(relaying, done, "LOCAL_ROLLBACK", done, done))
    records = halfbridge_stack.read_committed(topic, count=3)
    assert sorted(record.value or b"" for record in records) == [b"later", b"waited", b"yes"]


def test_health_and_metrics_say_what_is_wrong(relaying: Scene, topic: str) -> None:
    """The relay is ready once it works, unhealthy while a table is missing, and well afterwards."""
    service = relaying.service()
    assert not service.health().ready
    add(relaying, Message(topic, value=b"1"))
    buckets = relaying.messages.tables.buckets
    with running(service):
        wait_until(lambda: states_are(relaying, "GLOBAL_COMMIT*"))
        wait_until(lambda: service.health().ready)
        assert service.health().all_well
        buckets.drop(relaying.messages.engine)
        wait_until(lambda: not service.health().all_well)
        assert buckets.name in service.health().reason
        relaying.messages.create()
        add(relaying, Message(topic, key=b"k", value=b"2"))
        wait_until(lambda: states_are(relaying, "GLOBAL_COMMIT*", "GLOBAL_COMMIT*"))
        wait_until(lambda: service.health().all_well)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_row_with_a_wrong_hash_fails_alone(relaying: Scene, topic: str) -> None:
    """It is MESSAGE_ERROR with the cause, and the other row of its round is delivered."""
    wrong, _ = add(relaying, Message(topic, key=b"k"), Message(topic, key=b"l"))
    table = relaying.messages.tables.messages
    with relaying.messages.engine.begin() as connection:
        other = connection.execute(select(table.c.key_hash).where(table.c.id != wrong)).scalar()
        connection.execute(update(table).where(table.c.id == wrong).values(key_hash=other + 1))
    with running(relaying.service(retries_max=1)):
        wait_until(lambda: states_are(relaying, "MESSAGE_ERROR", "GLOBAL_COMMIT*"))
    assert "key_hash" in relaying.rows()[0]["cause"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_row_whose_key_is_text_fails_alone(relaying: Scene, topic: str) -> None:
    """SQLite stores the text that a program in another language has inserted."""
    wrong, _ = add(relaying, Message(topic, key=b"k"), Message(topic, key=b"l"))
    table = relaying.messages.tables.messages.name
    with relaying.messages.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET key = 'order-1' WHERE id = {wrong}")
    with running(relaying.service(retries_max=1)):
        wait_until(lambda: states_are(relaying, "MESSAGE_ERROR", "GLOBAL_COMMIT*"))
    assert "key must be bytes" in relaying.rows()[0]["cause"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_health_tells_of_rounds_that_are_lost_one_after_the_other(
    relaying: Scene, topic: str
) -> None:
    """Health is well again once a round is not lost."""
    engine, buckets = relaying.messages.engine, relaying.messages.tables.buckets
    is_over = Event()

    def on_step(step: RelayStep) -> None:
        if step is RelayStep.SENT and not is_over.is_set():
            with engine.begin() as connection:
                connection.execute(update(buckets).values(owner="thief", expires_at=0))

    service = relaying.service(on_step=on_step)
    add(relaying, Message(topic, key=b"k"))
    with running(service):
        wait_until(lambda: "marks: " in service.health().reason)
        is_over.set()
        wait_until(lambda: states_are(relaying, "GLOBAL_COMMIT*"))
        wait_until(lambda: service.health().all_well)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_no_thread_beside_the_rounds_ends_in_silence(relaying: Scene) -> None:
    """An unexpected error is in the reason of health, until the next success."""
    service = relaying.service()
    with service.surviving("settling"):
        raise RuntimeError("nobody has thought of it")
    assert service.health().reason == "settling: nobody has thought of it"
    with service.surviving("settling"):
        pass
    assert service.health().reason == "starting"


def kill_connections(connection: Connection, *, user: str | None) -> None:
    """Have MariaDB or MySQL kill all connections of a user."""
    query = text("SELECT id FROM information_schema.processlist WHERE user = :user")
    for number in connection.scalars(query, {"user": user}).all():
        with suppress(DBAPIError):  # it has just ended
            connection.execute(text(f"KILL {number}"))


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_that_dies_in_the_pool_ends_no_relay(
    relaying: Scene, database: Database, topic: str
) -> None:
    """The driver's own error, as SQLAlchemy sets the isolation level, is handled like others."""
    table, mine = relaying.messages.tables.messages, database.admin_engine()
    query = select(func.count()).where(table.c.decision_acknowledged)

    def done() -> int:
        with mine.begin() as connection:
            return int(connection.execute(query).scalar_one())

    with running(relaying.service()):
        for number in range(5):
            with mine.begin() as connection:
                kill_connections(connection, user=make_url(database.url).username)
                message = Message(topic, key=b"k", value=b"%d" % number)
                relaying.messages.add_all(connection, [message])
            wait_until(lambda number=number: done() > number)


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_lost_at_its_return_costs_the_pool_no_place(
    relaying: Scene, database: Database, topic: str
) -> None:
    """After a connection is lost while the relay counts its rows, the pool has all its slots."""
    engine = relaying.messages.engine
    with killed_at_return(engine, database) as killed, running(relaying.service()):
        assert killed.wait(TIMEOUT_S)
        add(relaying, Message(topic, value=b"after"))
        wait_until(lambda: states_are(relaying, "GLOBAL_COMMIT*"))
    assert engine.pool.checkedout() == 0

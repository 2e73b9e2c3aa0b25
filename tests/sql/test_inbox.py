"""The inbox: `once` returns True the first time in a database, and False afterwards."""

import json
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from click.testing import CliRunner, Result
from sqlalchemy import Column as TableColumn
from sqlalchemy import Connection, Engine, Integer, MetaData, Table, event, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfbridge.cli import cli
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.headers import MESSAGE_INDEX, TRANSACTION_ID
from halfbridge.sql import Inbox, InboxUsageError, NoIdentityError, NotDurableError, TableError
from halfbridge.sql import inbox as inbox_module
from halfbridge.sql.inbox import real_retention_ms
from halfbridge.sql.tables import NowMs
from tests.integration.installation import Installation
from tests.sql.databases import WITH_MYSQL, Database
from tests.sql.kafka_message import Message, delivered

WORK = Table("work", MetaData(), TableColumn("number", Integer))


@pytest.fixture
def engine(database: Database) -> Engine:
    """An engine, with the table of the consumer's work."""
    made = database.engine()
    WORK.create(made)
    return made


def take(inbox: Inbox, engine: Engine, message: Message, number: int = 0, **given: Any) -> bool:
    """Take a message as a consumer does; the work is a row."""
    with engine.begin() as connection:
        is_first = inbox.once(connection, message, **given)
        if is_first:
            connection.execute(insert(WORK).values(number=number))
    return is_first


def done(engine: Engine) -> list[int]:
    """Return the work that was done."""
    with engine.begin() as connection:
        return sorted(connection.execute(select(WORK.c.number)).scalars())


@WITH_MYSQL
@pytest.mark.feature
def test_a_message_is_taken_once(inbox: Inbox, engine: Engine) -> None:
    """Transaction id and index identify it, in each group separately, however often it comes."""
    messages = [delivered(), delivered(index=1), delivered("b" * 32), delivered(index=11)]
    came = [*messages, *messages, delivered()]
    taken = [take(inbox, engine, each, number) for number, each in enumerate(came)]
    assert taken == [True] * 4 + [False] * 5
    assert done(engine) == [0, 1, 2, 3]
    assert take(Inbox(engine, group_id="stock"), engine, delivered())
    assert not take(Inbox(engine, group_id="billing"), engine, delivered())


@pytest.mark.feature
def test_a_rollback_takes_the_mark_back(inbox: Inbox, engine: Engine) -> None:
    """After a rollback, also of a savepoint, the message is taken when it comes again."""
    with engine.connect() as connection:
        assert inbox.once(connection, delivered())
        assert not inbox.once(connection, delivered())
        connection.rollback()
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        assert inbox.once(connection, delivered())
        savepoint.rollback()
    assert take(inbox, engine, delivered())
    assert not take(inbox, engine, delivered())


def test_work_continues_after_a_duplicate(inbox: Inbox, engine: Engine) -> None:
    """A transaction that met a duplicate commits all the same, on PostgreSQL too."""
    take(inbox, engine, delivered(), 1)
    with engine.begin() as connection:
        for index in range(3):
            if inbox.once(connection, delivered(index=index)):
                connection.execute(insert(WORK).values(number=10 + index))
    assert done(engine) == [1, 11, 12]


@pytest.mark.parametrize("registry", [False, True])
def test_a_session_is_a_connection(inbox: Inbox, engine: Engine, *, registry: bool) -> None:
    """The mark is in the session's own transaction."""
    make: Any = sessionmaker(engine)
    make = scoped_session(make) if registry else make
    for is_kept in (False, True):
        with make() as session:
            given = make if registry else session
            assert inbox.once(given, delivered())
            session.execute(insert(WORK).values(number=5))
            if is_kept:
                session.commit()
        if registry:
            make.remove()
    with Session(binds={inbox.table: engine}) as session:
        assert not inbox.once(session, delivered())
    assert done(engine) == [5]


def test_autocommit_is_refused(inbox: Inbox, database: Database, engine: Engine) -> None:
    """By engine, option or session: a mark could be committed without the work."""
    always = database.engine(isolation_level="AUTOCOMMIT")
    with always.connect() as connection, pytest.raises(InboxUsageError, match="AUTOCOMMIT"):
        inbox.once(connection, delivered())
    option = {"isolation_level": "AUTOCOMMIT"}
    with (
        engine.connect().execution_options(**option) as connection,
        pytest.raises(InboxUsageError, match="AUTOCOMMIT"),
    ):
        inbox.once(connection, delivered())
    with Session(always) as session, pytest.raises(InboxUsageError, match="AUTOCOMMIT"):
        inbox.once(session, delivered())
    assert take(inbox, engine, delivered())


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_with_a_begin_of_the_engines_own(database: Database) -> None:
    """Marks work with SQLAlchemy's recipe for savepoints; the driver alone would autocommit."""
    engine = database.engine()
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    inbox = Inbox(engine, group_id="billing")
    inbox.create()
    with engine.connect() as connection:
        assert inbox.once(connection, delivered())
        connection.rollback()
        assert inbox.once(connection, delivered())
        connection.commit()
        assert not inbox.once(connection, delivered())


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_isolation_levels(inbox: Inbox, engine: Engine, level: str) -> None:
    """A message that another transaction has taken since this one began is never taken again.

    Above READ COMMITTED, PostgreSQL raises an error in place of False; a retry returns False.
    """
    engine = engine.execution_options(isolation_level=level)
    with engine.connect() as connection:
        connection.execute(select(WORK)).all()  # the snapshot is taken
        with engine.connect() as other:
            assert inbox.once(other, delivered())
            other.commit()
        if engine.dialect.name == "postgresql" and level != "READ COMMITTED":
            with pytest.raises(DBAPIError) as caught:
                inbox.once(connection, delivered())
            assert caught.value.orig.sqlstate == "40001"
            connection.rollback()
        assert not inbox.once(connection, delivered())
        assert inbox.once(connection, delivered(index=1))
        connection.commit()


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_snapshot_isolation(inbox: Inbox, engine: Engine) -> None:
    """innodb_snapshot_isolation, newer versions' default: MariaDB raises in place of False."""
    with engine.connect() as connection:
        connection.execute(text("SET SESSION innodb_snapshot_isolation = ON"))
        connection.execute(select(inbox.table)).all()  # the snapshot is taken
        assert take(inbox, engine, delivered())
        with pytest.raises(DBAPIError, match="Record has changed since last read"):
            inbox.once(connection, delivered())
        connection.rollback()
        assert not inbox.once(connection, delivered())
        connection.rollback()
        connection.execute(text("SET SESSION innodb_snapshot_isolation = OFF"))


def test_a_message_without_an_id_needs_a_key(inbox: Inbox, engine: Engine) -> None:
    """A message of another producer, or with malformed headers; the error has its position."""
    for headers in (
        None,
        [],
        [("trace", b"1")],
        [(TRANSACTION_ID, b"")],
        [(TRANSACTION_ID, b"\xff")],
        [(TRANSACTION_ID, b"a"), (MESSAGE_INDEX, b"x")],
    ):
        with pytest.raises(NoIdentityError, match=r"orders\[3\]@7.*key="):
            take(inbox, engine, Message(headers))
        assert take(inbox, engine, Message(headers), key=f"{headers}")
        assert not take(inbox, engine, Message(headers), key=f"{headers}")


def test_a_record_of_aiokafka_is_a_message(inbox: Inbox, engine: Engine) -> None:
    """It has the identity of the same message of confluent-kafka; its headers are a tuple."""
    given = delivered(index=2)
    record: Any = ConsumerRecord(
        "orders", 3, 7, 0, 0, None, b"", None, 0, 0, tuple(given.headers() or ())
    )
    assert take(inbox, engine, record)
    assert not take(inbox, engine, given)
    record = ConsumerRecord("orders", 3, 7, 0, 0, None, b"", None, 0, 0, ())
    with pytest.raises(NoIdentityError, match=r"orders\[3\]@7.*key="):
        take(inbox, engine, record)


def test_keys_are_exact_and_meet_no_id(inbox: Inbox, engine: Engine) -> None:
    """Keys may differ in case, trailing spaces, accents or length only; none is a message's id."""
    keys = ["a" * 32, "A", "a", "a ", "\u00e4", "a\u0308", "\U0001f600", "\U0001f601" * 255, "?"]
    for is_first in (True, False):
        assert [take(inbox, engine, delivered(), key=key) for key in keys] == [is_first] * len(keys)
    assert take(inbox, engine, delivered())
    other = Inbox(engine, group_id="BILLING ")
    assert take(other, engine, delivered(), key="a")
    assert [(each.group_id, each.count) for each in inbox.show()] == [
        ("BILLING ", 1),
        ("billing", len(keys) + 1),
    ]


@pytest.mark.parametrize("key", ["", "a" * 256, "a\0b", "\ud800"])
def test_what_cannot_be_stored_as_it_is_is_refused(inbox: Inbox, engine: Engine, key: str) -> None:
    """A key that a database would cut or change would be another message's."""
    with pytest.raises(InboxUsageError, match="allowed is text of 1 to 255"):
        take(inbox, engine, delivered(), key=key)
    with pytest.raises(ConfigError, match="group_id"):
        Inbox(engine, group_id=key)
    if key.isascii() and key:
        with pytest.raises(InboxUsageError, match="allowed is"):
            take(inbox, engine, delivered(key))


def test_errors_of_kafka_are_no_messages(inbox: Inbox, engine: Engine) -> None:
    """A message with an error() is refused, and the exception has the error's text."""
    with pytest.raises(InboxUsageError, match="timed out"):
        take(inbox, engine, Message(None, error="timed out"))


def test_what_is_no_connection_is_refused(inbox: Inbox) -> None:
    """An asyncio session is refused: its connection() returns a coroutine."""

    class AsyncSession:
        def connection(self, **_: object) -> str:
            return "a coroutine"

    wrong: Any = AsyncSession()
    with pytest.raises(InboxUsageError, match="AsyncSession: give a SQLAlchemy Connection"):
        inbox.once(wrong, delivered())


def test_the_table_is_named_and_made_once(database: Database, engine: Engine) -> None:
    """It has any name; `create` may be repeated, and `metadata.create_all` makes it too."""
    inbox = Inbox(engine, group_id="billing", name="Taken Messages")
    with pytest.raises(DBAPIError, match="Taken Messages"):
        take(inbox, engine, delivered())
    inbox.create()
    inbox.create()
    assert take(inbox, engine, delivered())
    other = Inbox(engine, group_id="billing", name="by_alembic")
    other.metadata.create_all(engine)
    assert take(other, engine, delivered())


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_the_table_may_be_in_a_schema(engine: Engine, database: Database) -> None:
    """On MariaDB and MySQL a schema is a database."""
    schema = "messages" if database.name == "postgresql" else str(engine.url.database)
    if database.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA messages"))
    inbox = Inbox(engine, group_id="billing", schema=schema)
    inbox.create()
    assert [take(inbox, engine, delivered()) for _ in range(2)] == [True, False]
    assert inbox.table.fullname == f"{schema}.halfbridge_inbox"


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_table_without_transactions_is_refused(engine: Engine) -> None:
    """MyISAM keeps the mark of work that was rolled back."""
    inbox = Inbox(engine, group_id="billing")
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE halfbridge_inbox (group_id VARBINARY(50), message_index INT,"
                " transaction_id VARBINARY(50), created_at_ms BIGINT,"
                " PRIMARY KEY (group_id, transaction_id, message_index)) ENGINE=MyISAM"
            )
        )
    inbox.create()
    for _ in range(2):
        with pytest.raises(TableError, match="MyISAM"):
            take(inbox, engine, delivered())
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE halfbridge_inbox ENGINE=InnoDB"))
    assert take(inbox, engine, delivered())


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_mariadb_under_the_name_of_mysql(database: Database) -> None:
    """SQLAlchemy accepts both names; a mark of one is found by the other."""
    engine, alias = database.engine(), database.engine()
    alias = type(database)("mysql", database.url.replace("mariadb", "mysql", 1), "").engine()
    WORK.create(alias)
    inbox = Inbox(alias, group_id="billing")
    inbox.create()
    assert take(inbox, alias, delivered(), key="A ")
    assert not take(Inbox(engine, group_id="billing"), engine, delivered(), key="A ")
    alias.dispose()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_commit_with_a_mark_is_durable(inbox: Inbox, engine: Engine) -> None:
    """A mark turns synchronous_commit on for its transaction, so a killed server keeps it."""

    def setting(connection: Connection) -> Any:
        return connection.execute(text("SHOW synchronous_commit")).scalar_one()

    with engine.begin() as connection:
        connection.execute(text("SET synchronous_commit = off"))
        inbox.once(connection, delivered())
        assert setting(connection) == "on"
    with engine.begin() as connection:
        assert setting(connection) == "off"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_database_that_forgets_is_refused(inbox: Inbox, engine: Engine) -> None:
    """A crash may lose a commit, and Kafka's offset would be after the message."""
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA synchronous = OFF")
        with pytest.raises(NotDurableError):
            inbox.once(connection, delivered())


# --- purge and show ------------------------------------------------------------------------

DAY_MS = 86_400_000
MINUTE_MS = 60_000


def mark(inbox: Inbox, engine: Engine, age_ms: int, numbers: range, group: str = "billing") -> None:
    """Insert marks of an age."""
    with engine.begin() as connection:
        now_ms = connection.execute(select(NowMs())).scalar_one()
        rows = [
            {
                "group_id": group,
                "transaction_id": f"{number:032x}",
                "message_index": number % 3,
                "created_at_ms": now_ms - age_ms,
            }
            for number in numbers
        ]
        connection.execute(insert(inbox.table), rows)


def left(inbox: Inbox, engine: Engine) -> int:
    """Return how many marks there are."""
    with engine.begin() as connection:
        return len(connection.execute(select(inbox.table.c.message_index)).all())


def test_old_marks_are_deleted(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge deletes, in batches, only marks of this group that are old enough."""
    monkeypatch.setattr(inbox_module, "PURGE_ROWS", 10)
    for number in range(7):
        mark(inbox, engine, 8 * DAY_MS + number, range(5 * number, 5 * number + 5))
    mark(inbox, engine, 7 * DAY_MS - MINUTE_MS, range(100, 104))
    mark(inbox, engine, 30 * DAY_MS, range(200, 203), group="stock")
    assert inbox.purge(older_than_ms=7 * DAY_MS, retention_ms=7 * DAY_MS) == 35
    assert inbox.purge(older_than_ms=7 * DAY_MS, retention_ms=7 * DAY_MS) == 0
    assert left(inbox, engine) == 7


def test_the_clock_is_the_databases(inbox: Inbox, engine: Engine) -> None:
    """Ages are by the database's clock, whatever the session's time zone is."""
    zones = {
        "postgresql": "SET TIME ZONE 'Pacific/Auckland'",
        "mariadb": "SET time_zone = '+13:00'",
        "mysql": "SET time_zone = '+13:00'",
    }
    with engine.begin() as connection:
        if zone := zones.get(engine.dialect.name):
            connection.exec_driver_sql(zone)
        assert inbox.once(connection, delivered())
    (marks,) = inbox.show()
    assert (marks.group_id, marks.count) == ("billing", 1)
    assert 0 <= marks.newest_ms == marks.oldest_ms < 10 * MINUTE_MS


def test_show_tells_of_all_groups(inbox: Inbox, engine: Engine) -> None:
    """`show` returns the number and the ages of the marks of each group."""
    assert inbox.show() == ()
    mark(inbox, engine, 2 * DAY_MS, range(3))
    mark(inbox, engine, DAY_MS, range(3, 4))
    mark(inbox, engine, 5 * DAY_MS, range(2), group="audit")
    shown = [
        (each.group_id, each.count, each.oldest_ms // MINUTE_MS, each.newest_ms // MINUTE_MS)
        for each in inbox.show()
    ]
    day = DAY_MS // MINUTE_MS
    assert shown == [("audit", 2, 5 * day, 5 * day), ("billing", 4, 2 * day, day)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("older_than_ms", "retention_ms", "topics", "wanted"),
    [
        (DAY_MS - 1, DAY_MS, (), "older_than_ms: 86399999"),
        (DAY_MS, None, (), "retention_ms or topics"),
        (DAY_MS, DAY_MS, ("orders",), "retention_ms or topics"),
        (DAY_MS, -1, (), "rows that are kept are never purged"),
    ],
)
def test_a_mark_outlives_its_message(
    inbox: Inbox,
    engine: Engine,
    *,
    older_than_ms: int,
    retention_ms: int | None,
    topics: tuple[str, ...],
    wanted: str,
) -> None:
    """A purge of marks whose messages can be read again is refused, and deletes nothing."""
    mark(inbox, engine, 30 * DAY_MS, range(2))
    with pytest.raises(ConfigError, match=wanted):
        inbox.purge(older_than_ms=older_than_ms, retention_ms=retention_ms, topics=topics)
    assert left(inbox, engine) == 2


# --- `halfbridge inbox`, and the retention of brokers --------------------------------------

DELETION_MS = 12 * 60_000


def invoke(command: str, database: Database, *words: str) -> Result:
    """Run a command on a database."""
    return CliRunner().invoke(cli, ["inbox", command, "--url", database.url, *words])


@pytest.mark.feature
def test_the_table_is_made_shown_and_purged(database: Database) -> None:
    """The commands print lines for an operator, or JSON."""
    for _ in range(2):
        made = invoke("create", database)
        assert (made.exit_code, made.output) == (0, "table halfbridge_inbox exists\n")
    assert invoke("show", database).output == "no marks\n"
    inbox = Inbox(database.engine(), group_id="billing")
    with database.engine().begin() as connection:
        assert inbox.once(connection, delivered())
        row = {"group_id": "billing", "transaction_id": "b", "message_index": 0}
        connection.execute(insert(inbox.table).values(**row, created_at_ms=0))
    assert invoke("show", database).output.startswith("billing: 2 marks, from ")
    (group,) = json.loads(invoke("show", database, "--json").output)["groups"]
    assert (group["group_id"], group["count"]) == ("billing", 2)
    purge = ("--group-id", "billing", "--older-than-ms", str(DAY_MS))
    done = invoke("purge", database, *purge, "--retention-ms", str(DAY_MS), "--json")
    assert json.loads(done.output) == {"deleted": 1}
    assert invoke("show", database).output.startswith("billing: 1 marks")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_mistakes_are_one_line(database: Database) -> None:
    """Each error has the remedy; a password is not shown."""
    purge = ("--group-id", "billing", "--older-than-ms", "10")
    for words, wanted in (
        (("show",), "no such table: halfbridge_inbox"),
        (("purge", *purge), "retention_ms or topics, one of the two"),
        (
            ("purge", *purge, "--retention-ms", "11"),
            "11 or more: a message can be read again for that long",
        ),
        (("show", "--url", "nonsense"), "(from --url) is not allowed"),
        (("show", "--url", "postgresql+psycopg://u:secret@127.0.0.1:1/x"), "u:***@127.0.0.1"),
        (("show", "--url", "oracle+nothing://"), "oracle"),
    ):
        command, *rest = words
        failed = invoke(command, database, *rest)
        assert failed.exit_code != 0
        assert wanted in failed.output
        assert "secret" not in failed.output
        assert "unexpected" not in failed.output


@pytest.mark.broker
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_brokers_say_how_long_messages_stay(installation: Installation, database: Database) -> None:
    """The sum of retention, active segment and deletion time; of several topics the maximum."""
    settings = {"retention_ms": str(7 * DAY_MS), "segment_ms": str(DAY_MS)}
    orders = installation.topic("orders", **settings)
    stock = installation.topic("stock", retention_ms="1000", segment_ms="1000")
    kept_ms = 8 * DAY_MS + DELETION_MS
    servers = installation.servers
    assert real_retention_ms([orders, stock], bootstrap_servers=servers) == kept_ms
    assert invoke("create", database).exit_code == 0
    words = ["--group-id", "billing", "--topic", orders, "--bootstrap-servers", servers]
    done = invoke("purge", database, *words, "--older-than-ms", str(kept_ms))
    assert (done.exit_code, done.output) == (0, "deleted 0\n")
    failed = invoke("purge", database, *words, "--older-than-ms", str(kept_ms - 1))
    assert failed.exit_code != 0
    assert f"{kept_ms} or more" in failed.output


@pytest.mark.broker
def test_what_is_kept_for_ever_is_never_purged(installation: Installation) -> None:
    """Topics with unlimited retention, and compacted or missing topics, raise ConfigError."""
    forever = installation.topic("forever", retention_ms="-1")
    compacted = installation.topic("compacted", cleanup_policy="compact")
    for topic in (forever, compacted, installation.real("nothing")):
        with pytest.raises(ConfigError, match=topic):
            real_retention_ms([topic], bootstrap_servers=installation.servers)

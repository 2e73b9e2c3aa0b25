"""The end of a poll's transaction, on each database. No Kafka."""

from sqlalchemy import Connection, text

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.claims import PLAN_S_MAX, Claims, end_read
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.marks import engine_of
from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.sql.databases import Database

QUERIES = 10  # psycopg prepares at the sixth time
_PREPARED = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%is_cut%'")


def looking(messages: LocalMessages) -> Claims:
    """Return Claims with the limits of a relay."""
    return Claims(messages, RelayConfig())


def plans(connection: Connection, name: str) -> int:
    """Return how many plans of polls the server keeps for a connection."""
    if name != "postgresql":
        return 0
    kept = int(connection.execute(_PREPARED).scalar_one())
    connection.commit()
    return kept


def test_looks_are_planned_once_for_a_while(database: Database) -> None:
    """PostgreSQL keeps the plan of the first polls, and makes a new one after PLAN_S_MAX."""
    messages = LocalMessages(database.engine())
    messages.create()
    claims = looking(messages)
    is_kept = int(messages.database.name == "postgresql")
    with engine_of(messages).connect() as connection:
        for _ in range(QUERIES):
            claims.read(connection, range(BUCKETS))
            end_read(connection, 0.0)
        assert plans(connection, messages.database.name) == is_kept
        claims.read(connection, range(BUCKETS))
        end_read(connection, PLAN_S_MAX)
        assert plans(connection, messages.database.name) == 0
        for _ in range(QUERIES):
            claims.read(connection, range(BUCKETS))
            end_read(connection, PLAN_S_MAX + 1)
        assert plans(connection, messages.database.name) == is_kept


def test_each_query_sees_earlier_commits(database: Database) -> None:
    """A poll whose plan is kept has a snapshot of its own, and leaves no transaction open."""
    messages = LocalMessages(database.engine())
    messages.create()
    claims = looking(messages)
    with engine_of(messages).connect() as connection:
        for number in range(QUERIES):
            with messages.engine.begin() as writing:
                messages.add(writing, Message("t", key=b"%d" % number, value=b""))
            snapshot = claims.read(connection, range(BUCKETS))
            end_read(connection, 0.0)
            assert not connection.in_transaction()
            assert len(snapshot.messages) == number + 1

"""A relay beside a database that dies, and one that nobody wakes but the database."""

import pytest
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.sending import RelayStep
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.sql.databases import Database, OwnDatabase
from tests.sql.relaying import running, scene, wait_until

pytestmark = pytest.mark.broker
ROWS = 20
NEVER_MS = 3_600_000


@pytest.mark.parametrize("step", [RelayStep.SENT, RelayStep.MARKED, RelayStep.COMMITTED])
def test_a_database_that_is_killed_under_a_relay_costs_no_row(
    own_database: OwnDatabase,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    step: RelayStep,
) -> None:
    """SIGKILL of the server in the middle of a round, and a restart: each row once, in order."""
    topic = halfbridge_topics.create("orders")
    kills = [1]

    def on_step(reached: RelayStep) -> None:
        if reached is step and kills:
            kills.pop()
            own_database.kill()
            own_database.restart()

    engine = own_database.engine(pool_pre_ping=True)
    with scene(engine, halfbridge_stack, topic) as made:
        service = made.service(on_step=on_step, transaction_rows_max=7)
        with engine.begin() as connection:
            given = [Message(topic, key=b"k%d" % (n % 3), value=b"%d" % n) for n in range(ROWS)]
            made.messages.add_all(connection, given)

        def is_done() -> bool:
            try:
                return set(made.states()) == {"GLOBAL_COMMIT*"}
            except DBAPIError:  # it is just being restarted
                return False

        with running(service):
            wait_until(is_done)
        assert not kills
        halfbridge_stack.wait_until_decided()  # what was in doubt too, while somebody answers
    records = halfbridge_stack.read_committed(topic, count=ROWS)
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(ROWS))
    assert all([n for n in numbers if n % 3 == k] == list(range(k, ROWS, 3)) for k in range(3))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_writers_wake_a_relay_on_postgresql(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """A relay that would look again in an hour only has each row at once, settled ones too."""
    topic = halfbridge_topics.create("orders")
    with scene(database.engine(), halfbridge_stack, topic) as made:
        service = made.service(poll_ms_min=NEVER_MS, poll_ms_max=NEVER_MS)
        messages = made.messages
        with running(service):
            wait_until(lambda: service._listener.is_listening)
            with messages.engine.begin() as connection:
                messages.add(connection, Message(topic, key=b"k", value=b"1"))
            wait_until(lambda: made.states()[0].startswith("GLOBAL_COMMIT"))
            prepared = messages.prepare(Message(topic, key=b"k", value=b"2"))
            messages.settle(prepared, success=True)
            wait_until(lambda: made.states()[1].startswith("GLOBAL_COMMIT"))
    halfbridge_stack.read_committed(topic, count=2)

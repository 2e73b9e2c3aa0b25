"""A relay whose database, or whose own round, hangs: bounds, health, and its end."""

import signal
from contextlib import ExitStack
from threading import Event, Thread

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.check_responder import _STOP_S as CHECKERS_STOP_S
from halfbridge.bridge.message import Message
from halfbridge.relays import DRAIN_S_MAX, DrainError
from halfbridge.sql import Fence
from halfbridge.sql.bounds import Bounds
from halfbridge.sql.engines import engine_of
from halfbridge.sql.local_messages.sending import RelayStep
from halfbridge.sql.local_messages.service import CLOSE_S_MAX
from halfbridge.sql.local_messages.settling import PreparedMessage
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.sql.databases import Database, OwnDatabase, ProxiedDatabase
from tests.sql.relaying import Scene, running, scene, states_of, wait_until
from tests.sql.test_relay_command import RelayProcess

pytestmark = pytest.mark.broker
TOPIC_PARTITIONS = 1
ROWS = 20
END_S_MAX = 60.0
KUBERNETES_S, SPARE_S = 30.0, 5.0

# Short, as the test waits for them in a black hole; long enough for a busy machine.
BOUNDS = Bounds(connect_s=5, statement_s=5, answer_s=7)


def make_tables(engine: Engine) -> None:
    """Make the tables of a scene."""
    LocalMessages(engine).create()
    Fence(engine, producer_group="any").create()


@pytest.mark.parametrize(
    ("fault", "step"),
    [("blackhole", RelayStep.SENT), ("blackhole", RelayStep.MARKED), ("cut", RelayStep.MARKED)],
)
def test_a_connection_that_is_lost_costs_a_relay_its_bounds_and_no_row(
    proxied_database: ProxiedDatabase,
    halfbridge_stack: HalfbridgeStack,
    topic: str,
    fault: str,
    step: RelayStep,
) -> None:
    """Lost before the marks or COMMIT: an error within the bounds, then the relay continues."""
    holes = [1]

    def on_step(reached: RelayStep) -> None:
        if reached is step and holes:
            holes.pop()
            getattr(proxied_database.proxy, fault)()

    with ExitStack() as exits:
        make_tables(proxied_database.engine())  # on a busy machine not within BOUNDS
        engine = engine_of(proxied_database.url, bounds=BOUNDS)
        exits.callback(engine.dispose)
        made = exits.enter_context(scene(engine, halfbridge_stack, topic))
        beside = LocalMessages(proxied_database.admin_engine())
        with beside.engine.begin() as connection:
            given = [Message(topic, key=b"k%d" % (n % 3), value=b"%d" % n) for n in range(ROWS)]
            given += [Message(topic, value=b"%d" % (ROWS + n)) for n in range(ROWS)]
            beside.add_all(connection, given)
        service = made.service(on_step=on_step, transaction_rows_max=7)
        exits.enter_context(running(service))
        wait_until(lambda: "relay: " in service.health().reason)
        proxied_database.proxy.heal()
        wait_until(lambda: set(states_of(beside)) == {"GLOBAL_COMMIT*"})
        wait_until(lambda: service.health().all_well)
        halfbridge_stack.wait_until_decided()  # transactions given up too, while checks work
    records = halfbridge_stack.read_committed(topic, count=2 * ROWS)
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(2 * ROWS))
    keyed = [n for n in numbers if n < ROWS]
    assert all([n for n in keyed if n % 3 == k] == list(range(k, ROWS, 3)) for k in range(3))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_health_tells_of_a_round_that_hangs(relaying: Scene, topic: str) -> None:
    """The reason has the last step of the round; health is well again once the round has ended."""
    hangs, may_go_on = Event(), Event()

    def on_step(step: RelayStep) -> None:
        if step is RelayStep.SENT:
            hangs.set()
            assert may_go_on.wait(END_S_MAX)

    service = relaying.service(on_step=on_step, round_s_max=0.5)
    with relaying.messages.engine.begin() as connection:
        relaying.messages.add(connection, Message(topic, key=b"k"))
    with running(service):
        try:
            # Before that, a round that is only slow may be reported too, with another step.
            assert hangs.wait(END_S_MAX)
            wait_until(lambda: not service.health().all_well)
            reason = service.health().reason
            assert reason.startswith("rounds: no success for ")
            assert reason.endswith("SENT")
        finally:
            may_go_on.set()
        wait_until(lambda: service.health().all_well)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_relay_that_hangs_is_not_waited_for_without_end(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """After `stop`, `run` ends in time with a DrainError that names what hangs."""
    hangs, may_go_on = Event(), Event()

    def on_step(step: RelayStep) -> None:
        if step is RelayStep.SENT:
            hangs.set()
            assert may_go_on.wait(END_S_MAX)

    service = relaying.service(on_step=on_step)
    with relaying.messages.engine.begin() as connection:
        relaying.messages.add(connection, Message(topic, key=b"k"))

    def stop() -> None:
        hangs.wait(END_S_MAX)
        service.stop()

    Thread(target=stop, daemon=True).start()
    try:
        with pytest.raises(DrainError, match=r"^rounds\b.* did not end in 0.2 s; .*SENT$"):
            service.run(drain_s=0.2)
    finally:
        may_go_on.set()
    halfbridge_stack.wait_until_decided()


def round_age_s(relay: RelayProcess) -> float:
    """Return how long ago a round of a relay succeeded."""
    lines = relay.says("metrics").splitlines()
    found = [line for line in lines if line.startswith("halfbridge_relay_round_age_seconds ")]
    return float(found[0].split()[1]) if found else 0.0


@pytest.mark.long
def test_sigterm_ends_a_relay_whose_database_is_a_black_hole(
    proxied_database: ProxiedDatabase, halfbridge_stack: HalfbridgeStack
) -> None:
    """It ends before its database raises an error, with status 1."""
    with RelayProcess(proxied_database, halfbridge_stack) as relay:
        wait_until(lambda: '"ready": true' in relay.says("readyz"))
        proxied_database.proxy.blackhole()
        wait_until(lambda: round_age_s(relay) > 1.0)
        assert relay.end(signal.SIGTERM) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_relay_that_fails_leaves_its_buckets_to_others_at_once(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """An unexpected error ends `run`, which frees the buckets before their leases expire."""

    def on_step(step: RelayStep) -> None:
        if step is RelayStep.SENT:
            assert held(relaying) > 0
            raise RuntimeError("nobody has thought of it")

    service = relaying.service(on_step=on_step)
    with relaying.messages.engine.begin() as connection:
        relaying.messages.add(connection, Message(topic, key=b"k"))
    with pytest.raises(RuntimeError, match=r"^nobody has thought of it$"):
        service.run()
    assert held(relaying) == 0
    halfbridge_stack.wait_until_decided()  # by a check, as long as the producer lives


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_callback_that_hangs_keeps_no_bucket(
    relaying: Scene, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`run` ends with an error that names the callback's thread; the rounds free the buckets."""
    may_go_on = Event()
    with ExitStack() as exits:
        exits.callback(may_go_on.set)

        def callback(_row: PreparedMessage) -> None:
            assert held(relaying) > 0
            service.stop()
            assert may_go_on.wait(END_S_MAX)

        service = relaying.service(callback=callback, prepared_ms_min=0)
        relaying.messages.prepare(Message(topic, key=b"k"))
        with pytest.raises(DrainError, match=r"settling did not end in 5 s$"):
            service.run(drain_s=5)
        assert held(relaying) == 0
    assert "without releasing its leases" not in caplog.text


def test_a_relay_has_ended_before_it_is_killed() -> None:
    """All waits after SIGTERM together are shorter than the grace period of Kubernetes."""
    assert DRAIN_S_MAX + CHECKERS_STOP_S + CLOSE_S_MAX <= KUBERNETES_S - SPARE_S


def held(relaying: Scene) -> int:
    """Return how many buckets have an owner."""
    buckets = relaying.messages.tables.buckets
    query = select(func.count()).where(buckets.c.owner != "")
    with relaying.messages.engine.connect() as connection:
        return connection.execute(query).scalar_one()


# --- a database that is killed, and a relay that only the database wakes -------------------

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
            except DBAPIError:  # the server restarts
                return False

        with running(service):
            wait_until(is_done)
        assert not kills
        halfbridge_stack.wait_until_decided()  # transactions in doubt too, while checks work
    records = halfbridge_stack.read_committed(topic, count=ROWS)
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(ROWS))
    assert all([n for n in numbers if n % 3 == k] == list(range(k, ROWS, 3)) for k in range(3))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_writers_wake_a_relay_on_postgresql(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """A relay whose next poll is in an hour relays each row at once, settled ones too."""
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

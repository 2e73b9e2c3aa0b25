"""A relay whose database, or whose own round, hangs: bounds, health, and its end."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from bridge.message import Message
from halfbridge.sql.bounds import Bounds
from halfbridge.sql.engines import engine_of
from halfbridge.sql.local_messages.errors import DrainError
from halfbridge.sql.local_messages.steps import RelayStep
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.sql.relaying import Scene, running, scene, states_of, wait_until
from tests.sql.test_relay_command import RelayProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
    from tests.sql.databases import Database, ProxiedDatabase

pytestmark = pytest.mark.broker
ROWS = 20
END_S_MAX = 60.0
BOUNDS = Bounds(connect_s=2, statement_s=2, answer_s=3)


@pytest.fixture
def topic(halfbridge_topics: OwnTopics) -> str:
    """A real topic of this test's own."""
    return halfbridge_topics.create("orders")


@pytest.fixture
def relaying(database: Database, halfbridge_stack: HalfbridgeStack, topic: str) -> Iterator[Scene]:
    """A table, a fence and a producer."""
    with scene(database.engine(), halfbridge_stack, topic) as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("blackhole", RelayStep.SENT),
        ("blackhole", RelayStep.MARKED),
        ("cut", RelayStep.MARKED),
    ],
)
def test_a_connection_that_is_lost_costs_a_relay_its_bounds_and_no_row(
    proxied_database: ProxiedDatabase,
    halfbridge_stack: HalfbridgeStack,
    topic: str,
    fault: str,
    step: RelayStep,
) -> None:
    """In front of the marks, or of COMMIT: an error in time, then it goes on by itself."""
    holes = [1]

    def on_step(reached: RelayStep) -> None:
        if reached is step and holes:
            holes.pop()
            getattr(proxied_database.proxy, fault)()

    with ExitStack() as exits:
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
    records = halfbridge_stack.read_committed(topic, count=2 * ROWS)
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(2 * ROWS))
    keyed = [n for n in numbers if n < ROWS]
    assert all([n for n in keyed if n % 3 == k] == list(range(k, ROWS, 3)) for k in range(3))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_health_tells_of_a_round_that_hangs(relaying: Scene, topic: str) -> None:
    """With the step behind which it hangs; well again once it has ended."""
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
            # Before, a round that is merely slow is told of too, with another step.
            assert hangs.wait(END_S_MAX)
            wait_until(lambda: not service.health().all_well)
            reason = service.health().reason
            assert reason.startswith("rounds: none has ended well for ")
            assert reason.endswith("SENT")
        finally:
            may_go_on.set()
        wait_until(lambda: service.health().all_well)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_relay_that_hangs_is_not_waited_for_without_end(relaying: Scene, topic: str) -> None:
    """Told to stop, `run` ends in time with an error that says what hangs."""
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


def round_age_s(relay: RelayProcess) -> float:
    """Return how long ago a relay's round ended well."""
    lines = relay.says("metrics").splitlines()
    found = [line for line in lines if line.startswith("halfbridge_relay_round_age_seconds ")]
    return float(found[0].split()[1]) if found else 0.0


@pytest.mark.long
def test_sigterm_ends_a_relay_whose_database_is_a_black_hole(
    proxied_database: ProxiedDatabase, halfbridge_stack: HalfbridgeStack
) -> None:
    """Before its database gives an error, with a status that says that something was left."""
    with RelayProcess(proxied_database, halfbridge_stack) as relay:
        wait_until(lambda: '"ready": true' in relay.says("readyz"))
        proxied_database.proxy.blackhole()
        wait_until(lambda: round_age_s(relay) > 1.0)
        assert relay.end(signal.SIGTERM) == 1

"""Relays that die at each step, and two of them on one table."""

from collections.abc import Callable
from threading import Thread

import pytest
from sqlalchemy import delete, insert, select, update

from halfbridge.bridge.message import Message
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.sending import RelayStep
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.relaying import Scene, run_dry

pytestmark = pytest.mark.broker
KEYS = 4
ROUNDS = 12


class DiedError(BaseException):
    """Simulates SIGKILL inside of a relay: nothing catches it, nothing is cleaned up."""


def write(relaying: Scene, topic: str, numbers: range) -> None:
    """Insert rows; those of each KEYS + 1 have no key."""
    with relaying.messages.engine.begin() as connection:
        for n in numbers:
            key = None if n % (KEYS + 1) == KEYS else b"key-%d" % (n % (KEYS + 1))
            relaying.messages.add(connection, Message(topic, key=key, value=b"%d" % n))


def check(stack: HalfbridgeStack, topic: str, count: int) -> None:
    """Check that each row was delivered once, and the rows of each key in order."""
    stack.wait_until_decided()
    records = stack.read_committed(topic, count=count)
    values = [int(record.value or b"") for record in records]
    assert sorted(values) == list(range(count))
    for key in {record.key for record in records} - {None}:
        mine = [int(record.value or b"") for record in records if record.key == key]
        assert mine == sorted(mine), key


def dies_at(step: RelayStep) -> Callable[[RelayStep], None]:
    """Return an `on_step` that dies when a round reaches `step`."""

    def on_step(reached: RelayStep) -> None:
        if reached is step:
            raise DiedError(step)

    return on_step


@pytest.mark.parametrize("step", list(RelayStep))
def test_a_relay_that_dies_at_any_step_leaves_each_row_to_be_delivered_once(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str, step: RelayStep
) -> None:
    """Later rows of the same keys come, another relay takes over at once, and keeps the order."""
    write(relaying, topic, range(20))
    relay = relaying.relay(relay_name="relay", on_step=dies_at(step), transaction_rows_max=3)
    with pytest.raises(DiedError):
        run_dry(relay)
    write(relaying, topic, range(20, 40))
    run_dry(relaying.relay(relay_name="relay", transaction_rows_max=3))
    check(halfbridge_stack, topic, 40)
    keyed = [s for n, s in enumerate(relaying.states()) if n % (KEYS + 1) != KEYS]
    assert set(keyed) == {"GLOBAL_COMMIT*"}


def test_what_was_marked_is_committed_before_what_comes_later(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """After a death between database commit and COMMIT, the next relay first repeats COMMIT."""
    write(relaying, topic, range(4))
    with pytest.raises(DiedError):
        run_dry(relaying.relay(relay_name="relay", on_step=dies_at(RelayStep.COMMITTED)))
    assert set(relaying.states()) == {"GLOBAL_COMMIT"}
    write(relaying, topic, range(4, 9))
    relay = relaying.relay(relay_name="relay")
    run_dry(relay)
    assert relay.metrics.repeats._value.get() >= 1
    check(halfbridge_stack, topic, 9)


def test_a_relay_without_its_lease_cannot_mark(relaying: Scene, topic: str) -> None:
    """If another relay takes over between its poll and its marks, all marks are rolled back."""
    write(relaying, topic, range(4))
    successor = relaying.relay(relay_name="relay")

    def lose(step: RelayStep) -> None:
        if step is RelayStep.SENT:
            successor._keep_leases()

    relay = relaying.relay(relay_name="relay", on_step=lose)
    assert not relay.round()
    assert set(relaying.states()) == {"LOCAL_COMMIT"}
    assert relay.metrics.lost._value.get() >= 1


def test_a_row_that_another_relay_marked_is_not_marked_again(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """Both relays send the row, and one marks it; the transaction of the other is rolled back."""
    write(relaying, topic, range(5))
    other = relaying.relay(relay_name="other")

    def overtake(step: RelayStep) -> None:
        if step is not RelayStep.SENT:
            return
        # The leases are restored afterwards: only the state keeps a row from being marked twice.
        buckets = relaying.messages.tables.buckets
        with relaying.messages.engine.begin() as connection:
            held = connection.execute(select(buckets)).mappings().all()
            connection.execute(update(buckets).values(expires_at=0))
        run_dry(other)
        other.close()
        with relaying.messages.engine.begin() as connection:
            connection.execute(delete(buckets))
            connection.execute(insert(buckets), [dict(row) for row in held])

    relay = relaying.relay(relay_name="relay", on_step=overtake)
    relay.round()
    assert relay.metrics.lost._value.get() >= 1
    run_dry(relay)
    check(halfbridge_stack, topic, 5)


def test_two_relays_share_a_table(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """Both work at once, in small batches: each row is delivered once."""
    relays = [relaying.relay(transaction_rows_max=5, lease_ms=1_500) for _ in range(2)]
    for relay in relays:
        relay._keep_leases()
    failures: list[BaseException] = []

    def work(relay: Relay) -> None:
        try:
            for _ in range(ROUNDS):
                relay.round()
        except BaseException as error:  # noqa: BLE001  (reported by the test)
            failures.append(error)

    write(relaying, topic, range(60))
    threads = [Thread(target=work, args=(relay,)) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for relay in relays:
        relay.close()
    run_dry(relaying.relay())
    check(halfbridge_stack, topic, 60)

"""A relay in a test: its table and fence in a database, its producer on a stack with a daemon."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any

from sqlalchemy import Engine, select

from halfbridge.bridge import TransactionProducer
from halfbridge.relays import ROUND_S_MAX
from halfbridge.sql import Fence
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.service import RelayService
from halfbridge.sql.local_messages.settling import PreparedMessage
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack
from tests.kit.waiting import until

GROUP = "relay"
WAIT_S_MAX = 90.0  # on a busy machine
# Each poll is a query.
wait_until = partial(until, "it comes to that", within_s=WAIT_S_MAX, every_s=0.05)


class Scene:
    """A local message table, a fence, and a producer whose checker the fence is.

    Attributes:
        messages: The table.
        fence: In the same database.
        producer: Started.
    """

    def __init__(
        self, messages: LocalMessages, fence: Fence, producer: TransactionProducer
    ) -> None:
        self.messages = messages
        self.fence = fence
        self.producer = producer

    def relay(self, **given: Any) -> Relay:
        """Return a relay; settings of RelayConfig and `on_step` may be given."""
        on_step = given.pop("on_step", None)
        return Relay(
            self.messages, self.fence, self.producer, RelayConfig(**given), on_step=on_step
        )

    def service(
        self,
        *,
        callback: Callable[[PreparedMessage], bool | None] | None = None,
        round_s_max: float = ROUND_S_MAX,
        **given: Any,
    ) -> RelayService:
        """Return a relay that runs by itself, at short intervals unless `given` has others."""
        quick = {"housekeeping_ms": 50, "retry_ms_min": 50, "poll_ms_max": 100}
        relay = self.relay(**{**quick, **given})
        return RelayService(relay, self.producer, callback=callback, round_s_max=round_s_max)

    def rows(self) -> list[dict[str, Any]]:
        table = self.messages.tables.messages
        with self.messages.engine.connect() as connection:
            found = connection.execute(select(table).order_by(table.c.id)).mappings().all()
        return [dict(row) for row in found]

    def states(self) -> list[str]:
        """Return the state of each row, by id; a GLOBAL_COMMIT that is acknowledged has a star."""
        return states_of(self.messages)


@contextmanager
def scene(engine: Engine, stack: HalfbridgeStack, topic: str) -> Iterator[Scene]:
    """Yield a scene with a producer group of its own, named after `topic`."""
    group = f"{GROUP}-{topic}"
    messages = LocalMessages(engine)
    messages.create()
    fence = Fence(engine, producer_group=group)
    fence.create()
    with stack.producer(group, checker=fence.check) as producer:
        yield Scene(messages, fence, producer)


@contextmanager
def running(service: RelayService) -> Iterator[None]:
    """Run a service in a thread while the block runs; it must end without an error."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001  (raised in the test's thread)
            failures.append(error)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join(WAIT_S_MAX)
    assert not thread.is_alive()
    assert failures == []


def states_of(messages: LocalMessages) -> list[str]:
    """Return the state of each row, by id; a GLOBAL_COMMIT that is acknowledged has a star."""
    table = messages.tables.messages
    query = select(table.c.state, table.c.decision_acknowledged).order_by(table.c.id)
    with messages.engine.connect() as connection:
        found = connection.execute(query).all()
    return [state + ("*" if acknowledged else "") for state, acknowledged in found]


def run_dry(relay: Relay) -> int:
    """Run rounds until no work is left; return how many found work.

    A round that lost against a faster check, on a busy machine, does not end the loop.
    """
    deadline = monotonic() + WAIT_S_MAX
    rounds = 0
    while monotonic() < deadline:
        if relay.round():
            rounds += 1
        elif not relay.lost_rounds and not relay.failing:
            relay.acknowledge()
            return rounds
    raise AssertionError(f"still at work after {rounds} rounds")

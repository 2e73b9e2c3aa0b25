"""A relay in a test: its table and fence in a database, its producer on a stack with a daemon."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from halfbridge.sql import Fence
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.writer import LocalMessages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from bridge import TransactionProducer
    from halfbridge.testkit.stack import HalfbridgeStack

GROUP = "relay"
ROUNDS_MAX = 200


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

    def states(self) -> list[str]:
        """Return the state of each row, by id; a GLOBAL_COMMIT that is acknowledged has a star."""
        table = self.messages.tables.messages
        query = select(table.c.state, table.c.decision_acknowledged).order_by(table.c.id)
        with self.messages.engine.connect() as connection:
            found = connection.execute(query).all()
        return [state + ("*" if acknowledged else "") for state, acknowledged in found]


@contextmanager
def scene(engine: Engine, stack: HalfbridgeStack, topic: str) -> Iterator[Scene]:
    """Yield a scene whose group nobody else has; `topic` gives it its name."""
    group = f"{GROUP}-{topic}"
    messages = LocalMessages(engine)
    messages.create()
    fence = Fence(engine, producer_group=group)
    fence.create()
    with stack.producer(group, checker=fence.check) as producer:
        yield Scene(messages, fence, producer)


def run_dry(relay: Relay) -> int:
    """Run rounds until nothing is left to do; return how many found work."""
    for rounds in range(ROUNDS_MAX):
        if not relay.round():
            relay.acknowledge()
            return rounds
    raise AssertionError(f"still at work after {ROUNDS_MAX} rounds")

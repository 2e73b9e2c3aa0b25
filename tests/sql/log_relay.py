"""A relay of a user's table, for tests: in this process, or in one that kills itself at a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any

from halfbridge.bridge import TransactionProducer
from halfbridge.sql import Fence
from halfbridge.sql.bounds import RELAY_BOUNDS
from halfbridge.sql.engines import engine_of
from halfbridge.sql.log_subscription.mapping import parse_mapping
from halfbridge.sql.log_subscription.positions import Positions
from halfbridge.sql.log_subscription.progress import BeginAt
from halfbridge.sql.log_subscription.sources import log_source
from halfbridge.sql.log_subscription.subscription import LogSubscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.sql.log_subscription.progress import Progress
    from halfbridge.testkit.stack import HalfbridgeStack
    from tests.sql.log_scene import Orders

GROUP = "orders-relay"
CHILD_S_MAX = 120.0


class Relayed:
    """A table of orders, a topic, and how to relay the one into the other."""

    def __init__(self, orders: Orders, stack: HalfbridgeStack, topic: str) -> None:
        self.orders = orders
        self.stack = stack
        self.topic = topic
        self.given: dict[str, Any] = {
            "url": orders.database.url,
            "topic": topic,
            "begin_at": "now",
            "kafka": {
                "bootstrap_servers": stack.bootstrap_servers,
                "topic_prefix": stack.topic_prefix,
                "transaction_timeout_ms": stack.config.transaction_timeout_ms,
                "topics": [topic],
            },
        }

    def delivered(self, count: int) -> list[int]:
        """Return the orders in the topic, once `count` are there, in their order."""
        records = self.stack.read_committed(self.topic, count=count)
        return [json.loads(each.value or b"")["id"] for each in records]

    def settled(self) -> list[int]:
        """Return the orders in the topic, when no transaction is undecided any more."""
        check = Fence(self.orders.engine, producer_group=GROUP).check
        with self.stack.producer(GROUP, checker=check):
            self.stack.wait_until_decided()
        return self.delivered(0)


@dataclass(frozen=True)
class Running:
    """A relay in a thread; `ended` is set when it has ended, `stop` ends it."""

    progress: Progress
    stop: Event
    ended: Event


def subscription(
    stack: ExitStack,
    *,
    url: str,
    topic: str,
    kafka: dict[str, Any],
    begin_at: str,
    on_step: Callable[[str], None],
    name: str = "orders_relay",
    group: str = GROUP,
) -> LogSubscription:
    """Return a subscription with all that it needs, opened in `stack`."""
    engine = engine_of(url, bounds=RELAY_BOUNDS)
    stack.callback(engine.dispose)
    fence = Fence(engine, producer_group=group)
    fence.create()
    positions = Positions(engine, owner=f"{os.getpid()}")
    positions.create()
    producer = TransactionProducer(producer_group=group, checker=fence.check, **kafka)
    stack.enter_context(producer)
    mapping = f'topic = "{topic}"\nkey_column = "customer"\nvalue_columns = ["id"]'
    return LogSubscription(
        producer=producer,
        fence=fence,
        positions=positions,
        source=log_source(engine, name=name, table="orders"),
        mapping=parse_mapping(mapping, origin="test"),
        name=name,
        begin_at=BeginAt(begin_at),
        progress_interval_s=0.2,
        on_step=on_step,
    )


@contextmanager
def relaying(**given: Any) -> Iterator[Running]:
    """Run a relay in a thread of this process; what it raises comes out at the end."""
    stop, ended, raised = Event(), Event(), []
    given.setdefault("on_step", lambda _step: None)

    def run(relay: LogSubscription) -> None:
        try:
            relay.run(stop)
        except Exception as error:  # noqa: BLE001 (raised below)
            raised.append(error)
        ended.set()

    with ExitStack() as stack:
        relay = subscription(stack, **given)
        thread = Thread(target=run, args=(relay,))
        thread.start()
        try:
            yield Running(relay.progress, stop, ended)
        finally:
            stop.set()
            thread.join()
            if raised:
                raise raised[0]


class ChildRelay:
    """A relay in a process of its own, which says what it does; `close` kills it.

    Args:
        given: Of `subscription`.
        die_at: The step at which it kills itself; empty: it does not.
        die_count: At which time.
    """

    def __init__(self, given: dict[str, Any], *, die_at: str = "", die_count: int = 0) -> None:
        arguments = json.dumps({**given, "die_at": die_at, "die_count": die_count})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sql.log_relay", arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._done: Counter[str] = Counter()
        self._changed = Condition()
        self._thread = Thread(target=self._listen)
        self._thread.start()

    def wait_for(self, step: str, count: int) -> None:
        """Return when it has done `step` so many times more."""
        with self._changed:
            goal = self._done[step] + count
            self._changed.wait_for(lambda: self._done[step] >= goal, CHILD_S_MAX)
            assert self._done[step] >= goal, (step, self._done)

    def wait_dead(self) -> None:
        """Return when it has killed itself."""
        assert self._process.wait(CHILD_S_MAX) == -signal.SIGKILL

    def count(self, step: str) -> int:
        """Return how often it has done `step`."""
        with self._changed:
            return self._done[step]

    def close(self) -> None:
        """SIGKILL it. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._done[line.strip()] += 1
                    self._changed.notify_all()


def die_at(step: str, count: int, **given: Any) -> None:
    """Run a relay in a process that kills itself at the `count`-th `step`; return when it has."""
    arguments = json.dumps({**given, "die_at": step, "die_count": count})
    done = subprocess.run(
        [sys.executable, "-m", "tests.sql.log_relay", arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_S_MAX,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3_000:]


def _child() -> None:
    given = json.loads(sys.argv[1])
    step, count = given.pop("die_at"), given.pop("die_count")
    seen: Counter[str] = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        print(name, flush=True)  # noqa: T201 (ChildRelay listens)
        if name == step and seen[name] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as stack:
        subscription(stack, on_step=on_step, **given).run(Event())


if __name__ == "__main__":
    _child()

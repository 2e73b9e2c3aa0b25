"""The fence and the daemon: what a service leaves behind comes out as its database has it."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest

from bridge import Message
from tests.integration.producing import GROUP
from tests.sql.fence_scene import Scene, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
    from tests.sql.databases import Database

pytestmark = pytest.mark.broker

WAIT_S_MAX = 60.0
POLL_S = 0.05


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = monotonic() + WAIT_S_MAX
    while not done():
        assert monotonic() < deadline
        sleep(POLL_S)


def test_what_nobody_decided_comes_out_as_the_database_has_it(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """Committed work is delivered, with all its messages; what never began is rolled back.

    Work in flight gets no answer as long as it is, and work that is not fenced gets none at all.
    """
    topic, scene = halfbridge_topics.create("orders"), Scene(database)
    fence = scene.fence

    def begun(*values: bytes, context: bytes | None) -> Any:
        tx = producer.begin(context=context)
        for value in values:
            tx.send(Message(topic, key=b"customer-42", value=value))
        return tx

    with halfbridge_stack.producer(GROUP, checker=fence.check) as producer:
        committed = begun(b"first", b"second", context=fence.context())
        slow = begun(b"slow", context=fence.context())
        with scene.engine.connect() as connection:
            fence.enter(connection, committed)
            work(connection, 1)
            connection.commit()  # and then the service dies
        with scene.engine.connect() as connection:
            fence.enter(connection, slow)
            work(connection, 2)
            never = begun(b"never", context=fence.context())
            foreign = begun(b"foreign", context=None)
            _wait_until(lambda: producer.check_counts().failed >= 2)
            assert scene.worked() == [1]
            connection.commit()
        _wait_until(lambda: scene.fenced(never.id) is not None)
        foreign.rollback()
        halfbridge_stack.wait_until_decided()
    assert scene.fenced(committed.id) == ("committed", 2)
    assert scene.fenced(never.id) == ("rolled_back", 0)
    assert scene.fenced(foreign.id) is None
    values = [each.value for each in halfbridge_stack.read_committed(topic)]
    assert sorted(values) == [b"first", b"second", b"slow"]
    assert values.index(b"first") < values.index(b"second")

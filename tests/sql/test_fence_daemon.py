"""The fence and the daemon: transactions of dead services end as their databases have decided."""

from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from halfbridge.bridge import Message
from halfbridge.cli import cli
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.records import DeadLetter, DeadReason, OpKind
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.integration.installation import Installation
from tests.integration.producing import GROUP
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.fence_scene import Scene, on, work

pytestmark = pytest.mark.broker

DECISIONS = {OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD}
QUICK: dict[str, Any] = {"transaction_timeout_ms": 1_000, "check_interval_ms": 1_000, "leave": True}


@pytest.mark.feature
def test_what_nobody_decided_comes_out_as_the_database_has_it(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """Committed work is delivered, with all its messages; work that never began is rolled back.

    Work in flight gets no answer until it ends, and work that is not fenced gets none at all.
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
            until("two checks have failed", lambda: producer.check_counts().failed >= 2)
            assert scene.worked() == [1]
            connection.commit()
        until("the fence has a row", lambda: scene.fenced(never.id) is not None)
        foreign.rollback()
        halfbridge_stack.wait_until_decided()
    assert scene.fenced(committed.id) == ("committed", 2)
    assert scene.fenced(never.id) == ("rolled_back", 0)
    assert scene.fenced(foreign.id) is None
    values = [each.value for each in halfbridge_stack.read_committed(topic)]
    assert sorted(values) == [b"first", b"second", b"slow"]
    assert values.index(b"first") < values.index(b"second")


def test_committed_work_that_lacks_a_message_is_never_delivered_in_part(
    database: Database, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """A check answers COMMIT of 3, by the fence row, and 2 messages are stored: none is delivered.

    A power cut of a broker without replicas can lose the last of 3. The messages become INCOMPLETE
    dead letters. The work stays committed.
    """
    topic, scene = halfbridge_topics.create("orders"), Scene(database)
    with halfbridge_stack.producer(GROUP, checker=scene.fence.check) as producer:
        lacking, whole = (
            _committed_by_the_dead(scene, producer, topic, values, message_count=3)
            for values in ((b"0", b"1"), (b"2", b"3", b"4"))
        )
        halfbridge_stack.wait_until_decided()
    values = [each.value for each in halfbridge_stack.read_committed(topic)]
    assert values == [b"2", b"3", b"4"]
    letters = _dead_letters(halfbridge_stack, lacking)
    assert [value for value, _ in letters] == [b"0", b"1"]
    for _, dead in letters:
        assert dead.reason is DeadReason.INCOMPLETE
        assert "of 3 messages 2 are there" in dead.detail
    assert not _dead_letters(halfbridge_stack, whole)
    assert scene.fenced(lacking) == scene.fenced(whole) == ("committed", 3)


def _committed_by_the_dead(
    scene: Scene, producer: Any, topic: str, values: tuple[bytes, ...], *, message_count: int
) -> str:
    """Commit work in the database only, as a client that is killed then."""
    tx = producer.begin(context=scene.fence.context())
    for value in values:
        tx.send(Message(topic, key=b"customer-42", value=value))
    scene.commit(tx.id, message_count=message_count)
    return str(tx.id)


def _dead_letters(
    stack: HalfbridgeStack, transaction_id: str
) -> list[tuple[bytes | None, DeadLetter]]:
    """Return value and reason of the transaction's dead letters."""
    found = []
    for record in stack.read_committed(stack.config.names.dead):
        headers = dict(record.headers)
        half = headers.get(HALF)  # None: a record of another test, from another client
        if half is not None and HALF_METADATA.decode(half).transaction_id == transaction_id:
            found.append((record.value, DEAD_LETTER.decode(headers[DEAD] or b"")))
    return found


@on("sqlite")
def test_committed_work_whose_first_message_is_lost_gets_no_answer(
    database: Database, installation: Installation
) -> None:
    """The fence's context is lost with it: nothing is delivered in part, nor rolled back.

    The record is lost as by a retention that is too short; the daemon stops for an operator.
    """
    installation.make(groups=(GROUP,))
    orders, half = installation.topic("orders"), installation.names.half
    scene = Scene(database)
    with installation.producer(scene.fence.check) as producer:
        lacking, whole = (
            _committed_by_the_dead(scene, producer, orders, values, message_count=2)
            for values in ((b"0", b"1"), (b"2", b"3"))
        )
        where = TopicPartition(half, 0, 1)
        installation.admin.delete_records([where])[where].result()

        daemon = installation.launch(**QUICK)
        assert "below the log start" in daemon.stopped(0)
        daemon.stop()
        words = ["checker", "init", "--partition", "0", "--topic-prefix", installation.names.prefix]
        done = CliRunner().invoke(cli, [*words, "--bootstrap-servers", installation.servers])
        assert done.exit_code == 0, done.output

        installation.start(**QUICK)
        installation.tail(orders).until(2)
        until("two checks have failed", lambda: producer.check_counts().failed >= 2)
        delivered = installation.delivered(orders)
    assert [each.value for each in delivered] == [b"2", b"3"]
    ops = [each.op for each in installation.tail(installation.names.op).to_end()]
    decided = {op.transaction_id for op in ops if op.kind in DECISIONS}
    assert whole in decided
    assert lacking not in decided
    assert scene.fenced(lacking) == scene.fenced(whole) == ("committed", 2)

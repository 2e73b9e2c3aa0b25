"""Half messages that are acknowledged late, beside those of a later round."""

from collections.abc import Iterator
from time import monotonic

import pytest

from halfbridge.bridge.message import Message
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.transaction import State
from halfbridge.serde.partitioner import key_hash
from halfbridge.sql import Fence
from halfbridge.sql.local_messages import sending as under_way
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.relaying import GROUP, WAIT_S_MAX, Scene, run_dry

pytestmark = pytest.mark.broker
LINGER_MS = 100  # a round that does not wait ends sooner
TO_RELAY, MARKED, DONE = "LOCAL_COMMIT", "GLOBAL_COMMIT", "GLOBAL_COMMIT*"


@pytest.fixture
def topic(halfbridge_topics: OwnTopics) -> str:
    """A real topic of this test's own."""
    return halfbridge_topics.create("orders", partitions=2)


@pytest.fixture
def relaying(database: Database, halfbridge_stack: HalfbridgeStack, topic: str) -> Iterator[Scene]:
    """A table, a fence and a producer whose half messages are acknowledged late."""
    messages = LocalMessages(database.engine())
    messages.create()
    fence = Fence(messages.engine, producer_group=f"{GROUP}-{topic}")
    fence.create()
    with halfbridge_stack.producer(
        fence.producer_group, checker=fence.check, linger_ms=LINGER_MS
    ) as producer:
        yield Scene(messages, fence, producer)


def key_of(place: int, places: int) -> bytes:
    """Return a key of a half partition."""
    return next(key for n in range(1_000) if key_hash(key := b"key-%d" % n) % places == place)


def add(relaying: Scene, topic: str, key: bytes) -> None:
    """Insert a row."""
    with relaying.messages.engine.begin() as connection:
        relaying.messages.add(connection, Message(topic, key=key, value=key))


def test_a_late_batch_that_a_check_has_rolled_back_undoes_no_other_batch(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other batch of that round is marked in it; the late row is sent again, delivered once."""
    places = relaying.producer.half_partitions
    late, prompt = key_of(0, places), key_of(1, places)
    begun: list[Transaction] = []
    begin = relaying.producer.begin

    def noting(**given: object) -> Transaction:
        begun.append(begin(**given))
        return begun[-1]

    monkeypatch.setattr(relaying.producer, "begin", noting)
    relay = relaying.relay()
    add(relaying, topic, late)
    with monkeypatch.context() as impatient:
        impatient.setattr(under_way, "PATIENCE_S", 0.0)
        deadline = monotonic() + WAIT_S_MAX
        while not begun:  # its first rounds may be without buckets
            assert monotonic() < deadline
            relay.round()
    assert relaying.states() == [TO_RELAY]  # the send is in flight
    assert relaying.fence.roll_back(begun[0].id)  # as a check does
    until("the late send is acknowledged", lambda: begun[0].state is State.HALF_SENT)
    add(relaying, topic, prompt)
    relay.round()
    assert relaying.states() == [TO_RELAY, MARKED]
    assert relay.lost_rounds == 1
    run_dry(relay)
    relay.close()
    assert relaying.states() == [DONE, DONE]
    records = halfbridge_stack.read_committed(topic, count=2)
    assert sorted(record.value or b"" for record in records) == sorted([late, prompt])

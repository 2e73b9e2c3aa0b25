"""Half partitions whose broker is gone: their keys wait, and no others."""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest
from confluent_kafka.admin import NewTopic

from halfbridge.bridge.message import Message
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.partitioner import key_hash
from halfbridge.serde.topics import TopicNames
from halfbridge.sql import Fence
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.integration.producing import GROUP, Cluster
from tests.kit.cluster import ProxiedCluster
from tests.sql.databases import Database
from tests.sql.relaying import WAIT_S_MAX, Scene, run_dry

pytestmark = [pytest.mark.broker, pytest.mark.long]
AWAY = 2  # the node that cannot be reached
LEADERS = [1, AWAY, 1, AWAY]  # by half partition
TIMEOUT_S = 30.0
TIMEOUT_MS = 3_000
DONE = "GLOBAL_COMMIT*"


@pytest.fixture(scope="module")
def brokers() -> Iterator[ProxiedCluster]:
    """Two brokers, each of which leads half partitions, behind a proxy."""
    with ProxiedCluster(2) as started:
        yield started


def round_until(made: Scene, relay: Relay, count: int, is_mine: list[bool]) -> None:
    """Run rounds until `count` of the rows that are `is_mine` are done."""
    deadline = monotonic() + WAIT_S_MAX
    while sum(s == DONE for s, mine in zip(made.states(), is_mine, strict=True) if mine) < count:
        assert monotonic() < deadline, (Counter(made.states()), relay.failing)
        if not relay.round():
            relay.acknowledge()


def new_cluster(servers: str) -> Cluster:
    """Return an installation with topics of its own; both nodes lead half partitions."""
    made = Cluster(servers, TopicNames(f"t{secrets.token_hex(4)}-"))
    names = made.names
    leaders = dict.fromkeys((names.half, names.op), LEADERS)
    leaders |= dict.fromkeys((names.check(GROUP), made.orders), LEADERS[:1])
    config = {"message.timestamp.type": "LogAppendTime"}
    topics = [
        NewTopic(name, len(nodes), replica_assignment=[[node] for node in nodes], config=config)
        for name, nodes in leaders.items()
    ]
    admin = AdminClient({"bootstrap.servers": servers})
    for each in admin.create_topics(topics).values():
        each.result(TIMEOUT_S)
    return made


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_half_partition_without_a_broker_keeps_no_other_one_waiting(
    database: Database, brokers: ProxiedCluster
) -> None:
    """Half messages and COMMITs of others and rows without keys do not wait; later all are sent.

    The relay reports the half partition as failing until its broker is back.
    """
    cluster = new_cluster(brokers.proxied_servers)
    messages = LocalMessages(database.engine())
    messages.create()
    fence = Fence(messages.engine, producer_group=GROUP)
    fence.create()
    limits = {"send_timeout_ms": TIMEOUT_MS, "decision_timeout_ms": TIMEOUT_MS}
    with ExitStack() as exits:
        producer = exits.enter_context(cluster.producer(checker=fence.check, **limits))
        made = Scene(messages, fence, producer)
        places = len(LEADERS)
        away = {place for place in range(places) if LEADERS[place] == AWAY}
        keys = [b"key-%d" % n for n in range(8 * places)]
        is_near = [key_hash(key) % places not in away for key in keys]
        relay = made.relay(transaction_rows_max=3)

        def write(numbers: range) -> None:
            with messages.engine.begin() as connection:
                keyed, keyless = keys * len(numbers), [None] * len(keys) * len(numbers)
                given = [Message(cluster.orders, key=key) for key in (*keyed, *keyless)]
                messages.add_all(connection, given)

        write(range(1))
        run_dry(relay)  # nothing is in doubt when the node goes
        brokers.proxy.blackhole(AWAY)
        write(range(1, 3))
        mine = (is_near + [True] * len(keys)) + (is_near * 2 + [True] * 2 * len(keys))
        round_until(made, relay, sum(mine), mine)
        assert set(relay.failing) <= away
        assert DONE in made.states()
        assert len([s for s in made.states() if s != DONE]) > 0
        brokers.proxy.heal()
        everything = [True] * len(mine)
        round_until(made, relay, len(mine), everything)
        assert not relay.failing
        relay.close()

"""The outlet of the mode at-least-once on brokers in memory: batches, commits, first writes."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop import at_least_once
from halfbridge.checker.loop.at_least_once import (
    AtLeastOnce,
    BoundMember,
    FirstWrites,
    commits_with,
)
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.partitioner import partition_of
from halfbridge.testkit.memory.machine import Machine
from tests.ports.world import Joined, World

CONFIG = CheckerConfig(
    bootstrap_servers="memory", delivery=Delivery.AT_LEAST_ONCE.value, kafka_txn_timeout_ms=2_000
)
NAMES = CONFIG.names


class Scene:
    """An outlet and a member of the group with half and op topic assigned.

    Attributes:
        outlet: The outlet, started.
        world: Kafka.
        joined: The member.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        for topic in (NAMES.half, NAMES.op, NAMES.dead, "orders"):
            world.topic(topic)
        world.topic("small", max_message_bytes="300")
        self.joined = Joined(world, [NAMES.half, NAMES.op], group_instance_id="one").wait()
        with patch.object(at_least_once, "FIRST_KAFKA_TXNS", 0):
            self.outlet = AtLeastOnce(CONFIG, "id-0", ports=world.ports)
        self.outlet.start()

    @property
    def bound(self) -> BoundMember:
        """The member in the generation of the last assignment."""
        return BoundMember(self.joined.member, self.joined.memberships[-1])

    def write(self, *records: Outgoing, op: int = 1, bound: BoundMember | None = None) -> None:
        """Write a batch and commit op offset `op`."""
        self.outlet.write(records)
        offsets = [(NAMES.half, 0, 0, ""), (NAMES.op, 0, op, "metadata")]
        self.outlet.commit(offsets, bound or self.bound)

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values that a read_committed reader sees."""
        return [value for _, value in self.world.read(topic)]

    @property
    def committed(self) -> tuple[int, str | None]:
        """The group's op offset."""
        return self.world.committed(NAMES.op)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An installation in memory."""
    with Machine() as machine:
        ports = machine.ports(machine.process("worker"))
        world = World(ports, {}, "", machine.broker.delete_records)
        world.group = NAMES.daemon_group
        yield Scene(world)


def _real(value: bytes, topic: str = "orders") -> Outgoing:
    return Outgoing(topic, 0, b"k", value, [], 1)


def test_the_first_batches_are_kafka_txns(scene: Scene) -> None:
    """A new outlet writes FIRST_KAFKA_TXNS batches as kafka_txns, then plain batches."""
    outlet = AtLeastOnce(CONFIG, "id-1", ports=scene.world.ports)
    outlet.start()
    kinds = []
    for number in range(at_least_once.FIRST_KAFKA_TXNS + 1):
        outlet.write([_real(b"%d" % number)])
        kinds.append(outlet._is_plain)
        outlet.commit([(NAMES.op, 0, number, "")], scene.bound)
    assert kinds == [False] * at_least_once.FIRST_KAFKA_TXNS + [True]


@pytest.mark.parametrize("kind", [AtLeastOnce, Transactor])
def test_a_connection_that_an_idle_client_has_lost_is_noticed(
    scene: Scene, kind: type[AtLeastOnce | Transactor]
) -> None:
    """An outlet polls its idle client, and must be replaced after a lost connection."""
    outlet = kind(CONFIG, "id-1", ports=scene.world.ports)
    outlet.start()
    assert not outlet.must_be_replaced()
    transactor = outlet._transactor if isinstance(outlet, AtLeastOnce) else outlet
    transactor._writer.connection_lost()
    assert outlet.must_be_replaced()


def test_a_predecessor_on_the_slot_commits_nothing(scene: Scene) -> None:
    """A commit by the slot's previous member fails as fenced."""
    before = scene.bound
    Joined(scene.world, [NAMES.half, NAMES.op], group_instance_id="one").wait()
    with pytest.raises(KafkaTxnFailedError) as caught:
        scene.write(_real(b"1"), bound=before)
    assert caught.value.fenced
    assert scene.committed == (-1001, None)


class _Doubtful:
    """A member whose first commits are stored but time out."""

    def __init__(self, member: Any, failures: int) -> None:
        self._member = member
        self.failures = failures

    def commit_as(self, offsets: Any, membership: object) -> None:
        self._member.commit_as(offsets, membership)
        if self.failures:
            self.failures -= 1
            raise KafkaFailure(Code.REQUEST_TIMED_OUT, "timed out")


def test_a_commit_in_doubt_is_repeated(scene: Scene) -> None:
    """A commit that timed out is retried with the same offsets, and the member then replaced."""
    member: Any = _Doubtful(scene.joined.member, 3)
    bound = BoundMember(member, scene.joined.memberships[-1])
    scene.write(_real(b"1"), bound=bound)
    assert (member.failures, scene.committed) == (0, (1, "metadata"))
    assert bound.must_be_replaced, "one of the three may still arrive"


def test_a_member_that_lost_a_connection_in_a_commit_is_replaced(scene: Scene) -> None:
    """A connection lost in a commit, but not one lost outside, replaces the member."""
    bound = scene.bound
    bound.connection_lost()
    scene.write(_real(b"1"), bound=bound)
    assert not bound.must_be_replaced
    losing: Any = _Doubtful(scene.joined.member, 0)
    losing.commit_as = lambda _offsets, _membership: bound.connection_lost()
    bound._member = losing
    scene.write(_real(b"2"), bound=bound)
    assert bound.must_be_replaced


def test_a_member_that_was_closed_commits_nothing(scene: Scene) -> None:
    """A commit by a closed member raises KafkaTxnFailedError."""
    bound = scene.bound
    scene.joined.member.close()
    with pytest.raises(KafkaTxnFailedError, match="consumer is closed"):
        scene.write(_real(b"1"), bound=bound)


def test_a_commit_that_stays_in_doubt_fails(scene: Scene) -> None:
    """A commit that times out for the time of a batch raises KafkaTxnFailedError."""
    member: Any = _Doubtful(scene.joined.member, 1_000_000)
    with pytest.raises(KafkaTxnFailedError, match="timed out"):
        scene.write(_real(b"1"), bound=BoundMember(member, scene.joined.memberships[-1]))


def test_the_mode_says_what_offsets_are_committed_with(scene: Scene) -> None:
    """exactly-once commits with the membership, at-least-once with the bound member."""
    member = scene.joined.member
    assert commits_with(member, Delivery.EXACTLY_ONCE.value) == member.membership()
    assert isinstance(commits_with(member, Delivery.AT_LEAST_ONCE.value), BoundMember)


# --- a batch is cut after a producer's first record in a partition -------------------------

TOPICS = {"orders": SeenTopic(2, 1), "bills": SeenTopic(1, 1)}


class _Client:
    """A client that counts the requests for topics."""

    def __init__(self) -> None:
        self.asked = 0

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        self.asked += 1
        return TOPICS


def _made() -> tuple[FirstWrites, _Client]:
    client: Any = _Client()
    return FirstWrites(client), client


def _record(
    name: str, topic: str = "orders", partition: int = -1, key: bytes | None = None
) -> Outgoing:
    return Outgoing(topic, partition, key, name.encode(), [], 0)


def _names(pieces: Any) -> list[str]:
    return ["".join((each.value or b"").decode() for each in piece) for piece in pieces]


def _written(writes: FirstWrites, batch: Sequence[Outgoing]) -> list[str]:
    return _names(writes.pieces(batch))


def test_each_first_record_ends_a_piece() -> None:
    """Later records form one piece, in the order of the batch."""
    writes, client = _made()
    batch = [_record("a", partition=1), _record("b", partition=1), _record("c", partition=0)]
    assert _written(writes, [*batch, _record("d", partition=1)]) == ["a", "bc", "d"]
    assert _written(writes, batch) == ["abc"]
    assert client.asked == 1


def test_a_key_names_the_partition() -> None:
    """A record with a key opens the partition that its key is placed in."""
    writes, _ = _made()
    keys = [b"%d" % number for number in range(20)]
    one = next(key for key in keys if partition_of(key, 2) == 1)
    zero = next(key for key in keys if partition_of(key, 2) == 0)
    batch = [_record("a", key=one), _record("b", key=one), _record("c", key=zero), _record("d")]
    assert _written(writes, batch) == ["a", "bc", "d"]


def test_a_record_without_a_key_opens_the_next_partition() -> None:
    """Records without a key open all partitions one by one; then the client places them."""
    writes, _ = _made()
    pieces = [*writes.pieces([_record(name) for name in "abcd"])]
    assert _names(pieces) == ["a", "b", "cd"]
    assert [each.partition for piece in pieces for each in piece] == [0, 1, -1, -1]


def test_each_topic_is_opened_for_itself() -> None:
    """Each topic is opened separately; a missing topic has nothing to open."""
    writes, client = _made()
    assert _written(writes, [_record("a", "bills"), _record("b", "gone")]) == ["a", "b"]
    assert _written(writes, [_record("a", "bills"), _record("b", "gone")]) == ["ab"]
    assert _written(writes, [_record("a", "bills"), _record("b")]) == ["ab", ""]
    assert client.asked == 3

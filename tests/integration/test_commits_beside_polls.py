"""A member commits offsets in one thread while another thread polls it: the commit comes first."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer

from halfbridge.checker.loop.worker import UNDER_WAY_S
from halfbridge.kafka.clients import KafkaReader
from halfbridge.kafka.ports import TopicPartition
from tests.integration.producing import Cluster
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_COMMITS = 30
# A commit that waits for its turn among so many polls has lost; without a bound it waits for ever.
_POLLS_MAX = 100


class Counted(Consumer):
    """The client library's Consumer, which counts the polls that reach it."""

    polls = 0

    def poll(self, *arguments: Any) -> Any:
        self.polls += 1
        return super().poll(*arguments)


def test_a_commit_waits_for_the_poll_at_hand_only(cluster: Cluster) -> None:
    """A commit is served after at most one poll of the thread that polls on and on.

    The client library serves one call at a time, in no order. Commits waited for up to 4 s beside
    a loop that had nothing to read, and the records that needed these commits waited as well. One
    poll may begin while the commit is being announced.
    """
    client = Counted({"bootstrap.servers": cluster.servers, "group.id": cluster.names.daemon_group})
    member = KafkaReader(client)
    assigned: list[frozenset[TopicPartition]] = []
    member.join([cluster.names.half], lambda _, places: assigned.append(places), lambda _: None)
    until("partitions are assigned", lambda: (member.poll(UNDER_WAY_S), assigned)[1])
    member.read_from(dict.fromkeys(assigned[0], 0))
    membership = member.membership()

    def commit(offset: int) -> int:
        until("the other thread polls", lambda: client.polls > before + 2)
        begun = client.polls
        member.commit_as(dict.fromkeys(assigned[0], (offset, "")), membership)
        return client.polls - begun

    begun: list[int] = []
    with ThreadPoolExecutor(1) as other:
        for number in range(_COMMITS):
            before = client.polls
            done = other.submit(commit, number)
            while not done.done() and client.polls < before + _POLLS_MAX:
                member.poll(UNDER_WAY_S)
            begun.append(done.result())
    committed = member.committed(assigned[0], 10.0)
    member.close()
    assert {one.offset for one in committed.values()} == {_COMMITS - 1}
    assert max(begun) <= 1, begun

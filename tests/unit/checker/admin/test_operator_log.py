"""Operators' actions in the audit topic: stored before they take effect, read within a limit."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import (
    READ_RECORDS_MAX,
    ActionFilter,
    OperatorLog,
    read,
    reason_problem,
)
from halfbridge.checker.admin.shape import Layout, wanted_topics
from halfbridge.checker.errors import AdminSetupError, InDoubtError
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.operator_actions import FIELD_BYTES_MAX
from halfbridge.serde.records import ActionOutcome, OperatorAction
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.memory.client import Client, Kind, Network, RequestTimeoutError
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")
NAMES = TopicNames("eu.")
ALL = ActionFilter(limit=100)


class Silent(Network):
    """Does not answer writes while it is silent.

    Attributes:
        is_silent: Whether writes get no answer.
        is_done: Whether a write without an answer is stored.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.is_direct = False
        self.is_silent = self.is_done = False

    def request(
        self, client: Client, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        if not (self.is_silent and kind is Kind.PRODUCE):
            return do()
        if self.is_done:
            do()
        self.scheduler.wait(client.process, None, timeout_s)
        raise RequestTimeoutError


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Brokers in memory with an audit topic as `topics create` makes it."""
    with Machine(network=Silent) as made:
        for shape in wanted_topics(NAMES, Layout(partitions=1, replication_factor=1)):
            if shape.name == NAMES.audit:
                settings = {each.key: each.value for each in shape.settings}
                made.broker.create_topic(NewTopic(shape.name, shape.partitions, 1, settings))
        yield made


@pytest.fixture
def cluster(machine: Machine) -> Cluster:
    """The operator's cluster."""
    return Cluster("memory", ports=machine.ports(machine.process("operator")))


def _record(cluster: Cluster, action: str = "tx commit", who: str = "ada@h") -> OperatorAction:
    with appending(cluster) as appender:
        log = OperatorLog(cluster, NAMES, appender, who=who)
        return log.record(action, "t1", why="seen", before="PREPARED", after="COMMITTED")


def test_an_action_is_read_back_with_how_it_ended(cluster: Cluster) -> None:
    """An action has two records; the first one is stored when `record` returns."""
    with appending(cluster) as appender:
        log = OperatorLog(cluster, NAMES, appender, who="ada@h")
        intended = log.record("tx commit", "t1", why="seen", before="PREPARED", after="COMMITTED")
        assert [each.action for each in read(cluster, NAMES, ALL)] == [intended]
        done = log.conclude(intended, ActionOutcome.DONE, after="COMMITTED at 7")

    found = read(cluster, NAMES, ALL)
    assert [each.action for each in found] == [intended, done]
    assert intended.outcome is ActionOutcome.INTENDED
    assert done == intended._replace(
        at_ms=done.at_ms, outcome=ActionOutcome.DONE, after="COMMITTED at 7"
    )
    assert all(each.append_ms > 0 for each in found)


def test_what_is_asked_for_is_found(cluster: Cluster) -> None:
    """Action or its first word, operator, subject and time filter; a limit keeps the newest."""
    for action, who in (("tx commit", "ada@h"), ("tx rollback", "bob@h"), ("txt", "ada@h")):
        _record(cluster, action, who)
        cluster.ports.run.pause(60)

    def actions(**wanted: object) -> list[str]:
        asked = ActionFilter(**{"limit": 100, **wanted})
        return [each.action.action for each in read(cluster, NAMES, asked) if each.action]

    assert actions() == ["tx commit", "tx rollback", "txt"]
    assert actions(action="tx") == ["tx commit", "tx rollback"]
    assert actions(action="tx rollback") == ["tx rollback"]
    assert actions(who="ada@h") == ["tx commit", "txt"]
    assert actions(subject="t2") == []
    assert actions(limit=2) == ["tx rollback", "txt"]
    assert actions(since_ms=cluster.ports.clock.time_ms() - 90_000) == ["txt"]


def test_what_strangers_write_is_shown_and_believed_nowhere(cluster: Cluster) -> None:
    """A record that cannot be read is listed with its problem, but not by an operator filter."""
    with appending(cluster) as appender:
        appender.append((NAMES.audit, 0), b"\xc3\x01nonsense", b"k")
    _record(cluster)
    broken, good = read(cluster, NAMES, ALL)
    assert (broken.action, broken.problem) == (
        None,
        "OperatorAction: unknown schema fingerprint 6e6f6e73656e7365",
    )
    assert good.action is not None
    assert [each.offset for each in read(cluster, NAMES, ActionFilter(who="ada@h", limit=9))] == [1]


def test_without_the_topic_nothing_is_recorded(cluster: Cluster, machine: Machine) -> None:
    """Without an audit topic, the error names the command that creates it."""
    machine.broker.delete_topic(NAMES.audit)
    wanted = "run: halfbridge topics create --bootstrap-servers memory --topic-prefix eu."
    with pytest.raises(AdminSetupError, match=wanted):
        _record(cluster)
    with pytest.raises(AdminSetupError, match=wanted):
        read(cluster, NAMES, ALL)


@pytest.mark.parametrize("is_stored", [True, False])
def test_without_an_acknowledgement_it_is_in_doubt(
    cluster: Cluster, machine: Machine, *, is_stored: bool
) -> None:
    """Without an acknowledgement `record` raises InDoubtError, whether it is stored or not."""
    network = machine.network
    assert isinstance(network, Silent)
    network.is_silent, network.is_done = True, is_stored
    with pytest.raises(InDoubtError):
        _record(cluster)
    network.is_silent = False
    assert len(read(cluster, NAMES, ALL)) == int(is_stored)


def test_reading_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more records than READ_RECORDS_MAX the newest are read, and the others are counted."""
    assert READ_RECORDS_MAX == 1_000_000
    monkeypatch.setattr("halfbridge.checker.admin.operator_log.READ_RECORDS_MAX", 2)
    for _ in range(5):
        _record(cluster)
    left_out: list[int] = []
    found = read(cluster, NAMES, ALL, on_left_out=left_out.append)
    assert [each.offset for each in found] == [3, 4]
    assert left_out == [3]


def test_a_reason_is_given_and_short() -> None:
    """A reason that is empty or longer than 1024 bytes is rejected."""
    most = FIELD_BYTES_MAX["why"]
    assert reason_problem("the row is there") == ""
    assert reason_problem("  ") == "must not be empty"
    assert reason_problem("ä" * (most // 2)) == ""
    assert "at most 1024" in reason_problem("ä" * (most // 2 + 1))

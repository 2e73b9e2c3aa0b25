"""How far a reader of dead letters commits, whoever has its partitions meanwhile."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.bridge.config import BridgeConfig
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, KafkaFailure, TopicSetupError
from halfbridge.kafka.ports import Place
from halfbridge.sql.local_messages.dead_letters import LetterReader

CONFIG = BridgeConfig(bootstrap_servers="b:1", producer_group="g")
DEAD = CONFIG.names.dead
FIRST, SECOND = (DEAD, 0), (DEAD, 1)


class _Member:
    """A member whose records, partitions and failures a test says."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.assigned: list[Place] = [FIRST, SECOND]
        self.failure: KafkaFailure | None = None
        self.commits: list[dict[Place, int]] = []
        self.joined: list[str] = []

    def join_and_read(self, topics: list[str]) -> None:
        self.joined = topics

    def poll(self, _wait_s: float) -> Any:
        """Return the first record."""
        return self.records.pop(0) if self.records else None

    def take(self, records_max: int) -> list[Any]:
        taken, self.records = self.records[:records_max], self.records[records_max:]
        return taken

    def assignment(self) -> list[Place]:
        return self.assigned

    def commit(self, offsets: dict[Place, tuple[int, str]]) -> None:
        """Note what is committed, or fail."""
        if self.failure is not None:
            raise self.failure
        self.commits.append({place: at for place, (at, _) in offsets.items()})


@pytest.fixture
def member() -> _Member:
    """Return a member that has both partitions."""
    return _Member()


@pytest.fixture
def reader(member: _Member) -> LetterReader:
    kafka: Any = SimpleNamespace(member=lambda _properties: member)
    return LetterReader(CONFIG, replace(system_ports(), kafka=kafka))


def _record(place: Place, offset: int, error: KafkaFailure | None = None) -> Any:
    told = {"topic": place[0], "partition": place[1], "offset": offset, "error": error}
    told |= {"headers": []}
    return SimpleNamespace(**{name: lambda it=it: it for name, it in told.items()})


def test_what_was_read_is_committed_once(member: _Member, reader: LetterReader) -> None:
    """Behind the last record of each partition; nothing is asked of brokers without news."""
    member.records = [_record(FIRST, 4), _record(FIRST, 5), _record(SECOND, 0)]
    assert reader.read(0.0) == []
    reader.commit()
    reader.commit()
    assert member.commits == [{FIRST: 6, SECOND: 1}]
    assert member.joined == [DEAD]


def test_a_partition_that_another_member_has_is_left_to_it(
    member: _Member, reader: LetterReader
) -> None:
    """Its offset might go back otherwise."""
    member.records = [_record(FIRST, 4), _record(SECOND, 0)]
    reader.read(0.0)
    member.assigned = [SECOND]
    reader.commit()
    assert member.commits == [{SECOND: 1}]


def test_a_commit_that_failed_is_tried_again(member: _Member, reader: LetterReader) -> None:
    """Reading goes on meanwhile."""
    member.records = [_record(FIRST, 4)]
    reader.read(0.0)
    member.failure = KafkaFailure(Code.ILLEGAL_GENERATION)
    reader.commit()
    member.failure = None
    reader.commit()
    assert member.commits == [{FIRST: 5}]


def test_a_topic_that_cannot_be_read_is_the_operators(
    member: _Member, reader: LetterReader
) -> None:
    """The error says who must act."""
    member.records = [_record(FIRST, 0, KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED))]
    with pytest.raises(TopicSetupError):
        reader.read(0.0)

"""What `groups list` finds."""

from __future__ import annotations

import pytest

from halfbridge.checker.admin.transactions import groups as module
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.groups import read_groups
from halfbridge.testkit.memory import MemoryStack
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


def test_members_ops_and_what_is_undecided_are_told() -> None:
    """Of a group at work, and of one whose instances are gone."""
    with MemoryStack() as stack:
        stack.create_topic(TOPIC)
        operator = Operator(stack)
        with stack.producer("gone", checker=unknown) as producer:
            sent(producer, b"one").commit()
        with stack.producer(GROUP, checker=unknown) as producer:
            tx = sent(producer, b"one")
            sent(producer, b"two").rollback()
            stack.advance(seconds=10)
            found = read_groups(operator.cluster, operator.names, since_ms=0)
            only = read_groups(operator.cluster, operator.names, since_ms=0, only="gone")
            later = read_groups(
                operator.cluster, operator.names, since_ms=stack.machine.broker.now_ms + 1
            )
        busy, gone = found.groups
    assert (busy.group, gone.group) == (GROUP, "gone")
    assert (busy.undecided, busy.oldest_undecided_id) == (1, tx.id)
    assert busy.members is not None
    assert (len(busy.members), gone.members) == (1, ())
    assert busy.ops == {"COMMIT": 0, "ROLLBACK": 1, "UNKNOWN": 1, "DISCARD": 0}
    assert busy.last_answer is not None
    assert busy.last_answer.op == "UNKNOWN"
    assert [each.group for each in only.groups] == ["gone"]
    assert (found.is_whole, later.groups[0].ops["UNKNOWN"]) == (True, 0)
    body = plain.groups(found)["groups"]
    assert body[0]["last_answer"]["op"] == "UNKNOWN"
    assert body[1]["members"] == []


def test_of_many_ops_the_newest_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is of all pairs together, and it is said that there were more."""
    with MemoryStack() as stack:
        stack.create_topic(TOPIC)
        operator = Operator(stack)
        with stack.producer(GROUP, checker=unknown) as producer:
            for _ in range(10):
                sent(producer, b"one").commit()
            monkeypatch.setattr(module, "OPS_MAX", 6)
            found = read_groups(operator.cluster, operator.names, since_ms=0)
    assert not found.is_whole
    assert found.groups[0].ops["COMMIT"] <= 6

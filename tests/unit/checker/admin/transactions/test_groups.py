"""Facts that `groups list` reports."""

import pytest

from halfbridge.checker.admin.transactions import groups as module
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.groups import Answer, OpCounts, group_facts, read_groups
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.checker.core.events import OpRead
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.testkit.memory import MemoryStack
from tests.kit.records import AN_OP
from tests.kit.undecided import AN_UNDECIDED
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown


def test_members_ops_and_what_is_undecided_are_reported() -> None:
    """An active group, and a group without instances, have members, op counts and last answer."""
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
    """The limit is for all pairs together; the result records that ops were left out."""
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


# --- facts by producer group from undecided transactions and ops ---------------------------


def _op(group: str, kind: OpKind, append_ms: int, source: OpSource = OpSource.PRODUCER) -> OpRead:
    op = AN_OP._replace(producer_group=group, kind=kind, source=source, actor="i", reason="")
    return OpRead(0, append_ms, op)


def test_the_last_answer_is_the_newest_of_all_pairs() -> None:
    """Decisions of producers are counted, but are not answers."""
    counts = OpCounts(10)
    counts.add(_op("a", OpKind.COMMIT, 9))
    counts.add(_op("a", OpKind.UNKNOWN, 5, OpSource.CHECK))
    counts.add(_op("a", OpKind.ROLLBACK, 3, OpSource.CHECK))
    (facts,) = group_facts([], counts, {"a"}, {"a": ("i on host",)})
    assert facts.ops == {"COMMIT": 1, "ROLLBACK": 1, "UNKNOWN": 1, "DISCARD": 0}
    assert facts.last_answer == Answer(5, "UNKNOWN", "i", "")
    assert facts.members == ("i on host",)


def test_groups_come_by_what_is_undecided() -> None:
    """A check topic, an undecided transaction or an op lists a group; most undecided first."""
    counts = OpCounts(10)
    counts.add(_op("by op", OpKind.COMMIT, 1))
    busy = AN_UNDECIDED._replace(producer_group="busy")
    found = group_facts(
        [busy._replace(age_ms=None), busy._replace(id="known", age_ms=7, wait=Wait.ASKED)],
        counts,
        {"by topic"},
        {},
    )
    assert [each.group for each in found] == ["busy", "by op", "by topic"]
    assert (found[0].undecided, found[0].undecided_bytes) == (2, 4)
    assert (found[0].oldest_undecided_id, found[0].oldest_undecided_age_ms) == ("known", 7)
    assert found[0].waits == {"ASKED": 1, "NOT_DUE": 1}
    assert (found[0].has_check_topic, found[2].has_check_topic) == (False, True)
    assert found[2].members is None


def test_a_stranger_who_names_many_groups_is_counted_no_further() -> None:
    """Groups beyond the limit are left out and counted."""
    counts = OpCounts(3)
    for number in range(5):
        counts.add(_op(f"g{number}", OpKind.COMMIT, 1))
    counts.add(_op("g0", OpKind.COMMIT, 1))
    assert (len(counts.by_group), counts.left_out) == (3, 2)
    assert counts.by_group["g0"]["COMMIT"] == 2

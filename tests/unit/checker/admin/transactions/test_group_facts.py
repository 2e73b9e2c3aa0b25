"""What is made of undecided transactions and ops, by producer group."""

from __future__ import annotations

from halfbridge.checker.admin.transactions.groups import Answer, OpCounts, group_facts
from halfbridge.checker.admin.transactions.waits import Wait
from halfbridge.checker.core.events import OpRead
from halfbridge.serde.records import OpKind, OpSource
from tests.kit.records import AN_OP
from tests.unit.checker.admin.transactions.test_plain import AN_UNDECIDED


def _op(group: str, kind: OpKind, append_ms: int, source: OpSource = OpSource.PRODUCER) -> OpRead:
    op = AN_OP._replace(producer_group=group, kind=kind, source=source, actor="i", reason="")
    return OpRead(0, append_ms, op)


def test_the_last_answer_is_the_newest_of_all_pairs() -> None:
    """Decisions of producers are counted, and are no answers."""
    counts = OpCounts(10)
    counts.add(_op("a", OpKind.COMMIT, 9))
    counts.add(_op("a", OpKind.UNKNOWN, 5, OpSource.CHECK))
    counts.add(_op("a", OpKind.ROLLBACK, 3, OpSource.CHECK))
    (facts,) = group_facts([], counts, {"a"}, {"a": ("i on host",)})
    assert facts.ops == {"COMMIT": 1, "ROLLBACK": 1, "UNKNOWN": 1, "DISCARD": 0}
    assert facts.last_answer == Answer(5, "UNKNOWN", "i", "")
    assert facts.members == ("i on host",)


def test_groups_come_by_what_is_undecided() -> None:
    """A group is seen by its check topic, an undecided transaction or an op."""
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
    """Those beyond the limit are left out, and their number is known."""
    counts = OpCounts(3)
    for number in range(5):
        counts.add(_op(f"g{number}", OpKind.COMMIT, 1))
    counts.add(_op("g0", OpKind.COMMIT, 1))
    assert (len(counts.by_group), counts.left_out) == (3, 2)
    assert counts.by_group["g0"]["COMMIT"] == 2

"""The plan under construction: copies, discards, sizes."""

from __future__ import annotations

from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import Draft, PutBackRule
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from tests.playbook import metadata


def _entry() -> Entry:
    entry = Entry(HalfRead(4, 500, metadata("A"), "", 10, "body"))
    entry.messages[1] = HalfRead(6, 501, metadata("A", 1), "", 20, "body")
    entry.check_times = 2
    return entry


def test_a_copy_tells_the_life_of_its_original() -> None:
    """Everything else in the header stays as the client wrote it."""
    draft = Draft(1_000)
    draft.put_back(_entry(), PutBackRule.WINDOW)
    first, second = draft.plan.put_backs
    expected = metadata("A")._replace(check_times=2, first_append_timestamp=500, origin_offset=4)
    assert first.metadata == expected
    assert (second.metadata.origin_offset, second.metadata.first_append_timestamp) == (6, 500)
    assert (draft.plan.records, draft.plan.size_bytes) == (2, 30)


def test_a_copy_of_a_copy_keeps_the_origin() -> None:
    """However often it is put back, the original's offset is told."""
    draft = Draft(1_000)
    copy = metadata("A")._replace(origin_offset=1, first_append_timestamp=300)
    draft.put_back(Entry(HalfRead(4, 500, copy, "", 10, None)), PutBackRule.ANSWER)
    (put_back,) = draft.plan.put_backs
    assert put_back.metadata == copy


def test_a_discard_names_what_it_is_about() -> None:
    """Its half_offset is the transaction's last record, so that it waits for all of them."""
    draft = Draft(1_000)
    draft.discard(_entry(), "CHECK_TIMES", "worker-0", 900)
    (op,) = draft.plan.discards
    assert (op.kind, op.source, op.actor) == (OpKind.DISCARD, OpSource.CHECKER, "worker-0")
    assert (op.half_offset, op.message_count, op.check_number) == (6, COUNT_UNKNOWN, 2)
    assert (op.transaction_id, op.producer_group, op.reason) == ("A", "orders", "CHECK_TIMES")


def test_a_taken_plan_is_not_touched_again() -> None:
    """What is drawn up afterwards belongs to the next one."""
    draft = Draft(1_000)
    draft.dead_letter_junk_op(JunkRead(1, 2, "broken", 10, None))
    taken = draft.pop()
    draft.dead_letter_junk_op(JunkRead(2, 2, "broken", 20, None))
    assert (len(taken.junk), taken.records, taken.size_bytes) == (1, 1, 10)
    assert len(draft.plan.junk) == 1

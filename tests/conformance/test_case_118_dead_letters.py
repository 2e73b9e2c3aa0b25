"""Conformance cases 25, 118, 119 and 134: an operator brings a given-up transaction back."""

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge import Resolution
from halfbridge.checker.admin.dead.letters import Choice, Remedy, Wanted
from halfbridge.checker.admin.dead.redoing import redo
from halfbridge.checker.errors import AdminError
from halfbridge.serde.avro import MarkAction
from halfbridge.serde.headers import parse_half, user_headers
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.memory import MemoryStack
from tests.kit.dead_letters import TOPIC, Scene, lose, order, refusals, txn

CHECKS = 15
HOUR_S = 3_600


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An installation in memory with a real topic."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        yield Scene(stack)


def halves(scene: Scene) -> list[Any]:
    """Return the half records of pair 0."""
    partition = scene.stack.machine.broker.partition((scene.names.half, 0))
    records: list[Any] = partition.read(partition.start, partition.end)[0]
    return records


def test_case_025_an_operator_resumes_a_transaction(scene: Scene) -> None:
    """A success tells what was stored again; a broker's refusal is an error that names it."""
    scene.discarded(1)
    scene.settle()
    dead = scene.stack.machine.broker.topic(scene.names.dead)
    dead.alter({"max.message.bytes": "10"})  # takes no mark
    with pytest.raises(AdminError, match=r"cannot .*MSG_SIZE_TOO_LARGE"):
        scene.redo(Remedy.RESUME, 1)
    assert scene.stack.undecided() == []
    dead.alter({"max.message.bytes": "1000000"})
    (reported,) = scene.redo(Remedy.RESUME, 1)
    assert (reported.refusal, reported.resume_count, reported.indices) == ("", 1, (0, 1))
    assert scene.stack.undecided() == [txn(1)]


def test_case_118_an_unreadable_message_is_not_resumed(scene: Scene) -> None:
    """INVALID: nothing says which transaction it was. The error tells the operator to export it."""
    scene.put(scene.names.half, b"k", b"v", [("RMQ_HALF", b"junk")])
    scene.settle()
    (dead,) = scene.letters().find(Wanted())
    assert dead.reasons == (DeadReason.INVALID,)
    wanted = Wanted(ids=frozenset((dead.name,)), is_open=True)
    reported = redo(
        scene.letters(), order(wanted=wanted), Choice(remedy=Remedy.RESUME), lambda _reported: True
    )
    assert "use `dead export`" in refusals(reported)[0]
    assert scene.marks() == []
    assert len(halves(scene)) == 1


def test_case_119_a_resumed_transaction_is_checked_from_the_start(scene: Scene) -> None:
    """Count 0, up to 15 more checks, undecided again, and its dead letter is marked."""
    asked: list[str] = []

    def unknown(view: Any) -> Resolution:
        asked.append(view.transaction_id)
        return Resolution.UNKNOWN

    transaction_id = lose(scene.stack, unknown, [b"a"])
    scene.stack.advance(seconds=HOUR_S)
    assert asked == [transaction_id] * CHECKS
    wanted = Wanted(ids=frozenset((transaction_id,)), is_open=True)
    redo(
        scene.letters(), order(wanted=wanted), Choice(remedy=Remedy.RESUME), lambda _reported: True
    )
    assert scene.stack.undecided() == [transaction_id]
    assert parse_half(halves(scene)[-1].headers())[0].check_times == 0
    (mark,) = scene.marks()
    assert (mark.action, mark.transaction_id) == (MarkAction.RESUMED, transaction_id)
    scene.stack.advance(seconds=HOUR_S)
    assert asked == [transaction_id] * 2 * CHECKS
    assert scene.stack.undecided() == []
    assert [each.letter.reason for each in scene.stack.dead_letters()] == [
        DeadReason.CHECK_TIMES,
        DeadReason.CHECK_TIMES,
    ]


@pytest.mark.parametrize("remedy", [Remedy.RESUME, Remedy.REDELIVER])
def test_case_134_what_is_stored_again_is_the_message_as_it_was(
    scene: Scene, remedy: Remedy
) -> None:
    """Real topic, id, group, birth, index, key, value and headers are those of before."""
    if remedy is Remedy.RESUME:
        scene.discarded(1)
    else:
        scene.undeliverable(1, count=2)
    scene.settle()
    scene.stack.create_topic("absent")
    before = halves(scene)
    scene.redo(remedy, 1)
    after = halves(scene)[len(before) :]
    assert len(after) == len(before) == 2
    for old, new in zip(before, after, strict=True):
        assert (new.key(), new.value()) == (old.key(), old.value())
        assert user_headers(new.headers()) == user_headers(old.headers())
        then, now = parse_half(old.headers())[0], parse_half(new.headers())[0]
        assert now == then._replace(resume_count=1)
